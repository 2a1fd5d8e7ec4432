// The measured and predicted time of a step, and its parts: the ops, and the time outside ops.

import { html } from "page/dom.js";
import { percent, say_seconds } from "page/numbers.js";
import { sayPredicted } from "page/predicted.js";

export function StepFacts({ recording, step }) {
  const ops = step.ops.reduce((sum, op) => sum + op.measured, 0);
  const rows = [["its ops", ops], ...Object.entries(step.overheads), ["the step", step.measured]];
  const left = step.left_out ? `, ${step.left_out} were left out, because other processes interrupted them` : "";
  return html`
    <table class="facts sums">
      <caption class="unseen">Time of the step</caption>
      <tbody>
        ${rows.map(([name, value], at) => html`<tr key=${name} class=${at === rows.length - 1 ? "sum" : ""}><th scope="row">${name}</th><td>${say_seconds(value)}</td><td>${percent(value / step.measured)}</td></tr>`)}
      </tbody>
    </table>
    <p>Expected ${sayPredicted(step.expected, step.factors)}, at its roof ${say_seconds(step.bound)}, physical limit ${say_seconds(step.floor)}. ${sentence(step.slowest)}</p>
    ${recording.impossible.map((line) => html`<p class="trouble" key=${line}>Impossible: ${line}</p>`)}
    <p class="hint">
      Medians of ${step.repeats} runs${left}. ${step.factors ? "[a .. b] holds 8 of 10 measurements of whole steps of such cases; those of single ops are unknown. " : ""}${step.recorded ? "The engine replays this step as a recording, in which no Python runs between the ops. " : ""}
      ${basis(recording.device)} The whole measurement took the engine ${say_seconds(recording.pause)}${recording.pause_expected ? ` (${say_seconds(recording.pause_expected)} were expected after its first steps)` : ""}, during which it ran nothing else.
    </p>
  `;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function basis({ title, calibrated, at_hand: own }) {
  if (!own) return `The prices are for ${title}, but another device was measured, so its floors are no limits here.`;
  return calibrated ? `The prices are for ${title}, calibrated.` : `The prices are for ${title}, after a rough probe; ridgeline calibrate makes them more accurate.`;
}
