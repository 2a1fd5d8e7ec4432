// The tab *Traffic*: the results of a server under load, written by `bench serve --json`, or of a simulation; two
// results next to each other. Files are dropped on the page, chosen by a button, or contained in the file that is the
// page.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { Lines } from "page/chart_lines.js";
import { Trouble } from "page/controls.js";
import { onFiles } from "page/dropped.js";
import { percent, say_seconds, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";
import { checkedResult, cumulative, LATENCIES, levelsOf, readResult, tokensOver, underWay } from "page/traffic.js";

export const id = "traffic";
export const title = "Traffic";
export const fields = {};

const RESULTS = "traffic.json";
const MOST_BYTES = 1 << 27;
const SIDES = 2; // maximum number of compared results
const SORTS = ["one", "other"];

/**
 * Return whether there is something to show: a server that generates text can be put under load, and a file contains
 * its results.
 */
export function available(context) {
  return context.served ? context.models.some((model) => model.routes?.includes("/v1/completions")) : context.names.includes(RESULTS);
}

export function view({ context, source, active }) {
  const [results, setResults] = useState([]);
  const [over, setOver] = useState(false);
  const [trouble, say] = useState("");
  const input = useRef(null);
  useEffect(() => {
    if (context.served) return;
    const read = (found) => setResults(found.slice(0, SIDES).map(({ name, result }) => checkedResult(name, result)));
    source.data(RESULTS).then(read).catch((error) => say(error.message));
  }, []);
  const take = async (files) => {
    try {
      const read = [];
      for (const file of files.slice(-SIDES)) read.push(readResult(file.name, await textOf(file)));
      say("");
      setResults((before) => [...before, ...read].slice(-SIDES));
    } catch (error) {
      say(error.message);
    }
  };
  useEffect(() => (active ? onFiles(setOver, take) : undefined), [active]);
  return html`
    <div class="head">
      <p>${results.length ? "A result dropped here is compared with the last one." : html`Results of load tests. Run one against this server, or any with OpenAI's API, and drop its result here; two results are compared:`}</p>
      ${results.length === 0 && html`<pre><code>${commandOf(context)}</code></pre>`}
      <button type="button" class="quiet" onClick=${() => input.current.click()}>Open results</button>
      ${results.length > 0 && html`<button type="button" class="quiet" onClick=${() => setResults([])}>Remove</button>`}
      <input type="file" accept=".json,application/json" multiple hidden ref=${input} aria-label="Results"
        onChange=${(event) => {
          const files = [...event.target.files];
          event.target.value = "";
          if (files.length) take(files);
        }} />
      ${trouble && html`<${Trouble}>${trouble}<//>`}
    </div>
    ${over && html`<p class="dropping" aria-hidden="true"><span>Drop results: they are shown here</span></p>`}
    ${results.length > 0 && html`<${Answers} results=${results} /><div class="charts"><${Charts} results=${results} /></div>`}
  `;
}

async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name.slice(0, 80)} has more than ${MOST_BYTES} bytes`);
  return file.text().catch(() => {
    throw new Error(`${file.name.slice(0, 80)} cannot be read`);
  });
}

function commandOf(context) {
  const url = context.served ? location.origin : "URL";
  return `ridgeline bench serve ${url} --rate 4 --duration 30s --slo ttft=500ms,tpot=50ms --json > result.json`;
}

/** Show the results of the runs, one column each. */
function Answers({ results }) {
  const rows = [
    ["completed requests", (result) => `${grouped(result.metrics.ok ?? 0)} of ${grouped(result.metrics.requests ?? result.count)}`],
    ["completed requests per second", (result) => rate(result.metrics.requests_per_second)],
    ["offered requests per second", (result) => rate(result.metrics.offered_per_second)],
    ["output tokens per second", (result) => rate(result.metrics.tokens_per_second)],
    ["good requests per second", goodOf],
    ...Object.entries(LATENCIES).flatMap(([key, name]) => ["p50", "p90", "p99"].map((at) => [`${name} ${at}`, (result) => quantile(result.metrics.latencies?.[key], at)])),
    ...["prefill", "decode"].flatMap((phase) => [
      [`${phase} step, measured`, (result) => stepOf(result.server[phase], "measured", "count")],
      [`${phase} step, predicted`, (result) => stepOf(result.server[phase], "predicted", "priced")],
    ]),
  ];
  const seen = rows.map(([name, of]) => [name, results.map(of)]).filter(([, cells]) => cells.some(Boolean));
  return html`<section class="card" aria-labelledby="traffic-title">
    <h2 id="traffic-title">Answers</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Answers">
      <table>
        <thead><tr><td></td>${results.map((result, at) => html`<th scope="col" class=${`legend ${SORTS[at]}`}>${result.name}<small>${whatOf(result)}</small></th>`)}</tr></thead>
        <tbody>${seen.map(([name, cells]) => html`<tr><th scope="row" class="words">${name}</th>${cells.map((cell) => html`<td>${cell || "–"}</td>`)}</tr>`)}</tbody>
      </table>
    </div>
    ${results.map((result) => html`<p class="dim">${[result.verdict, ...result.reasons].filter(Boolean).length > 0 && html`<strong>${result.name}</strong>: ${[result.verdict, ...result.reasons].filter(Boolean).join("; ")}`}</p>`)}
    <p class="hint">A percentile is shown only with at least ten samples beyond it. Latencies count from the intended send time of a request.</p>
  </section>`;
}

