// The map of KV memory: a cell for each page, or for a few. Next to it the counts, as text and as a table that is also
// the legend.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { Canvas, useWidth } from "page/canvas.js";
import { cellAt, cellOf, layoutOf, pagesOf, paintCell } from "page/engine_cells.js";
import { STATES } from "page/engine_state.js";
import { percent } from "page/numbers.js";
import { grouped } from "page/python.js";

const CHAIN = 4; // maximum pages of a prefix in the text
const FLASH = 350; // milliseconds for which a page is highlighted after it was published
const MEANS = {
  held: "used by one request, not full yet",
  published: "used by one request, full: in the prefix cache",
  shared: "shared by several requests",
  cached: "not in use, kept in the prefix cache",
  free: "empty",
};
const PUBLISHED = STATES.indexOf("published");
const HELD = STATES.indexOf("held");

/** engine: an EngineState, whose revision says when to draw again. */
export function PageMap({ engine, revision }) {
  const [place, width] = useWidth();
  const [at, setAt] = useState(-1);
  const tallest = Math.max(180, Math.min(520, width * 0.62));
  const layout = useMemo(() => layoutOf(engine.pages.count, width, tallest), [engine.pages.count, width]);
  const [paint, lit] = usePainter(engine, layout);
  const cell = at < layout.cells ? at : -1;
  const onPoint = (x, y) => setAt(x === null ? -1 : cellAt(layout, x, y));
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout.columns, ArrowUp: -layout.columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt((now) => Math.max(0, Math.min(layout.cells - 1, now < 0 ? 0 : now + step)));
  };
  const each = layout.each === 1 ? "a cell is a page" : `a cell is ${layout.each} pages`;
  return html`<section class="card map" aria-labelledby="map-title">
    <h2 id="map-title">KV memory <small>${each} of ${grouped(engine.limits.page_size)} positions</small></h2>
    <div class="chart" ref=${place}>
      ${width > 0 &&
      html`<${Canvas}
        name=${`Map of ${grouped(engine.pages.count)} KV pages: ${said(engine.counts)}. Arrow keys go from cell to cell.`}
        ...${{ width, height: layout.rows * layout.side, paint, onPoint, onKey }}
        revision=${`${revision}.${lit}`}
      />`}
      ${cell >= 0 && html`<${Chain} ...${{ engine, layout, cell }} /><span class="cursor" style=${cursorOf(layout, cell)} />`}
    </div>
    <output class="looked" aria-live=${at >= 0 ? "polite" : "off"}>
      ${cell >= 0 ? sayCell(engine, layout, cell) : "Point at a cell to see which request uses it."}
    </output>
    <${Counts} counts=${engine.counts} pages=${engine.pages.count} />
  </section>`;
}

/**
 * Return a function that paints the cells that changed and those whose highlight has ended, and a counter of the
 * latter.
 */
function usePainter(engine, layout) {
  const flashes = useRef(new Set());
  const [lit, setLit] = useState(0);
  const timer = useRef(0);
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)").matches, []);
  useEffect(() => () => clearTimeout(timer.current), []);
  const paint = useCallback(
    (context, ink, fresh) => {
      const changed = engine.drain();
      const { pages } = engine;
      const over = [...flashes.current];
      flashes.current.clear();
      if (fresh || changed === null) {
        for (let cell = 0; cell < layout.cells; cell += 1) paintCell(context, layout, pages, cell, ink, false);
        return;
      }
      const cells = new Set(over);
      for (const [page, before] of changed) {
        const cell = cellOf(layout, page);
        cells.add(cell);
        if (!still && layout.each === 1 && before === HELD && pages.state[page] === PUBLISHED) flashes.current.add(cell);
      }
      for (const cell of cells) paintCell(context, layout, pages, cell, ink, flashes.current.has(cell));
      clearTimeout(timer.current);
      if (flashes.current.size) timer.current = setTimeout(() => setLit((count) => count + 1), FLASH);
    },
    [engine, layout],
  );
  return [paint, lit];
}

