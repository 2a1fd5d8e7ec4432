// A step over time: all its ops in real proportion, to be scrubbed through, and a strip for each layer. Filled:
// measured. Outlined: predicted. Colour: the limit of the op. Grey: time outside ops.

import { html, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { percent, say_seconds, seconds } from "page/numbers.js";
import { intervalOf } from "page/predicted.js";
import { partAt, slowness, windowAround } from "page/token_recording.js";

const WIDTH = 1000;
const ZOOMS = [1, 2, 4, 8, 16, 32, 64];
const STRIP = 26;

/** place: the index of the selected op. */
export function StepChart({ step, place, active, onPlace }) {
  const [zoom, setZoom] = useState(1);
  const [playing, setPlaying] = usePlaying(step, active, onPlace);
  const zoomBy = (by) => setZoom((now) => ZOOMS[Math.min(Math.max(0, ZOOMS.indexOf(now) + by), ZOOMS.length - 1)]);
  const op = step.ops[place];
  const go = (next) => {
    setPlaying(false);
    onPlace(next);
  };
  const keys = { a: () => go(place - 1), d: () => go(place + 1), w: () => zoomBy(1), s: () => zoomBy(-1) };
  const onKeyDown = (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const pick = (event) => {
    const found = event.target.dataset?.op;
    if (found !== undefined) go(Number(found));
  };
  return html`<div class="scrubber" onKeyDown=${onKeyDown}>
    <${Timeline} ...${{ step, place, zoom, pick }} />
    <input
      type="range"
      aria-label="Op of the step"
      aria-valuetext=${`${where(op)} ${op.name}, ${say_seconds(op.measured)}`}
      min="0"
      max=${step.ops.length - 1}
      step="1"
      value=${place}
      onInput=${(event) => go(Number(event.target.value))}
    />
    <div class="acts">
      <button type="button" class="quiet" onClick=${() => go(place - 1)} disabled=${place === 0}>Back <kbd>A</kbd></button>
      <button type="button" class="quiet" onClick=${() => setPlaying(!playing)}>${playing ? "Pause" : `Play, ${slowness(step.length).toLocaleString("en")} times slower`}</button>
      <button type="button" class="quiet" onClick=${() => go(place + 1)} disabled=${place === step.ops.length - 1}>Next <kbd>D</kbd></button>
      <span class="gap"></span>
      <button type="button" class="quiet" onClick=${() => zoomBy(1)} disabled=${zoom === ZOOMS.at(-1)}>Zoom in <kbd>W</kbd></button>
      <button type="button" class="quiet" onClick=${() => zoomBy(-1)} disabled=${zoom === 1}>Zoom out <kbd>S</kbd></button>
    </div>
    <${Lanes} ...${{ step, place, pick }} />
    <${Key} step=${step} />
    <${OpTable} step=${step} />
  </div>`;
}

function where(op) {
  return op.layer === null ? "" : `layer ${op.layer}`;
}

/** Return whether the step is being played. Playing ends with the step, and when the view is hidden. */
function usePlaying(step, active, onPlace) {
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing || !active) return undefined;
    const slow = slowness(step.length);
    let frame = 0;
    let shown = -1;
    let began = null;
    const move = (now) => {
      began ??= now;
      const time = (now - began) / 1000 / slow;
      if (time >= step.length) {
        setPlaying(false);
        return;
      }
      const { op } = partAt(step, time);
      if (op !== undefined && op !== shown) {
        shown = op;
        onPlace(op);
      }
      frame = requestAnimationFrame(move);
    };
    frame = requestAnimationFrame(move);
    return () => cancelAnimationFrame(frame);
  }, [playing, active, step]);
  return [playing && active, setPlaying];
}

function roofOf(op) {
  return op.impossible ? "impossible" : op.limit;
}

/** Show the whole step, or a part. */
function Timeline({ step, place, zoom, pick }) {
  const [from, to] = windowAround(step, place, zoom);
  const x = (time) => ((time - from) / (to - from)) * WIDTH;
  const seen = step.parts.filter((part) => part.begin + part.seconds >= from && part.begin <= to);
  return html`<figure class="timeline">
    <svg viewBox=${`0 0 ${WIDTH} 44`} preserveAspectRatio="none" aria-hidden="true" onClick=${pick}>
      ${seen.map((part) => {
        const own = part.op === undefined ? "none" : roofOf(step.ops[part.op]);
        const wide = Math.max(0.4, x(part.begin + part.seconds) - x(part.begin));
        return html`<rect key=${part.begin} class=${`roof-${own}${part.op === place ? " looked" : ""}`} data-op=${part.op} x=${x(part.begin)} y="4" width=${wide} height="36"><title>${part.name}: ${say_seconds(part.seconds)}</title></rect>`;
      })}
    </svg>
    <figcaption class="ends"><span>${say_seconds(from)}</span><span>${say_seconds(to)}</span></figcaption>
  </figure>`;
}

