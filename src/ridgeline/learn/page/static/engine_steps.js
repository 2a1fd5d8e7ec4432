// The strip of the last steps. Above: the positions that each ran, single ones and chunks of prompts stacked. Below:
// the measured seconds as a bar, and the predicted ones as an outline.

import { html, useCallback, useState } from "page/dom.js";
import { Canvas, useWidth } from "page/canvas.js";
import { percent, say_seconds } from "page/numbers.js";
import { phaseOf, sayPredicted } from "page/predicted.js";
import { grouped } from "page/python.js";

const SLOTS = 120;
const TOP = 70; // CSS pixels of the upper half
const GAP = 12;
const HEIGHT = 160;

export function StepStrip({ engine, revision }) {
  const [place, width] = useWidth();
  const [looked, setLooked] = useState(null); // the number of a step
  const { steps } = engine;
  const scales = scalesOf(steps);
  const slot = width / SLOTS;
  const first = SLOTS - steps.length;
  const paint = useCallback((context, ink) => paintSteps(context, ink, steps, width, scales), [revision, width]);
  const at = steps.findIndex(({ step }) => step === looked);
  const onPoint = (x) => setLooked(x === null ? null : (steps[Math.floor(x / slot) - first]?.step ?? null));
  const onKey = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = at < 0 ? steps.length - 1 : Math.max(0, Math.min(steps.length - 1, at + by));
    setLooked(steps[next]?.step ?? null);
  };
  return html`<section class="card steps" aria-labelledby="steps-title">
    <h2 id="steps-title">Steps <small>the last ${SLOTS}</small></h2>
    <p class="key">
      <span class="decode">single positions</span> <span class="chunk">chunks of prompts</span>
      <span class="dim">to ${grouped(scales.positions)} positions</span>
      <span class="measured">measured</span> <span class="predicted">predicted</span>
      <span class="dim">to ${say_seconds(scales.seconds)}</span>
    </p>
    <div class="chart" ref=${place}>
      ${width > 0 &&
      html`<${Canvas} name=${nameOf(steps)} ...${{ width, height: HEIGHT, revision, paint, onPoint, onKey }} />`}
      ${at >= 0 && html`<span class="cursor" style=${cursorOf(first + at, slot)} />`}
    </div>
    <output class="looked json" aria-live=${looked === null ? "off" : "polite"}>
      ${at >= 0 ? html`<code>${JSON.stringify(steps[at])}</code>` : "Point at a step to read it as JSON."}
    </output>
    <${Table} steps=${steps} intervals=${engine.intervals} />
  </section>`;
}

function nameOf(steps) {
  const taken = steps.reduce((sum, each) => sum + each.seconds, 0);
  const ran = steps.reduce((sum, each) => sum + each.positions, 0);
  return `The last ${steps.length} steps ran ${grouped(ran)} positions in ${say_seconds(taken)}. Arrow keys go from step to step.`;
}

function cursorOf(at, slot) {
  return { left: `${at * slot}px`, top: "0", width: `${slot}px`, height: `${HEIGHT}px` };
}

/**
 * Return the scale of each half. It is a round number, so that it does not change with every step. A few steps may be
 * far longer than all others; they are cut off and marked.
 */
function scalesOf(steps) {
  const most = (numbers, least) => {
    const sorted = [...numbers].sort((one, other) => one - other);
    const usual = sorted[Math.floor(0.97 * (sorted.length - 1))] ?? 0;
    const longest = sorted[sorted.length - 1] ?? 0;
    return roundUp(Math.max(least, longest < 3 * usual ? longest : 1.3 * usual));
  };
  return {
    positions: most(steps.map(({ positions }) => positions), 8),
    seconds: most(steps.flatMap(({ seconds, predicted }) => [seconds, predicted ?? 0]), 1e-6),
  };
}

/** Return the next of 1, 2, 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((each) => each * power >= value * 0.999999);
}

function paintSteps(context, ink, steps, width, scales) {
  context.clearRect(0, 0, width, HEIGHT);
  const slot = width / SLOTS;
  const bar = Math.max(1, slot * 0.8);
  const low = HEIGHT - 1;
  context.fillStyle = ink.rule;
  context.fillRect(0, TOP, width, 1);
  context.fillRect(0, low, width, 1);
  context.strokeStyle = ink.ink;
  context.lineWidth = 1;
  steps.forEach((step, index) => {
    const x = (SLOTS - steps.length + index) * slot;
    const height = (count) => Math.min(1, count / scales.positions) * TOP;
    const decodes = height(step.decodes);
    const chunks = Math.min(TOP - decodes, height(step.positions - step.decodes));
    context.fillStyle = ink.memory;
    context.fillRect(x, TOP - decodes, bar, decodes);
    context.fillStyle = ink.compute;
    context.fillRect(x, TOP - decodes - chunks, bar, chunks);
    const tall = (seconds) => (HEIGHT - TOP - GAP) * Math.min(1, seconds / scales.seconds);
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.85;
    context.fillRect(x, low - tall(step.seconds), bar, tall(step.seconds));
    context.globalAlpha = 1;
    if (step.positions > scales.positions) paintCut(context, ink, x, bar, 0);
    if (step.seconds > scales.seconds) paintCut(context, ink, x, bar, TOP + GAP);
    if (step.predicted === null) return;
    context.beginPath();
    context.moveTo(x + 0.5, low);
    context.lineTo(x + 0.5, low - tall(step.predicted));
    context.lineTo(x + bar - 0.5, low - tall(step.predicted));
    context.lineTo(x + bar - 0.5, low);
    context.stroke();
  });
}

/** Paint a gap in a bar that is too long for the chart. */
function paintCut(context, ink, x, bar, top) {
  context.fillStyle = ink.card;
  context.fillRect(x, top + 4, bar, 2);
}

/** Show the same as a table, which is created when it is opened. */
function Table({ steps, intervals }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>As a table</summary>
    ${open &&
    html`<div class="scroll tall" tabindex="0" role="region" aria-label="Steps as a table"><table>
      <thead>
        <tr>
          ${["step", "sequences", "positions", "of chunks", "measured", "predicted", "predicted / measured"].map(
            (name) => html`<th scope="col">${name}</th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${[...steps].reverse().map(
          (each) => html`<tr key=${each.step}>
            <th scope="row">${grouped(each.step)}</th>
            <td>${grouped(each.sequences)}</td>
            <td>${grouped(each.positions)}</td>
            <td>${grouped(each.positions - each.decodes)}</td>
            <td>${say_seconds(each.seconds)}</td>
            <td>${each.predicted === null ? "–" : sayPredicted(each.predicted, intervals[phaseOf(each)])}</td>
            <td>${each.predicted === null ? "–" : percent(each.predicted / each.seconds)}</td>
          </tr>`,
        )}
      </tbody>
    </table></div>`}
  </details>`;
}
