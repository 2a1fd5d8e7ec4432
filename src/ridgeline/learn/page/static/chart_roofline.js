// The roofline: FLOP/s over FLOP/byte, both in decades. The dot is the decode step of all users, and can be dragged. So
// can the wall, which no number of users passes at this context. Roofs are drawn before what lies below them.

import { html, useMemo, useRef, useState } from "page/dom.js";
import { contextFor, doublingsOf, longestContext, MOST_USERS, withContext } from "page/calc_case.js";
import { Labels } from "page/chart_labels.js";
import { ChartTable, useWidth } from "page/chart_parts.js";
import { ErrorInterval_around_time } from "page/interval_formulas.js";
import { say, say_seconds, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";

const [LEFT, RIGHT] = [0.5, 4000]; // FLOP/byte
const EDGE = { left: 52, right: 14, top: 16, bottom: 34 };
const NARROW = 480;
const NAME = 15; // pixels of the letters of the dot's label
const HINT = "drag me....."; // a text as wide as its button
const { log10 } = Math;

/** ghost: a Setting to compare with, or null. touched: whether the dot was moved before. */
export function Roofline({ setting, ghost, touched, onChange, prefill }) {
  const [box, width] = useWidth(720);
  const height = Math.round(Math.min(460, Math.max(280, width * 0.52)));
  const { card, decode, context, state, wall, intervals } = setting;
  const bandwidth = card.bandwidth;
  const roof = decode.ridge * bandwidth;
  const ceilings = ceilingsOf(card, roof);
  const [low, high] = [bandwidth * LEFT * 0.55, Math.max(roof, ...ceilings.map((each) => each.peak)) * 2.4];
  const x = (value) => EDGE.left + (log10(clamp(value, LEFT, RIGHT) / LEFT) / log10(RIGHT / LEFT)) * (width - EDGE.left - EDGE.right);
  const y = (value) => height - EDGE.bottom - (log10(clamp(value, low, high) / low) / log10(high / low)) * (height - EDGE.top - EDGE.bottom);
  const per = log10(RIGHT / LEFT) / (width - EDGE.left - EDGE.right); // decades per pixel
  const under = (intensity) => Math.min(roof, intensity * bandwidth);
  const at = { x: x(decode.intensity), y: y(under(decode.intensity)) };
  const { expected, floor } = decode.seconds;
  const speedAfter = (seconds) => (under(decode.intensity) * floor) / Math.max(seconds, floor);
  const [fast, slow] = ErrorInterval_around_time(intervals.decode, expected, floor).map((seconds) => y(speedAfter(seconds)));
  const frame = { x, y, width, height, low, high };
  const doublings = useMemo(() => doublingsOf(setting), [setting.serving]); // they get closer and closer before the wall
  const dots = [...classDots(decode, "decode"), ...(prefill ? classDots(prefill, "prefill") : [])];
  // Labels are placed in the order of their importance; the hint next to the dot covers all others.
  const labels = new Labels({ left: EDGE.left, right: width, top: 0, bottom: height - EDGE.bottom });
  const users = nameOfUsers(labels, at, people(state.users));
  if (!touched) labels.take(HINT, { x: at.x + 16, y: at.y + 20 });
  const said = wallWords(labels, frame, setting, wall, under(wall));
  const roofName = labels.take(say(roof, "FLOP/s"), { x: width - EDGE.right, y: y(roof) - 6, anchor: "end" });
  const ridgeWords = nameOfRidge(labels, frame, decode.ridge);
  const slope = nameOfSlope(labels, frame, bandwidth, say(bandwidth, "B/s"));
  return html`<figure class="roofline" ref=${box}>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="Roofline">
      <${Axes} ...${frame} />
      ${card.caches.map((cache) => html`<${Slope} ...${{ frame, labels, roof, name: cache.name, bandwidth: cache.bandwidth }} />`)}
      ${ceilings.map(
        (each) => html`<g class="ceiling faint" key=${each.names}>
          <title>${each.names}: ${say(each.peak, "FLOP/s")}</title>
          <path d=${`M${x(each.peak / bandwidth)} ${y(each.peak)}H${width - EDGE.right}`} />
          <${Name} words=${each.names} place=${labels.place(each.names, [-5, 13].map((off) => ({ x: width - EDGE.right, y: y(each.peak) + off, anchor: "end" })))} />
        </g>`,
      )}
      <path class="under" d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(decode.ridge)} ${y(roof)}H${width - EDGE.right}V${height - EDGE.bottom}H${x(LEFT)}Z`} />
      <path class="memory" d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(decode.ridge)} ${y(roof)}`} />
      <path class="compute" d=${`M${x(decode.ridge)} ${y(roof)}H${width - EDGE.right}`} />
      <${Name} sort="roof compute" words=${say(roof, "FLOP/s")} place=${roofName} />
      ${slope && html`<text class="roof memory" transform=${`translate(${slope.x} ${slope.y}) rotate(${slope.angle})`}>${say(bandwidth, "B/s")}</text>`}
      <${Ridge} ...${{ frame, ridge: decode.ridge, roof, words: ridgeWords }} />
      ${named(dots, frame, at, labels).map((dot) => html`<${ClassDot} ...${{ frame, dot }} key=${`${dot.phase} ${dot.kind}`} />`)}
      ${doublings.map(
        (each) => html`<circle class="step" key=${each.users} cx=${x(each.intensity)} cy=${y(under(each.intensity))} r="2.2" />`,
      )}
      <${Wall} ...${{ frame, setting, wall, roof: under(wall), per, said, onChange }} />
      ${ghost && html`<${Ghost} ...${{ frame, labels, ghost }} />`}
      <path class="drop" d=${`M${at.x} ${at.y}V${y(speedAfter(decode.seconds.expected))}`} />
      <path class="range" d=${`M${at.x} ${fast}V${slow}${[fast, slow].map((end) => `M${at.x - 5} ${end}h10`).join("")}`} />
      <${UsersHandle} ...${{ at, frame, setting, per, touched, place: users, onChange }} />
    </svg>
    <figcaption>
      <span class="legend decode">decode</span><span class="legend prefill">prefill</span>
      <span>by kind of operation, as expected; the thick line below the dot ends at the step's expected speed, the thin one spans 8 of 10 measurements of such steps</span>
    </figcaption>
    <${ChartTable} name="Roofline as a table" head=${HEAD} rows=${dots.map((dot) => rowOf(dot))} />
  </figure>`;
}

