// The lanes of requests: waiting, running, ended. A request is a bar with two counters: the known tokens, and the
// computed ones. The engine's job is to let the second catch up with the first.

import { html } from "page/dom.js";
import { colourOf } from "page/engine_cells.js";
import { grouped } from "page/python.js";

const ROWS = 12;
const LEAST = 64; // minimum number of positions of a full bar

/** revision: changes with the engine. dark: whether the page is dark. */
export function Lanes({ engine, dark }) {
  const { waiting, running, ended } = engine.lanes();
  const seen = [waiting, running, ended].map((lane) => lane.slice(0, ROWS));
  const longest = Math.max(LEAST, ...seen.flat().map(({ known }) => known));
  const scale = 2 ** Math.ceil(Math.log2(longest)); // so that bars do not shrink with every token
  const lane = (title, rows, all, empty) => html`<${Lane} ...${{ title, rows, all, empty, scale, dark }} />`;
  return html`<section class="card lanes" aria-labelledby="lanes-title">
    <h2 id="lanes-title">Requests <small>computed positions catch up with known tokens</small></h2>
    ${lane("Waiting", seen[0], waiting.length, "No request is waiting.")}
    ${lane("Running", seen[1], running.length, "No request is running.")}
    ${lane("Ended", seen[2], engine.finished.requests, "No request has ended since this view was opened.")}
  </section>`;
}

function Lane({ title, rows, all, empty, scale, dark }) {
  return html`<div class="lane">
    <h3>${title} <span class="dim">${grouped(all)}</span></h3>
    ${rows.length === 0 && html`<p class="dim">${empty}</p>`}
    <ul>
      ${rows.map((lane) => html`<${Bar} key=${`${lane.request}.${lane.choice}`} ...${{ lane, scale, dark }} />`)}
    </ul>
    ${all > rows.length && rows.length > 0 && html`<p class="dim">and ${grouped(all - rows.length)} more</p>`}
  </div>`;
}

function Bar({ lane, scale, dark }) {
  const width = (positions) => Math.min(100, (100 * positions) / scale);
  const found = Math.min(lane.cached, lane.computed);
  return html`<li>
    <span class="who">#${lane.request}${lane.choice > 0 && html`<small>.${lane.choice}</small>`}</span>
    <svg class="bars" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="known" x="0" y="0" width=${width(lane.known)} height="10" />
      <rect x="0" y="0" width=${width(lane.computed)} height="10" fill=${colourOf(lane.request, dark)} />
      ${found > 0 && html`<rect class="found" x="0" y="7" width=${width(found)} height="3" />`}
    </svg>
    <span class="what">${words(lane)}</span>
  </li>`;
}

/** Return a bar's contents in words. */
function words({ computed, known, cached, preemptions, finish }) {
  const parts = [`${grouped(computed)} of ${grouped(known)}`];
  if (cached) parts.push(`${grouped(cached)} cached`);
  if (preemptions) parts.push(`preempted ${preemptions === 1 ? "once" : `${preemptions} times`}`);
  if (finish) parts.push(finish);
  return parts.join(" · ");
}
