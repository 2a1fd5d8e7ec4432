// Lines over one axis: several series, straight or in steps, with marks; and their table. If values are too far apart
// for a linear axis, it is logarithmic, with decades that contain them.

import { html } from "page/dom.js";
import { ChartTable, useWidth } from "page/chart_parts.js";

const EDGE = { left: 52, right: 16, top: 26, bottom: 34 };
const HEIGHT = 240;
const DECADE = 10; // largest ratio of values on a linear axis
const ROWS = 60; // rows of a series' table
const { log10, floor, ceil } = Math;

/**
 * series: [{ name, points: [[x, y], ...], sort, steps }]; sort: a class for its colour; steps: y holds until the next
 * x. marks: [{ at, words }] on the x axis. xName, yName: the names of the axes. say: [of x, of y], how a value is
 * written. log: whether x may be logarithmic. most: a value that the y axis includes at least. Nothing is drawn without
 * points.
 */
export function Lines({ series, ...more }) {
  const drawn = series.filter(({ points }) => points.length > 0);
  return drawn.length > 0 ? html`<${Chart} ...${{ drawn, ...more }} />` : null;
}

function Chart({ title, drawn, marks = [], xName, yName, say, log = false, most }) {
  const [box, width] = useWidth(520);
  const values = drawn.flatMap(({ points }) => points);
  const across = scale([...values.map(([x]) => x), ...marks.map(({ at }) => at)], log, [EDGE.left, width - EDGE.right]);
  const up = scale([0, most ?? 0, ...values.map(([, y]) => y)], false, [HEIGHT - EDGE.bottom, EDGE.top], true);
  const path = ({ points, steps }) => points.map(([x, y], at) => `${at === 0 ? "M" : steps ? `H${across.at(x).toFixed(1)}V` : "L"}${at === 0 || !steps ? `${across.at(x).toFixed(1)} ` : ""}${up.at(y).toFixed(1)}`).join("");
  return html`<figure class="lines">
    <figcaption><strong>${title}</strong>${drawn.length > 1 && drawn.map(({ name, sort }) => html`<span class=${`legend ${sort}`}>${name}</span>`)}</figcaption>
    <div ref=${box}><svg width=${width} height=${HEIGHT} viewBox=${`0 0 ${width} ${HEIGHT}`} aria-hidden="true">
      <g class="axes">
        ${up.ticks.map((value) => html`<path d=${`M${EDGE.left} ${up.at(value)}H${width - EDGE.right}`} /><text x=${EDGE.left - 6} y=${up.at(value) + 4} text-anchor="end">${say[1](value)}</text>`)}
        ${across.ticks.map((value) => html`<path d=${`M${across.at(value)} ${EDGE.top}V${HEIGHT - EDGE.bottom}`} /><text x=${across.at(value)} y=${HEIGHT - EDGE.bottom + 14} text-anchor=${across.at(value) > width - EDGE.right - 24 ? "end" : "middle"}>${say[0](value)}</text>`)}
        <text x=${width - EDGE.right} y=${HEIGHT - 4} text-anchor="end">${xName}</text>
        <text x="2" y="10">${yName}</text>
      </g>
      ${marks.map(({ at, words }) => {
        const right = across.at(at) > width * 0.6;
        return html`<g class="mark"><path d=${`M${across.at(at)} ${EDGE.top}V${HEIGHT - EDGE.bottom}`} />
          <text x=${across.at(at) + (right ? -5 : 5)} y=${EDGE.top + 12} text-anchor=${right ? "end" : "start"}>${words}</text></g>`;
      })}
      ${drawn.map((each) => html`<path class=${`series ${each.sort}`} d=${path(each)} />`)}
    </svg></div>
    <${ChartTable} name=${`${title} as a table`} head=${[xName, "series", yName]} rows=${drawn.flatMap((each) => rowsOf(each, say))} />
  </figure>`;
}

/** Return rows for some of the points, evenly chosen and including the last one. */
function rowsOf({ name, points }, say) {
  const every = ceil(points.length / ROWS);
  return points.filter((_, at) => at % every === 0 || at === points.length - 1).map(([x, y]) => [say[0](x), name, say[1](y)]);
}

/**
 * Return { at(value): its pixel, ticks }. whole: the axis ends at a tick. Equal values, a single one, and zero have an
 * axis too.
 */
export function scale(values, log, [from, to], whole = false) {
  const positive = values.filter((value) => value > 0);
  const [low, high] = [Math.min(...positive), Math.max(...positive)];
  if (log && positive.length === values.length && high > DECADE * low) {
    const [first, last] = [floor(log10(low)), ceil(log10(high))];
    const ticks = Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at));
    return { at: (value) => from + ((log10(value) - first) / (last - first)) * (to - from), ticks };
  }
  const top = Math.max(...values, 0) || 1;
  const step = nice(top / Math.max(2, floor(Math.abs(to - from) / (whole ? 45 : 100))));
  const end = whole ? step * ceil(top / step - 1e-9) : top;
  const ticks = Array.from({ length: floor(end / step + 1e-9) + 1 }, (_, at) => at * step);
  return { at: (value) => from + (value / end) * (to - from), ticks };
}

/** Return the next of 1, 2, 5 times a power of ten. */
function nice(value) {
  const power = 10 ** floor(log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999999);
}
