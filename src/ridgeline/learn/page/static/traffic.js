// The result of a run under load, written by `bench serve --json` or a simulation: read, checked, and converted for
// charts. A file is untrusted, and one that is no such result is refused in one line. Nothing is drawn here.

const FORMAT = 1;
const POINTS = 200; // points of a distribution
const MOMENTS = 240; // moments of a run
const NEEDED = ["outcome", "intended", "first_token", "last_token", "ttft", "tpot", "e2e"];

/** The latencies by their names in a result, with their titles. */
export const LATENCIES = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2e: "E2E" };

/**
 * Return a result: { name, kind, verdict, reasons, inputs, metrics, requests, seconds, server, levels, predicted, slo
 * }. name: that of its file. text: JSON. requests: columns of equal length. levels: those of a sweep. slo: seconds by
 * latency. Throws an Error of one line.
 */
export function readResult(name, text) {
  const called = name.slice(0, 80);
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    throw new Error(`${called} is not valid JSON`);
  }
  return checkedResult(called, told);
}

/** Return the same for parsed JSON. */
export function checkedResult(name, told) {
  const columns = told?.per_request;
  if (!isObject(told?.metrics) || !isObject(columns)) {
    throw new Error(`${name} is not the result of a run; ridgeline bench serve URL --json writes one`);
  }
  if (told.format !== FORMAT) throw new Error(`${name} has format ${String(told.format).slice(0, 20)}; this page reads ${FORMAT}`);
  const count = Array.isArray(columns.outcome) ? columns.outcome.length : -1;
  for (const column of NEEDED) {
    if (!Array.isArray(columns[column]) || columns[column].length !== count) throw new Error(`${name} lacks the column ${column} of its requests`);
  }
  const { metrics, verdict, inputs, steps, predicted } = told;
  const levels = told.sweep?.levels ?? told.capacity?.levels; // the second form is that of a simulation
  const words = [told.reasons, told.advice].flat();
  return {
    ...{ name, kind: said(told.kind), verdict: said(verdict), reasons: words.map(said).filter(Boolean) },
    ...{ inputs: isObject(inputs) ? inputs : {}, metrics, requests: columns, count },
    ...{ seconds: isObject(steps?.per_second) ? steps.per_second : {}, server: isObject(steps?.server) ? steps.server : {} },
    ...{ levels: Array.isArray(levels) ? levels : [], predicted: Array.isArray(predicted?.points) ? predicted : null },
    slo: limits(inputs?.slo),
  };
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function said(value) {
  return typeof value === "string" ? value : "";
}

/** Return the objectives in seconds; a result has them in nanoseconds, or null. */
function limits(slo) {
  const found = Object.entries(isObject(slo) ? slo : {}).filter(([, limit]) => Number.isFinite(limit) && limit > 0);
  return Object.fromEntries(found.map(([name, limit]) => [name, limit / 1e9]));
}

/** Return whether a latency is the server's. A load generator that was late itself cannot tell. */
function isTold({ metrics }, latency) {
  return metrics.latencies?.[latency] !== null;
}

/** Return the cumulative distribution over the finished requests: [value, share], from the smallest to the largest. */
export function cumulative(result, column) {
  const { requests, count } = result;
  const values = [];
  for (let at = 0; at < count; at++) {
    const value = requests[column][at];
    if (requests.outcome[at] === "ok" && Number.isFinite(value)) values.push(value);
  }
  if (values.length < 2 || !isTold(result, column)) return [];
  values.sort((one, other) => one - other);
  const last = values.length - 1;
  const places = new Set([0, last]);
  for (let at = 0; at < last; at += Math.max(1, Math.floor(values.length / POINTS))) places.add(at);
  const steps = [...places].sort((one, other) => one - other).map((at) => [values[at], (at + 1) / values.length]);
  return [[values[0], 0], ...steps];
}

/** Return the requests that wait for their first token and all unfinished ones, over time: [seconds, number] each. */
export function underWay(result) {
  const { requests, count } = result;
  const { intended, first_token: first, outcome, last_token: last, ended = [] } = requests;
  const over = Array.from({ length: count }, (_, at) => (outcome[at] === "ok" && Number.isFinite(last[at]) ? last[at] : ended[at] ?? intended[at]));
  const until = largest([...over, ...intended, ...first]);
  const starts = sorted(intended);
  const begun = sorted(first.map((moment, at) => (Number.isFinite(moment) ? moment : over[at])));
  const ends = sorted(over);
  const waiting = [];
  const all = [];
  for (let at = 0; at < MOMENTS && until > 0; at++) {
    const moment = (until * at) / (MOMENTS - 1);
    const came = upTo(starts, moment);
    waiting.push([moment, came - upTo(begun, moment)]);
    all.push([moment, came - upTo(ends, moment)]);
  }
  return { waiting: isTold(result, "ttft") ? waiting : [], all };
}

function sorted(values) {
  return values.filter(Number.isFinite).sort((one, other) => one - other);
}

function largest(values) {
  return values.reduce((most, value) => (Number.isFinite(value) && value > most ? value : most), 0);
}

/** Return how many of the sorted values are at most this. */
function upTo(values, most) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= most) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the output tokens of every second of the result: [second, tokens]. */
export function tokensOver({ seconds }) {
  const { second, tokens } = seconds;
  if (!Array.isArray(second) || !Array.isArray(tokens)) return [];
  return second.map((at, place) => [at, tokens[place]]).filter((point) => point.every(Number.isFinite));
}

/**
 * Return for each level of a sweep the rate, the good requests per second, and the medians of TTFT and TPOT, null if
 * there are none.
 */
export function levelsOf({ levels }) {
  return levels
    .filter((level) => Number.isFinite(level?.rate) && isObject(level.metrics))
    .map(({ rate, metrics, fault }) => ({
      ...{ rate, fault: said(fault), good: metrics.goodput?.rate ?? metrics.requests_per_second ?? null },
      ...{ ttft: middle(metrics.latencies?.ttft), tpot: middle(metrics.latencies?.tpot) },
    }));
}

/** Return the median of a distribution, its mean if there are too few values, or null. */
export function middle(found) {
  const value = found?.p50?.mid ?? found?.mean;
  return Number.isFinite(value) ? value : null;
}
