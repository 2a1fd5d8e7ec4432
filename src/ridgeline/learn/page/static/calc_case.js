// The figures of the calculator: a model on a card under a workload, as the address says. Pure functions; plan.js
// computes the figures.
//
//   settingOf(table, all, state, before)   Setting: {state, table, card, asked, workload, serving, context, decode, alone, wall,
//                                     intervals, level}. decode: the step of all users; alone: of one user; wall:
//                                     reachable(asked, context); intervals: those of figures by kind; level: how well the
//                                     device, the engine and the format are known, in words.
//                                     before: a Setting whose figures are reused if only the number of users differs. Throws
//                                     if the model or the card does not accept a value
//   doublingsOf(setting)              FLOP/B of decode steps of 1, 2, 4 ... users: [{users, intensity}]
//   reachable(asked, context)         the FLOP/B that decode steps approach with more and more users
//   contextFor(asked, intensity, most)   the context at which `reachable` is this intensity
//   withContext({input, output}, context)   a prompt and an output with this context, in the same proportion
//   commandOf(state, table)           the command line for the same plan
//   modelName(file, config)           the name of a model whose config is in a file of this name
//   originOf(setting, kind)           what the interval of a kind of figure comes from, in words
//   measuredOf(setting, kind)         the same as a remark: the measurements alone

import { ErrorInterval_measurements, known_of, known_of_class, low_of_class } from "page/interval_formulas.js";
import { decodeIntensity, decodeOf, makeCase, makeWorkload, Serving } from "page/plan.js";

const BEYOND = Math.pow(2, 30); // a number of users with whom the bytes of weights are negligible
export const MOST_USERS = 2048; // the maximum number of users: a step gives each one token (plan --max-batch-tokens)

export function settingOf(table, all, state, before = null) {
  const card = all.cards[state.card];
  if (!card) throw new Error(`there is no GPU ${state.card}`);
  const same = before && before.table === table && before.card === card && OF_SERVING.every((name) => before.state[name] === state[name]);
  const kept = same ? before : servingOf(table, card, all, state);
  const { asked, context } = kept;
  const workload = { ...kept.workload, batch: state.users };
  return { ...kept, state, workload, decode: decodeOf(asked, state.users, context, workload.encoded) };
}

// the fields of the state on which the figures depend, except model and card
const OF_SERVING = ["input", "output", "ttft", "tpot", "use"];

/** Return the parts of a Setting that do not depend on the number of users. */
function servingOf(table, card, all, state) {
  const engine = all.engines[card.engine];
  const asked = makeCase(table, card, engine, { utilization: state.use });
  const { input, output, ttft, tpot } = state;
  const workload = makeWorkload(table, { input, output, ttft: ttft || null, tpot: tpot || null });
  const { context, encoded } = workload;
  const alone = decodeOf(asked, 1, context, encoded);
  const wall = decodeIntensity(asked, BEYOND, context, encoded);
  const own = known_of(card, engine, table.weights);
  const known = table.traced_from ? known_of_class(own) : own;
  const intervals = Object.fromEntries(
    Object.entries(all.intervals).map(([kind, levels]) => [kind, table.traced_from ? ofClass(table, kind, levels[own], levels[known]) : levels[known]]),
  );
  return { table, card, asked, workload, serving: new Serving(asked, workload), context, alone, wall, intervals, level: all.levels[known] };
}

/** Return the interval of a model that is traced from its class, as `intervals_of_class` of error_interval.py does. */
function ofClass(table, kind, own, other) {
  const low = low_of_class(own.low, other.low, table.fused[kind] ?? 0);
  return { ...other, low, high: Math.max(own.high, other.high), traced_from: table.traced_from };
}

export function doublingsOf({ asked, workload }) {
  const found = [];
  for (let users = 1; users <= MOST_USERS; users *= 2) {
    found.push({ users, intensity: decodeIntensity(asked, users, workload.context, workload.encoded) });
  }
  return found;
}

export function reachable(asked, context) {
  return decodeIntensity(asked, BEYOND, context);
}

/**
 * Return the context at which `reachable` is this intensity. Longer contexts read more per token, so `reachable` falls.
 */
export function contextFor(asked, intensity, most) {
  let [low, high] = [2, most];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (reachable(asked, middle) > intensity) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function withContext({ input, output }, context) {
  const half = Math.max(1, Math.min(context - 1, Math.round((context * output) / (2 * input + output))));
  return { input: context - half, output: half > 1 ? 2 * half : 1 };
}

/** Return the longest context with which the workload still fits into the model's. */
export function longestContext(table, { input, output }) {
  let context = table.context - 1;
  for (let shown = withContext({ input, output }, context); shown.input + shown.output > table.context; context--) {
    shown = withContext({ input, output }, context - 1);
  }
  return context;
}

export function commandOf(state, table) {
  const words = ["ridgeline plan", table.file ?? table.model, "--device", state.card, "--devices", state.cards];
  if (state.weights) words.push("--weights", state.weights);
  if (state.kv) words.push("--kv", state.kv);
  words.push("--input", state.input, "--output", state.output, "--batch", state.users);
  const targets = [["ttft", state.ttft], ["tpot", state.tpot]].filter(([, seconds]) => seconds);
  words.push("--slo", targets.map(([name, seconds]) => `${name}=${Number((seconds * 1000).toPrecision(12))}ms`).join(",") || "none");
  if (state.use !== 0.9) words.push("--memory-utilization", state.use);
  return words.join(" ");
}

export function originOf(setting, kind) {
  return `8 of 10 measurements of cases like this one: ${measuredOf(setting, kind)}; ${setting.level}`;
}

export const measuredOf = ({ intervals }, kind) => ErrorInterval_measurements(intervals[kind]);

/** Return the file's name, or the name in the config if the file is called config.json, as most are. */
export function modelName(file, config) {
  const path = typeof config?._name_or_path === "string" ? config._name_or_path : "";
  const own = /^config\b/i.test(file) ? [path.split(/[\\/]/).filter(Boolean).pop(), config?.model_type] : [];
  const name = [...own, file.replace(/\.json$/i, "")].find((each) => typeof each === "string" && each.trim());
  return (name ?? "config").replace(/\s+/g, " ").trim().slice(0, 80);
}