const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/** Return the card's other roofs, one for formats that share it. */
function ceilingsOf(card, roof) {
  const peaks = new Map();
  for (const [format, peak] of Object.entries(card.peaks)) peaks.set(peak, [...(peaks.get(peak) ?? []), format]);
  return [...peaks].map(([peak, formats]) => ({ peak, names: formats.join(", ") })).filter((each) => Math.abs(log10(each.peak / roof)) > 0.06);
}

function classDots(phase, name) {
  return phase.classes
    .filter((each) => each.flops > 0)
    .map((each) => ({ ...each, phase: name, intensity: each.flops / each.nbytes, reached: each.flops / each.expected }));
}

/**
 * Return the dots with the places of their labels. Dots of long ops get a label, unless a longer one or the main dot is
 * near.
 */
function named(dots, frame, at, labels) {
  const taken = [at];
  return dots.map((dot) => {
    const [x, y] = [frame.x(dot.intensity), frame.y(dot.reached)];
    const free = dot.share > 0.05 && taken.every((other) => Math.abs(other.x - x) > 55 || Math.abs(other.y - y) > 30);
    const place = free ? labels.place(dot.kind, [17, -9].map((off) => ({ x, y: y + off, anchor: "middle" }))) : null;
    if (place) taken.push({ x, y });
    return { ...dot, place };
  });
}

function Name({ words, place, sort = "" }) {
  return place && html`<text class=${sort} x=${place.x} y=${place.y} text-anchor=${place.anchor ?? "start"}>${words}</text>`;
}

/** Return the place of the dot's label: to its left if there is room, otherwise to its right. */
function nameOfUsers(labels, { x, y }, words) {
  const places = [{ x: x - 12, y: y - 14, anchor: "end" }, { x: x + 8, y: y - 14 }, { x: x - 12, y: y + 26, anchor: "end" }];
  return labels.place(words, places, NAME) ?? labels.take(words, places[1], NAME);
}

/** Return the lines and the place of the wall's label: next to it, at half its height or a line or two off. */
function wallWords(labels, frame, { context }, wall, roof) {
  const limit = wall > RIGHT ? grouped(wall) : three_digits(wall);
  const lines = [`context ${grouped(context)}:`, ...(frame.width < NARROW ? ["no batch gets", `past ${limit}`] : [`no batch gets past ${limit}`])];
  const [at, middle] = [frame.x(wall), (frame.y(roof) + frame.height - EDGE.bottom) / 2 - 4];
  const places = [0, -36, 36, -72].flatMap((off) => [{ x: at + 10, y: middle + off }, { x: at - 10, y: middle + off, anchor: "end" }]);
  return { lines, place: labels.place(lines, places) ?? places[1] };
}