/** Show a strip for each layer, all to one scale. */
function Lanes({ step, place, pick }) {
  const scale = Math.max(...step.lanes.map((lane) => Math.max(lane.measured, lane.expected)));
  const here = useRef(null);
  useEffect(() => {
    const row = here.current;
    const box = row?.parentElement.parentElement;
    if (box && box.scrollHeight > box.clientHeight) box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }, [place]);
  return html`<div class="lanes" tabindex="0" role="group" aria-label="Layers">
    <ol>
      ${step.lanes.map((lane) => {
        const chosen = lane.places.includes(place);
        return html`<li key=${lane.places[0]} class=${chosen ? "chosen" : ""} ref=${chosen ? here : null}>
          <span class="title">${lane.title}</span>
          <${Strip} ...${{ step, lane, scale, pick }} place=${chosen ? place : -1} />
          <span class="dim">${say_seconds(lane.measured)}</span>
        </li>`;
      })}
    </ol>
  </div>`;
}

function Strip({ step, lane, scale, place, pick }) {
  const boxes = useMemo(() => boxesOf(step, lane, scale), [step, scale]);
  return html`<svg class="strip" viewBox=${`0 0 ${WIDTH} ${STRIP}`} preserveAspectRatio="none" aria-hidden="true" onClick=${pick}>
    ${boxes.map(
      ({ op, at, begin, wide, expectedBegin, expectedWide }) => html`
        <rect key=${`f${at}`} class=${`roof-${roofOf(op)}${at === place ? " looked" : ""}`} data-op=${at} x=${begin} y="10" width=${wide} height="15"><title>${op.name}: ${say_seconds(op.measured)} of ${say_seconds(op.expected)} expected</title></rect>
        <rect key=${`o${at}`} class=${`outline-${op.limit}`} data-op=${at} x=${expectedBegin} y="1" width=${expectedWide} height="7" />
      `,
    )}
  </svg>`;
}

/** Return the boxes of a lane: the measured ones one after the other, and the predicted ones above them. */
function boxesOf(step, lane, scale) {
  let [begin, expectedBegin] = [0, 0];
  return lane.places.map((at) => {
    const op = step.ops[at];
    const [wide, expectedWide] = [op.measured, op.expected].map((value) => (value / scale) * WIDTH);
    const box = { op, at, begin, wide: Math.max(0.4, wide), expectedBegin, expectedWide };
    begin += wide;
    expectedBegin += expectedWide;
    return box;
  });
}

const ROOFS = { memory: "memory", compute: "arithmetic", communication: "the link", impossible: "impossible: shape, spec or timer" };

function Key({ step }) {
  const found = Object.keys(ROOFS).filter((roof) => step.ops.some((op) => roofOf(op) === roof));
  return html`<p class="key hint">
    ${found.map((roof) => html`<span key=${roof}><svg viewBox="0 0 10 10" aria-hidden="true"><rect class=${`roof-${roof}`} width="10" height="10" /></svg>${ROOFS[roof]}</span>`)}
    <span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="roof-none" width="10" height="10" /></svg>between ops</span>
    <span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="outline-memory" x="1" y="1" width="8" height="8" /></svg>outline: expected</span>
  </p>`;
}

function OpTable({ step }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary class="dim">Every op as a table</summary>
    ${open && html`<div class="scroll" tabindex="0" role="group" aria-label="Every op"><table class="facts">
      <thead><tr><th scope="col">op</th><th scope="col">layer</th><th scope="col">roof</th><th scope="col">bound</th><th scope="col">expected</th><th scope="col">measured</th><th scope="col">share of its roof</th></tr></thead>
      <tbody>
        ${step.ops.map((op, at) => html`<tr key=${at}>
          <th scope="row">${op.name}</th><td>${op.layer ?? ""}</td><td>${ROOFS[roofOf(op)] ?? ""}</td>
          <td>${seconds(op.bound)}s</td><td>${seconds(op.expected)}s</td><td>${seconds(op.measured)}s</td><td>${percent(op.reached)}</td>
        </tr>`)}
        ${Object.entries(step.overheads).map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td></td><td></td><td></td><td></td><td>${seconds(value)}s</td><td></td></tr>`)}
        <tr><th scope="row">the step</th><td></td><td></td><td>${seconds(step.bound)}s</td><td>${seconds(step.expected)}s${step.factors && html` <small>${intervalOf(step.expected, step.factors)}</small>`}</td><td>${seconds(step.measured)}s</td><td>${percent(step.bound / step.measured)}</td></tr>
      </tbody>
    </table></div>`}
  </details>`;
}
