// The card's memory as a column, to scale: weights by part, activations, overhead, the rest with a tile for each user,
// and the reserve above, whose border can be dragged. The subtractions next to it add up to the byte. For a model that
// is far too large, the column ends in teeth at the upper edge, so that the chart does not grow.

import { html, useRef, useState } from "page/dom.js";
import { measuredOf } from "page/calc_case.js";
import { ChartTable } from "page/chart_parts.js";
import { people } from "page/chart_roofline.js";
import { gib, percent, say_gib, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";
import { pagesKept } from "page/plan.js";

const [HEIGHT, WIDTH] = [400, 132];
const PAD = 14;
const TEETH = 6;

/** The upper end of a column that is longer than the chart: teeth in the background colour, down from the edge. */
const TORN = `M20 0V${PAD}${`l${WIDTH / TEETH / 2} 8l${WIDTH / TEETH / 2} -8`.repeat(TEETH)}V0Z`;

export function Tower({ setting, ghost, onChange }) {
  const { memory } = setting.serving;
  const { low, high } = setting.intervals.memory;
  const rows = subtractions(setting, memory);
  const top = memory.total * (memory.missing > 0 ? 1 + Math.min(0.25, memory.missing / memory.total) : 1);
  const y = (bytes) => HEIGHT - PAD - (bytes / top) * (HEIGHT - 2 * PAD);
  const parts = stacked(setting, memory);
  return html`<figure class="tower">
    <div class="sides">
      <svg width=${WIDTH + 40} height=${HEIGHT} viewBox=${`0 0 ${WIDTH + 40} ${HEIGHT}`} role="group" aria-label="Memory of a GPU">
        <rect class="case" x="20" y=${y(memory.total)} width=${WIDTH} height=${y(0) - y(memory.total)} />
        ${parts.filter((part) => part.from < top).map(
          (part) => html`<rect class=${`part ${part.sort}`} x="20" y=${y(Math.min(top, part.to))} width=${WIDTH} height=${Math.max(0.5, y(part.from) - y(Math.min(top, part.to)))} key=${part.name}>
            <title>${part.name}: ${say_gib(gib(part.to - part.from))}</title>
          </rect>`,
        )}
        ${parts[parts.length - 1].to > top && html`<path class="torn" d=${TORN} />`}
        <${Tiles} ...${{ setting, memory, y }} />
        ${ghost && html`<${GhostMark} ...${{ ghost, y, top }} />`}
        <${Border} ...${{ setting, memory, y, top, onChange }} />
      </svg>
      <table class="sums">
        <caption>${setting.card.memory ? say_gib(gib(memory.total)) : ""} of ${setting.asked.devices > 1 ? "each " : ""}${setting.card.name}</caption>
        <tbody>
          ${rows.map(
            ([name, bytes, sort]) => html`<tr class=${sort} key=${name}><th scope="row"><i></i>${name}</th><td>${bytes < 0 ? "−" : ""}${say_gib(gib(Math.abs(bytes)))}</td></tr>`,
          )}
        </tbody>
        <tfoot>
          <tr><th scope="row">per user${memory.admittedTokens < memory.requestTokens ? ", on average" : ""}</th><td>${say_gib(gib(userBytes(setting, memory)))}</td></tr>
          <tr class="answer"><th scope="row">memory holds</th><td>${memory.fits ? people(memory.users) : "no user"}</td></tr>
        </tfoot>
      </table>
    </div>
    ${!memory.fits && html`<p class="trouble">${say_gib(gib(memory.missing))} missing for the weights and one user.</p>`}
    <p class="dim small">As inference engines reserve it. 8 of 10 measured sizes are × ${three_digits(low)} to × ${three_digits(high)} of predicted ones (${measuredOf(setting, "memory")}).</p>
    <${ChartTable} name="Memory to the byte" head=${["subtraction", "bytes"]} rows=${rows.map(([name, bytes]) => [name, grouped(bytes)])} />
  </figure>`;
}

/** Return the bytes of keys and values of a user, as the engine counts them when it admits a request. */
function userBytes({ table, workload }, memory) {
  return pagesKept(table, memory.admittedTokens, 1, workload.encoded) * memory.pageBytes;
}

/** Return the total, what is subtracted, and the rest: [name, bytes, sort]. */
function subtractions({ state }, memory) {
  const { total, budget, weights, activations, overhead, left } = memory;
  return [
    [`reserve (${percent(1 - state.use)})`, -(total - budget), "reserve"],
    ["weights", -weights, "weights"],
    ["activations", -activations, "activations"],
    ["overhead", -overhead, "overhead"],
    ["left for keys and values", left, "left"],
  ];
}

function stacked({ table }, memory) {
  const parts = [];
  let at = 0;
  const put = (name, bytes, sort) => {
    parts.push({ name, from: at, to: at + bytes, sort });
    at += bytes;
  };
  const byPart = [...table.memory.parts].sort((a, b) => b.nbytes - a.nbytes);
  byPart.forEach(({ part, format, nbytes }, place) => put(`${part}, ${format}`, nbytes, `weights shade${place % 3}`));
  put("activations", memory.activations, "activations");
  put("overhead", memory.overhead, "overhead");
  return parts;
}

/**
 * Show a tile for each user, with the user's share of the remaining memory. The first one that has no room hangs over.
 */
function Tiles({ setting, memory, y }) {
  if (memory.left <= 0) return null;
  const base = memory.budget - memory.left;
  const height = y(base) - y(memory.budget);
  const each = userBytes(setting, memory) / memory.left;
  // so that tiles are nearly square
  const columns = Math.max(1, Math.min(33, Math.round(Math.sqrt(WIDTH / (height * each)))));
  const tall = height * each * columns;
  const wide = WIDTH / columns;
  const count = Math.min(memory.users, 3000);
  const { users } = setting.state;
  const tile = (at) => ({ x: 20 + (at % columns) * wide, y: y(base) - (Math.floor(at / columns) + 1) * tall });
  const over = users > memory.users ? tile(count) : null;
  const inset = Math.min(1, tall / 4);
  const path = (from, to) => {
    const shape = `h${(wide - 2 * inset).toFixed(1)}v${Math.max(0.3, tall - 2 * inset).toFixed(2)}h${(2 * inset - wide).toFixed(1)}z`;
    const lefts = Array.from({ length: columns }, (_, at) => (tile(at).x + inset).toFixed(1));
    let [d, top] = ["", ""];
    for (let at = from; at < to; at++) {
      if (at === from || at % columns === 0) top = (tile(at).y + inset).toFixed(2);
      d += `M${lefts[at % columns]} ${top}${shape}`;
    }
    return d;
  };
  const busy = Math.min(users, count);
  return html`<g class="tiles">
    <rect class="room" x="20" y=${y(memory.budget)} width=${WIDTH} height=${height} />
    <path class="free" d=${path(busy, count)} /><path class="busy" d=${path(0, busy)} />
    ${over && html`<rect class="over" x=${over.x + 14} y=${Math.max(2, over.y)} width=${Math.max(10, wide)} height=${Math.max(3, over.y + tall - Math.max(2, over.y))}><title>no room for this user</title></rect>`}
  </g>`;
}

function GhostMark({ ghost, y, top }) {
  const { memory } = ghost.serving;
  const taken = Math.max(0, memory.budget - memory.left);
  if (taken > top) return null;
  return html`<g class="ghost" aria-hidden="true"><path d=${`M12 ${y(taken)}H${WIDTH + 28}`} /></g>`;
}

/** Show the border of the reserve, which sets how much of the card may be used. */
function Border({ setting, memory, y, top, onChange }) {
  const { use } = setting.state;
  const [held, hold] = useState(false);
  const svg = useRef(null);
  const put = (value) => onChange({ use: Math.round(100 * Math.min(1, Math.max(0.3, value))) / 100 });
  const move = (event) => {
    const { top: edge, height } = svg.current.ownerSVGElement.getBoundingClientRect();
    const place = ((event.clientY - edge) / height) * HEIGHT;
    put((((HEIGHT - PAD - place) / (HEIGHT - 2 * PAD)) * top) / memory.total);
  };
  const keys = { ArrowUp: use + 0.01, ArrowRight: use + 0.01, ArrowDown: use - 0.01, ArrowLeft: use - 0.01, Home: 0.3, End: 1, PageUp: use + 0.1, PageDown: use - 0.1 };
  return html`<g ref=${svg} class="handle border" tabindex="0" role="slider" aria-label="Share of the memory that may be used"
    aria-valuemin="30" aria-valuemax="100" aria-valuenow=${Math.round(use * 100)} aria-valuetext=${percent(use)} aria-orientation="vertical"
    transform=${`translate(0 ${y(memory.total * use)})`}
    onPointerDown=${(event) => {
      event.preventDefault();
      event.currentTarget.setPointerCapture(event.pointerId);
      event.currentTarget.focus();
      hold(true);
    }}
    onPointerMove=${(event) => held && move(event)}
    onPointerUp=${() => hold(false)}
    onKeyDown=${(event) => {
      if (keys[event.key] === undefined) return;
      event.preventDefault();
      put(keys[event.key]);
    }}>
    <rect class="reach" x="6" y="-11" width=${WIDTH + 28} height="22" />
    <path d=${`M12 0H${WIDTH + 28}`} /><rect class="grip" x=${WIDTH + 6} y="-4" width="28" height="8" rx="4" />
  </g>`;
}
