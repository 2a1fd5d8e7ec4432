// One op of a step: shapes, FLOPs and bytes with their numbers, the limit that follows, and the times.

import { html } from "page/dom.js";
import { percent, say, say_seconds, three_digits } from "page/numbers.js";

const ROOF = { memory: "memory", compute: "arithmetic", communication: "the link between GPUs" };

export function OpCard({ step, op, device }) {
  return html`<aside class="card op" aria-label="The op">
    <h2><span class=${`dot roof-${op.impossible ? "impossible" : op.limit}`}></span>${op.name}</h2>
    <p class="dim">${op.kind}${op.layer === null ? "" : ` of layer ${op.layer}`}${op.what ? `: ${op.what}` : ""}</p>
    <table class="facts">
      <tbody>
        <tr><th scope="row">in</th><td>${op.inputs.map(shape).join(" ")}</td></tr>
        <tr><th scope="row">out</th><td>${op.outputs.map(shape).join(" ")}</td></tr>
        <tr><th scope="row">FLOPs</th><td>${say(op.flops, "FLOP")}</td></tr>
        <tr><th scope="row">bytes</th><td>${bytesOf(op)}</td></tr>
        <tr><th scope="row">intensity</th><td>${op.nbytes ? `${say(op.flops, "FLOP")} ÷ ${say(op.nbytes, "B")} = ${three_digits(op.intensity)} FLOP/B` : "no bytes"}</td></tr>
        <tr><th scope="row">arithmetic</th><td>${alone(op.flops, op.compute, "FLOP")}</td></tr>
        <tr><th scope="row">memory</th><td>${alone(op.nbytes, op.memory, "B")}</td></tr>
        <tr><th scope="row">its roof</th><td>${ROOF[op.limit] ?? op.limit}: the larger of the two</td></tr>
      </tbody>
    </table>
    <${Times} op=${op} />
    <p>${percent(op.share)} of the ${step.name} step${op.impossible ? "" : `, ${percent(op.reached)} of its roof`}.${op.reached > 1 && !op.impossible ? " Its bytes came from a faster memory than the step's." : ""}</p>
    ${op.impossible && device.at_hand && html`<p class="trouble">Impossible: shape, spec or timer. No kernel can take less than ${say_seconds(op.floor)} for this.</p>`}
    ${op.note && html`<p class="hint">${op.note}</p>`}
  </aside>`;
}

function shape(sizes) {
  return `[${sizes.join(" × ")}]`;
}

function bytesOf(op) {
  const parts = [["weights", op.weights], ["KV read", op.read], ["KV written", op.written], ["activations", op.activations]];
  const there = parts.filter(([, value]) => value > 0);
  if (!there.length) return "0";
  const sum = there.map(([name, value]) => `${say(value, "B")} ${name}`).join(" + ");
  return there.length > 1 ? `${sum} = ${say(op.nbytes, "B")}` : sum;
}

/** Return the time that one limit alone would allow: an amount over a rate. */
function alone(amount, seconds, unit) {
  return seconds > 0 ? `${say(amount, unit)} ÷ ${say(amount / seconds, `${unit}/s`)} = ${say_seconds(seconds)}` : "none";
}

/** Show floor, bound, predicted and measured time as bars; the chart is a table. */
function Times({ op }) {
  const rows = [["floor", op.floor], ["bound", op.bound], ["expected", op.expected], ["measured", op.measured]];
  const widest = Math.max(...rows.map(([, value]) => value), 1e-12);
  return html`<table class="facts times">
    <caption class="unseen">Times of the op</caption>
    <tbody>
      ${rows.map(([name, value]) => html`<tr key=${name}>
        <th scope="row">${name}</th>
        <td><svg class="bars" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <rect class=${name === "measured" ? `roof-${op.impossible ? "impossible" : op.limit}` : `outline-${op.limit}`} x="0.5" y="1" width=${Math.max(0.5, (98 * value) / widest)} height="8" />
        </svg></td>
        <td>${say_seconds(value)}</td>
      </tr>`)}
    </tbody>
  </table>`;
}
