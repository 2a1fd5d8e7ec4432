// The roofline: FLOP/s over FLOP a byte, both in decades. The dot is the decode step of all users, and can be dragged; so
// can the wall, beyond which no number of users gets at this context. Ceilings are drawn before what stands under them.

import { html, useMemo, useRef, useState } from "page/dom.js";
import { contextFor, doublingsOf, longestContext, MOST_USERS, withContext } from "page/calc_case.js";
import { ChartTable, useWidth } from "page/chart_parts.js";
import { grouped, say, saySeconds, three } from "page/numbers.js";

const [LEFT, RIGHT] = [0.5, 4000]; // FLOP a byte
const EDGE = { left: 52, right: 14, top: 16, bottom: 34 };
const ROOM = 100; // pixels that a name takes
const NARROW = 480;
const { log10 } = Math;

/** ghost: a Setting to compare with, or null. touched: whether the dot was moved before. */
export function Roofline({ setting, ghost, touched, onChange, prefill }) {
  const [box, width] = useWidth(720);
  const height = Math.round(Math.min(460, Math.max(280, width * 0.52)));
  const { card, decode, context, state, wall } = setting;
  const bandwidth = card.bandwidth;
  const roof = decode.ridge * bandwidth;
  const ceilings = ceilingsOf(card, roof);
  const [low, high] = [bandwidth * LEFT * 0.55, Math.max(roof, ...ceilings.map((each) => each.peak)) * 2.4];
  const x = (value) => EDGE.left + (log10(clamp(value, LEFT, RIGHT) / LEFT) / log10(RIGHT / LEFT)) * (width - EDGE.left - EDGE.right);
  const y = (value) => height - EDGE.bottom - (log10(clamp(value, low, high) / low) / log10(high / low)) * (height - EDGE.top - EDGE.bottom);
  const per = log10(RIGHT / LEFT) / (width - EDGE.left - EDGE.right); // decades a pixel
  const under = (intensity) => Math.min(roof, intensity * bandwidth);
  const at = { x: x(decode.intensity), y: y(under(decode.intensity)) };
  const frame = { x, y, width, height, low, high };
  const doublings = useMemo(() => doublingsOf(setting), [setting.serving]); // they crowd before the wall
  const dots = [...classDots(decode, "decode"), ...(prefill ? classDots(prefill, "prefill") : [])];
  return html`<figure class="roofline" ref=${box}>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="Roofline">
      <${Axes} ...${frame} />
      ${card.caches.map((cache) => html`<${Slope} ...${{ frame, roof, name: cache.name, bandwidth: cache.bandwidth }} />`)}
      ${ceilings.map(
        (each) => html`<g class="ceiling faint" key=${each.names}>
          <path d=${`M${x(each.peak / bandwidth)} ${y(each.peak)}H${width - EDGE.right}`} />
          <text x=${width - EDGE.right} y=${y(each.peak) - 5} text-anchor="end">${each.names}</text>
        </g>`,
      )}
      <path class="under" d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(decode.ridge)} ${y(roof)}H${width - EDGE.right}V${height - EDGE.bottom}H${x(LEFT)}Z`} />
      <path class="memory" d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(decode.ridge)} ${y(roof)}`} />
      <path class="compute" d=${`M${x(decode.ridge)} ${y(roof)}H${width - EDGE.right}`} />
      <text class="roof compute" x=${width - EDGE.right} y=${y(roof) - 6} text-anchor="end">${say(roof, "FLOP/s")}</text>
      <${SlopeName} ...${{ frame, bandwidth, words: `${say(bandwidth, "B/s")}` }} />
      <${Ridge} ...${{ frame, ridge: decode.ridge, roof }} />
      ${named(dots, frame, at).map((dot) => html`<${ClassDot} ...${{ frame, dot }} key=${`${dot.phase} ${dot.kind}`} />`)}
      ${doublings.map(
        (each) => html`<circle class="step" key=${each.users} cx=${x(each.intensity)} cy=${y(under(each.intensity))} r="2.2" />`,
      )}
      <${Wall} ...${{ frame, setting, wall, roof: under(wall), per, onChange }} />
      ${ghost && html`<${Ghost} ...${{ frame, ghost }} />`}
      <path class="drop" d=${`M${at.x} ${at.y}V${y((under(decode.intensity) * decode.seconds.floor) / decode.seconds.expected)}`} />
      <${UsersHandle} ...${{ at, frame, setting, per, touched, onChange }} />
    </svg>
    <figcaption>
      <span class="legend decode">decode</span><span class="legend prefill">prefill</span>
      <span>of each sort of operation, as expected; the stroke under the dot ends where the step is expected</span>
    </figcaption>
    <${ChartTable} name="Roofline as a table" head=${HEAD} rows=${dots.map((dot) => rowOf(dot))} />
  </figure>`;
}