/** Outline the pages of a page's prefix. */
function Chain({ engine, layout, cell }) {
  const [page, last] = pagesOf(layout, cell, engine.pages.count);
  if (page !== last || engine.pages.state[page] === 0) return null;
  const { side, columns, rows } = layout;
  const boxes = engine.chain(page).map((each) => {
    const at = cellOf(layout, each);
    return `M${(at % columns) * side} ${Math.floor(at / columns) * side}h${side - 1}v${side - 1}h${1 - side}z`;
  });
  return html`<svg class="chain" width=${columns * side} height=${rows * side} aria-hidden="true"><path d=${boxes.join("")} /></svg>`;
}

function cursorOf({ side, columns }, cell) {
  const left = (cell % columns) * side - 1;
  const top = Math.floor(cell / columns) * side - 1;
  return { left: `${left}px`, top: `${top}px`, width: `${side + 1}px`, height: `${side + 1}px` };
}

function said(counts) {
  return STATES.map((name, state) => `${grouped(counts[state])} ${name}`).join(", ");
}

/** Return the description of a cell. */
function sayCell(engine, layout, cell) {
  const [first, last] = pagesOf(layout, cell, engine.pages.count);
  if (first === last) return sayPage(engine, first);
  const counts = STATES.map(() => 0);
  for (let page = first; page <= last; page += 1) counts[engine.pages.state[page]] += 1;
  const there = STATES.map((name, state) => counts[state] && `${counts[state]} ${name}`).filter(Boolean);
  return `Pages ${grouped(first)} to ${grouped(last)}: ${there.join(", ")}`;
}

function sayPage(engine, page) {
  const { pages, limits } = engine;
  const name = STATES[pages.state[page]];
  const words = [`Page ${grouped(page)}: ${name}`];
  const start = pages.start[page];
  const references = pages.references[page];
  if (pages.request[page]) words.push(`request ${pages.request[page]}`);
  if (start >= 0) words.push(`positions ${grouped(start)} to ${grouped(start + limits.page_size - 1)}`);
  if (references) words.push(`${references} ${references === 1 ? "reference" : "references"}`);
  const prefix = name === "free" ? [] : engine.chain(page).slice(1);
  if (prefix.length) {
    const shown = prefix.slice(0, CHAIN).map((each) => grouped(each));
    words.push(`after ${prefix.length === 1 ? "page" : "pages"} ${shown.join(", ")}${prefix.length > CHAIN ? ` and ${grouped(prefix.length - CHAIN)} more` : ""}`);
  }
  if (limits.groups.length > 1 && name !== "free") words.push(`layers of group ${pages.group[page] + 1}`);
  return words.join(" · ");
}

/** Show the pages by state, with the appearance of each. */
function Counts({ counts, pages }) {
  return html`<div class="scroll"><table class="counts">
    <caption class="unseen">KV pages by state</caption>
    <thead><tr><th scope="col" class="words">state</th><th scope="col">pages</th><th scope="col">share</th><th scope="col" class="words">whose</th></tr></thead>
    <tbody>
      ${Object.keys(MEANS).map((name) => {
        const count = counts[STATES.indexOf(name)];
        return html`<tr key=${name}>
          <th scope="row" class="words"><${Swatch} name=${name} />${name}</th>
          <td>${grouped(count)}</td>
          <td>${percent(pages ? count / pages : 0)}</td>
          <td class="words dim">${MEANS[name]}</td>
        </tr>`;
      })}
    </tbody>
  </table></div>`;
}

function Swatch({ name }) {
  return html`<svg class=${`swatch ${name}`} viewBox="0 0 12 12" aria-hidden="true">
    <rect width="12" height="12" />
    ${name === "shared" && html`<rect class="core" x="4" y="4" width="4" height="4" />`}
    ${name === "cached" && html`<path d="M0 12 12 0V12Z" />`}
  </svg>`;
}
