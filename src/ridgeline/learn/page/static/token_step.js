// What a step took beside its price, and what makes it up: its ops, and the rows that no op has.

import { html } from "page/dom.js";
import { percent, saySeconds } from "page/numbers.js";

export function StepFacts({ recording, step }) {
  const ops = step.ops.reduce((sum, op) => sum + op.measured, 0);
  const rows = [["its ops", ops], ...Object.entries(step.overheads), ["the step", step.measured]];
  const left = step.left_out ? `, ${step.left_out} were left out: other processes interrupted them` : "";
  return html`
    <table class="facts sums">
      <caption class="unseen">What the step took</caption>
      <tbody>
        ${rows.map(([name, value], at) => html`<tr key=${name} class=${at === rows.length - 1 ? "sum" : ""}><th scope="row">${name}</th><td>${saySeconds(value)}</td><td>${percent(value / step.measured)}</td></tr>`)}
      </tbody>
    </table>
    <p>Expected ${saySeconds(step.expected)}, at its roof ${saySeconds(step.bound)}, nothing can beat ${saySeconds(step.floor)}. ${sentence(step.slowest)}</p>
    ${recording.impossible.map((line) => html`<p class="trouble" key=${line}>Impossible: ${line}</p>`)}
    <p class="hint">
      Medians of ${step.repeats} runs${left}. ${step.recorded ? "The engine makes this step again as a recording: no Python runs between its ops. " : ""}
      ${basis(recording.device)} All of it took the engine ${saySeconds(recording.pause)}${recording.pause_expected ? ` (${saySeconds(recording.pause_expected)} were expected after its first steps)` : ""}, in which nothing else ran.
    </p>
  `;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function basis({ title, calibrated, at_hand: own }) {
  if (!own) return `Priced on ${title}, which did not measure it: its floors bound nothing here.`;
  return calibrated ? `Priced on ${title}, as calibrated.` : `Priced on ${title} by a rough probe; ridgeline calibrate says it better.`;
}
