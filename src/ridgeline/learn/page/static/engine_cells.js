// The cells of a map of KV pages: the number of pages of a cell, its place, and its colours.

import { STATES } from "page/engine_state.js";

const [FREE, HELD, , SHARED, CACHED] = STATES.keys();
const WIDEST = 18; // maximum side of a cell, in CSS pixels
const NARROWEST = 5;

/**
 * Return the layout of cells for a number of pages in an area: the largest cells that fit. A cell has several pages if
 * cells of one page would be too small.
 */
export function layoutOf(pages, width, tallest) {
  for (let side = WIDEST; side >= NARROWEST; side -= 1) {
    const columns = Math.max(1, Math.floor(width / side));
    const rows = Math.ceil(pages / columns);
    if (rows * side <= tallest) return { side, columns, rows, each: 1, cells: pages };
  }
  const columns = Math.max(1, Math.floor(width / NARROWEST));
  const most = Math.max(1, Math.floor(tallest / NARROWEST)) * columns;
  const each = Math.ceil(pages / most);
  const cells = Math.ceil(pages / each);
  return { side: NARROWEST, columns, rows: Math.ceil(cells / columns), each, cells };
}

/** Return the cell of a page. */
export function cellOf(layout, page) {
  return Math.floor((page - 1) / layout.each);
}

/** Return the first and the last page of a cell. */
export function pagesOf(layout, cell, count) {
  return [cell * layout.each + 1, Math.min(count, (cell + 1) * layout.each)];
}

/** Return the cell at a point, -1 if there is none. */
export function cellAt(layout, x, y) {
  const column = Math.floor(x / layout.side);
  const cell = Math.floor(y / layout.side) * layout.columns + column;
  return column >= 0 && column < layout.columns && cell >= 0 && cell < layout.cells ? cell : -1;
}

/** Return the colour of a request. Requests with neighbouring numbers are far apart in hue. */
export function colourOf(request, dark) {
  const hue = Math.round((request * 137.508) % 360);
  return dark ? `hsl(${hue} 55% 62%)` : `hsl(${hue} 58% 46%)`;
}

/** Paint a cell. ink: the colours of the page. flash: whether it was just published. */
export function paintCell(context, layout, pages, cell, ink, flash) {
  const { side, columns, each } = layout;
  const x = (cell % columns) * side;
  const y = Math.floor(cell / columns) * side;
  const size = side - 1;
  context.clearRect(x, y, side, side);
  if (each > 1) paintSeveral(context, pages, pagesOf(layout, cell, pages.count), [x, y, size], ink);
  else paintOne(context, pages, cell + 1, [x, y, size], ink, flash);
}

function paintOne(context, pages, page, [x, y, size], ink, flash) {
  const state = pages.state[page];
  context.fillStyle = state === FREE || state === CACHED ? ink.rule : colourOf(pages.request[page], ink.dark);
  if (flash) context.fillStyle = ink.ink;
  context.globalAlpha = state === HELD && !flash ? 0.6 : 1;
  context.fillRect(x, y, size, size);
  context.globalAlpha = 1;
  if (state === CACHED) paintHatch(context, x, y, size, ink);
  if (state === SHARED) {
    const core = Math.max(2, Math.round(size / 3));
    const inset = (size - core) / 2;
    context.fillStyle = "#fff";
    context.fillRect(x + inset, y + inset, core, core);
  }
}

/** Paint half of a square, which looks hatched at this size. */
function paintHatch(context, x, y, size, ink) {
  context.fillStyle = ink.edge;
  context.beginPath();
  context.moveTo(x, y + size);
  context.lineTo(x + size, y);
  context.lineTo(x + size, y + size);
  context.fill();
}

/**
 * Paint the shares of several pages: referenced ones from below, then cached ones, in the colour of the request that
 * has most of them.
 */
function paintSeveral(context, pages, [first, last], [x, y, size], ink) {
  const owners = new Map();
  let [cached, taken] = [0, 0];
  for (let page = first; page <= last; page += 1) {
    if (pages.state[page] === CACHED) cached += 1;
    else if (pages.state[page] !== FREE) {
      taken += 1;
      owners.set(pages.request[page], (owners.get(pages.request[page]) ?? 0) + 1);
    }
  }
  const height = (count) => (size * count) / (last - first + 1);
  context.fillStyle = ink.rule;
  context.fillRect(x, y, size, size);
  context.fillStyle = ink.edge;
  context.fillRect(x, y + size - height(taken + cached), size, height(cached));
  if (!taken) return;
  const owner = [...owners].reduce((most, each) => (each[1] > most[1] ? each : most))[0];
  context.fillStyle = colourOf(owner, ink.dark);
  context.fillRect(x, y + size - height(taken), size, height(taken));
}