function whatOf({ kind, inputs }) {
  return [inputs.model, kind].filter((each) => typeof each === "string" && each).join(" · ");
}

function rate(value) {
  return Number.isFinite(value) ? three_digits(value) : "";
}

function goodOf({ metrics: { goodput } }) {
  if (!Number.isFinite(goodput?.rate)) return "";
  const all = goodput.good + goodput.missed + goodput.unknown;
  return all > 0 ? `${three_digits(goodput.rate)} (${percent(goodput.good / all)})` : three_digits(goodput.rate);
}

/** Return a percentile with its 95 % confidence interval. */
function quantile(found, at) {
  const { low, mid, high } = found?.[at] ?? {};
  if (!Number.isFinite(mid)) return "";
  const between = Number.isFinite(low) && Number.isFinite(high) && high > low;
  return between ? html`${say_seconds(mid)} <small>${say_seconds(low)} to ${say_seconds(high)}</small>` : say_seconds(mid);
}

/** Return the mean seconds of a step of the server itself. */
function stepOf(steps, seconds, count) {
  return Number.isFinite(steps?.[seconds]) && steps[count] > 0 ? say_seconds(steps[seconds] / steps[count]) : "";
}

function Charts({ results }) {
  const of = (make) => results.map((result, at) => ({ name: result.name, sort: SORTS[at], ...make(result) }));
  const marks = (name) => results.flatMap((result) => (result.slo[name] ? [{ at: result.slo[name], words: `target ${say_seconds(result.slo[name])}` }] : [])).slice(0, 1);
  const share = [say_seconds, percent];
  const count = (value) => (Number.isInteger(value) ? grouped(value) : three_digits(value));
  const moment = [(value) => `${count(value)} s`, count];
  const levels = results.map(levelsOf);
  const overRate = (name) => of((result) => ({ points: levels[results.indexOf(result)].filter((level) => level[name] !== null).map((level) => [level.rate, level[name]]) }));
  return html`
    ${["ttft", "tpot", "e2e"].map(
      (name) => html`<${Lines} key=${name} title=${`${LATENCIES[name]} of requests`} xName="at most" yName="share of requests" say=${share} log most=${1} marks=${marks(name)}
        series=${of((result) => ({ points: cumulative(result, name), steps: true }))} />`,
    )}
    <${Lines} title="Concurrent requests" xName="time" yName="requests" say=${moment} series=${of((result) => ({ points: underWay(result).all, steps: true }))} />
    <${Lines} title="Waiting for the first token" xName="time" yName="requests" say=${moment} series=${of((result) => ({ points: underWay(result).waiting, steps: true }))} />
    <${Lines} title="Output tokens per second" xName="time" yName="tokens" say=${moment} series=${of((result) => ({ points: tokensOver(result), steps: true }))} />
    <${Lines} title="Good requests by rate" xName="requests a second" yName="good a second" say=${[three_digits, three_digits]} series=${overRate("good")} />
    <${Lines} title="Median TTFT by rate" xName="requests a second" yName="TTFT" say=${[three_digits, say_seconds]} series=${overRate("ttft")} />
    <${Lines} title="Median TPOT by rate" xName="requests a second" yName="TPOT" say=${[three_digits, say_seconds]} series=${overRate("tpot")} />
    <${Predicted} results=${results} />
  `;
}

/** Show the predictions for users who send their next request at once, next to the measurements. */
function Predicted({ results }) {
  const said = results.filter((result) => result.predicted);
  if (said.length === 0) return null;
  const series = said.flatMap((result) => {
    const sort = SORTS[results.indexOf(result)];
    const points = result.predicted.points.filter((point) => Number.isFinite(point?.tokens_per_second) && Number.isFinite(point?.tpot));
    const measured = result.metrics.latencies?.tpot?.p50?.mid ?? result.metrics.latencies?.tpot?.mean;
    const here = Number.isFinite(measured) && Number.isFinite(result.metrics.tokens_per_second) ? [[result.metrics.tokens_per_second, measured]] : [];
    const line = points.map((point) => [point.tokens_per_second, point.tpot]);
    return [{ name: `${result.name}, predicted`, sort: `${sort} thin`, points: line }, { name: `${result.name}, measured`, sort: `${sort} spot`, points: here.flatMap(([x, y]) => [[x, y], [x, y]]) }];
  });
  return html`<${Lines} title="Throughput and latency, predicted and measured" xName="output tokens a second, all requests" yName="TPOT" say=${[three_digits, say_seconds]} series=${series} />`;
}