/** Return the lines and the place of the ridge's label: at its foot, or higher if other labels are there. */
function nameOfRidge(labels, frame, ridge) {
  const lines = [`textbooks: batch ${three_digits(ridge)}`, "is compute-bound"];
  const [at, foot] = [frame.x(ridge), frame.height - EDGE.bottom - 26];
  const places = [0, -34, -68].flatMap((off) => [{ x: at + 7, y: foot + off }, { x: at - 7, y: foot + off, anchor: "end" }]);
  return { lines, place: labels.place(lines, places) };
}

/** Return the place of the slope's label: along the first part of the slope that no other label covers. */
function nameOfSlope(labels, frame, bandwidth, words) {
  const at = (value) => ({ x: frame.x(value), y: frame.y(value * bandwidth) });
  const angle = (Math.atan2(at(30).y - at(3).y, at(30).x - at(3).x) * 180) / Math.PI;
  for (const from of [3, 8, 20, 0.7]) {
    const { x, y } = at(from);
    const turned = [...words].map((letter, place) => [letter, { x: x + 7 * place * Math.cos((angle * Math.PI) / 180), y: y - 9 + 7 * place * Math.sin((angle * Math.PI) / 180) }]);
    if (!labels.isFree(...turned)) continue;
    turned.forEach(([letter, place]) => labels.take(letter, place));
    return { x, y: y - 9, angle };
  }
  return null;
}

const HEAD = ["operation", "phase", "FLOP", "bytes", "FLOP/B", "bound", "expected", "limit"];

function rowOf(dot) {
  const { kind, phase, flops, nbytes, intensity, bound, expected, limit } = dot;
  return [kind, phase, say(flops, "FLOP"), say(nbytes, "B"), three_digits(intensity), say_seconds(bound), say_seconds(expected), limit];
}

function Axes({ x, y, width, height, low, high }) {
  const marks = (from, to) => {
    const found = [];
    for (let power = Math.ceil(log10(from)); 10 ** power <= to; power++) found.push(10 ** power);
    return found;
  };
  return html`<g class="axes">
    ${marks(LEFT, RIGHT).map(
      (value) => html`<path d=${`M${x(value)} ${EDGE.top}V${height - EDGE.bottom}`} />
        <text x=${x(value)} y=${height - EDGE.bottom + 15} text-anchor="middle">${grouped(value)}</text>`,
    )}
    ${marks(low, high).map(
      (value) => html`<path d=${`M${EDGE.left} ${y(value)}H${width - EDGE.right}`} />
        ${y(value) > EDGE.top + 8 && html`<text x=${EDGE.left - 6} y=${y(value) + 4} text-anchor="end">${say(value, "").trim()}</text>`}`,
    )}
    <text x=${width - EDGE.right} y=${height - 3} text-anchor="end">FLOP/byte</text>
    <text x=${2} y=${10}>FLOP/s</text>
  </g>`;
}