const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/** The card's other ceilings, one for formats that share it. */
function ceilingsOf(card, roof) {
  const peaks = new Map();
  for (const [format, peak] of Object.entries(card.peaks)) peaks.set(peak, [...(peaks.get(peak) ?? []), format]);
  return [...peaks].map(([peak, formats]) => ({ peak, names: formats.join(", ") })).filter((each) => Math.abs(log10(each.peak / roof)) > 0.06);
}

function classDots(phase, name) {
  return phase.classes
    .filter((each) => each.flops > 0)
    .map((each) => ({ ...each, phase: name, intensity: each.flops / each.bytes, reached: each.flops / each.expected }));
}

/** Which of them say their names: those that take long, where none that takes longer, nor the dot, stands there. */
function named(dots, frame, at) {
  const taken = [at];
  return dots.map((dot) => {
    const [x, y] = [frame.x(dot.intensity), frame.y(dot.reached)];
    const free = dot.share > 0.05 && taken.every((other) => Math.abs(other.x - x) > 55 || Math.abs(other.y - y) > 30);
    if (free) taken.push({ x, y });
    return { ...dot, named: free };
  });
}

const HEAD = ["operation", "phase", "FLOP", "bytes", "FLOP/B", "bound", "expected", "limit"];

function rowOf(dot) {
  const { kind, phase, flops, bytes, intensity, bound, expected, limit } = dot;
  return [kind, phase, say(flops, "FLOP"), say(bytes, "B"), three(intensity), saySeconds(bound), saySeconds(expected), limit];
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
        <text x=${EDGE.left - 6} y=${y(value) + 4} text-anchor="end">${say(value, "").trim()}</text>`,
    )}
    <text x=${width - EDGE.right} y=${height - 3} text-anchor="end">FLOP a byte</text>
    <text x=${2} y=${10}>FLOP/s</text>
  </g>`;
}

function Slope({ frame, roof, name, bandwidth }) {
  const { x, y } = frame;
  const top = roof / bandwidth;
  return html`<g class="slope faint">
    <path d=${`M${x(LEFT)} ${y(LEFT * bandwidth)}L${x(top)} ${y(roof)}`} />
    <text x=${x(LEFT) + 4} y=${y(LEFT * bandwidth * 1.5) - 4}>${name}</text>
  </g>`;
}

/** Along the slope, in its own direction. */
function SlopeName({ frame, bandwidth, words }) {
  const [from, to] = [3, 30].map((value) => [frame.x(value), frame.y(value * bandwidth)]);
  const angle = (Math.atan2(to[1] - from[1], to[0] - from[0]) * 180) / Math.PI;
  return html`<text class="roof memory" transform=${`translate(${from[0]} ${from[1] - 9}) rotate(${angle})`}>${words}</text>`;
}