function Slope({ frame, labels, roof, name, bandwidth }) {
  const { x, y } = frame;
  const top = roof / bandwidth;
  return html`<g class="slope faint">
    <path d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(top)} ${y(roof)}`} />
    <title>${name}: ${say(bandwidth, "B/s")}</title>
    <${Name} words=${name} place=${labels.place(name, [1.5, 4, 10].map((times) => ({ x: x(LEFT * times) + 4, y: y(LEFT * bandwidth * times * 1.5) - 4 })))} />
  </g>`;
}

function Ridge({ frame, ridge, roof, words: { lines, place } }) {
  const [at, top] = [frame.x(ridge), frame.y(roof)];
  const bottom = frame.height - EDGE.bottom;
  return html`<g class="ridge">
    <path d=${`M${at} ${top}V${bottom}`} />
    ${place && lines.map((line, row) => html`<${Name} words=${line} place=${{ ...place, y: place.y + 16 * row }} />`)}
  </g>`;
}

function ClassDot({ frame, dot }) {
  const [cx, cy] = [frame.x(dot.intensity), frame.y(dot.reached)];
  return html`<g class=${`class ${dot.phase}`}>
    <title>${dot.phase}, ${dot.kind}: ${say(dot.flops, "FLOP")}, ${say(dot.nbytes, "B")}, bound ${say_seconds(dot.bound)}, expected ${say_seconds(dot.expected)}</title>
    <circle cx=${cx} cy=${cy} r=${dot.share > 0.05 ? 4.5 : 3} />
    <${Name} words=${dot.kind} place=${dot.place} />
  </g>`;
}

function Ghost({ frame, labels, ghost }) {
  const { decode, card, state } = ghost;
  const roof = decode.ridge * card.bandwidth;
  const [cx, cy] = [frame.x(decode.intensity), frame.y(Math.min(roof, decode.intensity * card.bandwidth))];
  const words = `${people(state.users)}, ${card.name}`;
  const places = [-8, 20, -24, 36].flatMap((off) => [{ x: cx + 12, y: cy + off }, { x: cx - 12, y: cy + off, anchor: "end" }]);
  return html`<g class="ghost" aria-hidden="true">
    <path d=${`M${frame.x(LEFT)} ${frame.y(LEFT * card.bandwidth)}L${frame.x(decode.ridge)} ${frame.y(roof)}H${frame.width - EDGE.right}`} />
    <circle cx=${cx} cy=${cy} r="8" /><${Name} words=${words} place=${labels.place(words, places) ?? places[1]} />
  </g>`;
}

export function people(users) {
  return users === 1 ? "one user" : `${grouped(users)} users`;
}

/**
 * Return the attributes of a handle that can be dragged and moved by keys, like a slider of WAI-ARIA. go(decades):
 * called with the distance since the drag began. step(event's key): returns another value or undefined.
 */
function useHandle({ per, begin, go, step }) {
  const [held, hold] = useState(null);
  return {
    held: held !== null,
    tabindex: 0,
    role: "slider",
    onPointerDown: (event) => {
      event.preventDefault();
      event.currentTarget.setPointerCapture(event.pointerId);
      event.currentTarget.focus();
      hold({ from: event.clientX, value: begin() });
    },
    onPointerMove: (event) => held && go(held.value, (event.clientX - held.from) * per),
    onPointerUp: () => hold(null),
    onPointerCancel: () => hold(null),
    onKeyDown: (event) => {
      if (step(event.key) === undefined) return;
      event.preventDefault();
    },
  };
}

function UsersHandle({ at, setting, per, touched, place, onChange }) {
  const { users } = setting.state;
  const put = (value) => onChange({ users: Math.round(clamp(value, 1, MOST_USERS)) });
  const handle = useHandle({
    per,
    begin: () => users,
    go: (from, decades) => put(from * 10 ** decades),
    step: (key) => {
      const next = { ArrowRight: users * 1.19 + 0.5, ArrowUp: users * 1.19 + 0.5, ArrowLeft: users / 1.19 - 0.5, ArrowDown: users / 1.19 - 0.5, PageUp: users * 2, PageDown: users / 2, Home: 1, End: MOST_USERS }[key];
      if (next !== undefined) put(next);
      return next;
    },
  });
  return html`<g class="handle users" ...${handle} transform=${`translate(${at.x} ${at.y})`}
    aria-label="Users" aria-valuemin="1" aria-valuemax=${MOST_USERS} aria-valuenow=${users}
    aria-valuetext=${`${people(users)}, ${three_digits(setting.decode.intensity)} FLOP/byte`}>
    <circle class="reach" r="22" /><circle class="dot" r="8" />
    <${Name} sort="name" words=${people(users)} place=${{ ...place, x: place.x - at.x, y: place.y - at.y }} />
    ${!touched && html`<g class="hint"><rect x="16" y="3" width="74" height="24" rx="12" /><text x="53" y="19" text-anchor="middle">drag me</text></g>`}
  </g>`;
}

function Wall({ frame, setting, wall, roof, per, said: { lines, place }, onChange }) {
  const { asked, context, state, table } = setting;
  const start = useRef(null);
  const most = useMemo(() => longestContext(table, state), [table, state.input, state.output]);
  const put = (value) => onChange(withContext(start.current ?? state, Math.round(clamp(value, 2, most))));
  const handle = useHandle({
    per,
    begin: () => {
      start.current = { input: state.input, output: state.output };
      return Math.min(wall, RIGHT);
    },
    go: (from, decades) => put(contextFor(asked, from * 10 ** decades, most)),
    step: (key) => {
      start.current = null;
      const next = { ArrowRight: context / 1.1 - 1, ArrowUp: context * 1.1 + 1, ArrowLeft: context * 1.1 + 1, ArrowDown: context / 1.1 - 1, PageUp: context * 2, PageDown: context / 2, Home: 2, End: most }[key];
      if (next !== undefined) put(next);
      return next;
    },
  });
  const [at, bottom] = [frame.x(wall), frame.height - EDGE.bottom];
  const top = frame.y(roof);
  return html`<g class="handle wall" ...${handle} aria-label="Context" aria-valuemin="2" aria-valuemax=${most} aria-valuenow=${context}
    aria-valuetext=${`${grouped(context)} tokens of context: no batch gets past ${three_digits(wall)} FLOP/byte`} transform=${`translate(${at} 0)`}>
    <rect class="reach" x="-14" y=${top} width="28" height=${bottom - top} />
    <path d=${`M0 ${top}V${bottom}`} /><rect class="grip" x="-4" y=${(top + bottom) / 2 - 14} width="8" height="28" rx="4" />
    ${lines.map((line, row) => html`<${Name} words=${line} place=${{ ...place, x: place.x - at, y: place.y + 17 * row }} />`)}
  </g>`;
}