function Ridge({ frame, ridge, roof }) {
  const [at, top] = [frame.x(ridge), frame.y(roof)];
  const bottom = frame.height - EDGE.bottom;
  return html`<g class="ridge">
    <path d=${`M${at} ${top}V${bottom}`} />
    <text x=${at + 7} y=${bottom - 26}>texts: batch ${three(ridge)}</text>
    <text x=${at + 7} y=${bottom - 10}>fills the card</text>
  </g>`;
}

function ClassDot({ frame, dot }) {
  const [cx, cy] = [frame.x(dot.intensity), frame.y(dot.reached)];
  return html`<g class=${`class ${dot.phase}`}>
    <title>${dot.phase}, ${dot.kind}: ${say(dot.flops, "FLOP")}, ${say(dot.bytes, "B")}, bound ${saySeconds(dot.bound)}, expected ${saySeconds(dot.expected)}</title>
    <circle cx=${cx} cy=${cy} r=${dot.share > 0.05 ? 4.5 : 3} />
    ${dot.named && html`<text x=${cx} y=${cy + 17} text-anchor="middle">${dot.kind}</text>`}
  </g>`;
}

function Ghost({ frame, ghost }) {
  const { decode, card, state } = ghost;
  const roof = decode.ridge * card.bandwidth;
  const [cx, cy] = [frame.x(decode.intensity), frame.y(Math.min(roof, decode.intensity * card.bandwidth))];
  return html`<g class="ghost" aria-hidden="true">
    <path d=${`M${frame.x(LEFT)} ${frame.y(LEFT * card.bandwidth)}L${frame.x(decode.ridge)} ${frame.y(roof)}H${frame.width - EDGE.right}`} />
    <circle cx=${cx} cy=${cy} r="8" /><text x=${cx + 12} y=${cy - 8}>${people(state.users)}, ${card.name}</text>
  </g>`;
}

export function people(users) {
  return users === 1 ? "one user" : `${grouped(users)} users`;
}

/** What a handle of a chart needs to be dragged and to go by keys, as a slider of WAI-ARIA does. go(decades): of a drag
 * since it began; step(event's key) gives another value or undefined. */
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

function UsersHandle({ at, frame, setting, per, touched, onChange }) {
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
    aria-valuetext=${`${people(users)}, ${three(setting.decode.intensity)} FLOP a byte`}>
    <circle class="reach" r="22" /><circle class="dot" r="8" />
    <text class="name" x=${at.x < ROOM ? 8 : -12} y="-14" text-anchor=${at.x < ROOM ? "start" : "end"}>${people(users)}</text>
    ${!touched && html`<g class="hint"><rect x="16" y="3" width="74" height="24" rx="12" /><text x="53" y="19" text-anchor="middle">drag me</text></g>`}
  </g>`;
}

function Wall({ frame, setting, wall, roof, per, onChange }) {
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
  const limit = wall > RIGHT ? grouped(wall) : three(wall);
  const narrow = frame.width < NARROW;
  const right = at > frame.width - EDGE.right - (narrow ? ROOM : 170);
  const said = [`context ${grouped(context)}:`, ...(narrow ? ["no batch gets", `past ${limit}`] : [`no batch gets past ${limit}`])];
  const words = { x: right ? -10 : 10, "text-anchor": right ? "end" : "start" };
  return html`<g class="handle wall" ...${handle} aria-label="Context" aria-valuemin="2" aria-valuemax=${most} aria-valuenow=${context}
    aria-valuetext=${`${grouped(context)} tokens of context: no batch gets past ${three(wall)} FLOP a byte`} transform=${`translate(${at} 0)`}>
    <rect class="reach" x="-14" y=${top} width="28" height=${bottom - top} />
    <path d=${`M0 ${top}V${bottom}`} /><rect class="grip" x="-4" y=${(top + bottom) / 2 - 14} width="8" height="28" rx="4" />
    ${said.map((line, place) => html`<text ...${words} y=${(top + bottom) / 2 - 4 + 17 * place}>${line}</text>`)}
  </g>`;
}
