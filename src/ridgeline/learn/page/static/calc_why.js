// The explanation: from the model's parameters to bytes to seconds, with numbers, and the sources of the card's
// figures.

import { html } from "page/dom.js";
import { measuredOf } from "page/calc_case.js";
import { timeWith } from "page/calc_interval.js";
import { whyOf } from "page/calc_sentence.js";
import { people } from "page/chart_roofline.js";
import { gb, percent, say, say_gb, say_seconds, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";

export function Why({ setting }) {
  const { table, card, decode, context, state, asked, intervals } = setting;
  const { weight_bytes: weights, kv_read_bytes: read } = decode;
  const { parameters, memory } = table;
  const gathered = memory.weights - weights;
  const cards = asked.devices > 1 ? ", per GPU" : "";
  return html`<section class="card why" aria-labelledby="why-title">
    <h2 id="why-title">Why</h2>
    <ol>
      <li><b>Parameters</b> <${Sum} terms=${Object.entries(parameters.by_part).map(([part, count]) => [grouped(count), part])} total=${grouped(parameters.total)} /></li>
      <li><b>Bytes of weights${cards}</b> <${Sum} terms=${memory.parts.map(({ part, format, nbytes }) => [say_gb(gb(nbytes)), `${part} in ${format}`])} total=${say_gb(gb(memory.weights))} /></li>
      <li id=${whyOf("bytes")} tabindex="-1"><b>Read per step</b> <${Sum} terms=${[[say_gb(gb(weights)), gathered > 0 ? `weights: of ${say_gb(gb(gathered))} not read in full` : "weights"], [say_gb(gb(read)), `keys and values: ${people(state.users)} × ${grouped(context)} tokens`]]} total=${say_gb(gb(weights + read))} /></li>
      <li><b>Memory</b> ${say_gb(gb(weights + read + decode.kv_write_bytes))} / ${say(card.bandwidth, "B/s")} = <b>${say_seconds(decode.memory)}</b>, writing included</li>
      <li><b>Arithmetic</b> ${say(decode.flops, "FLOP")}, at each format's peak = <b>${say_seconds(decode.arithmetic)}</b></li>
      <li id=${whyOf("seconds")} tabindex="-1"><b>Floor</b> the larger of the two: <b>${say_seconds(decode.seconds.floor)}</b>; each operation by itself ${say_seconds(decode.seconds.bound)} (bound); with the kernels there are ${timeWith(intervals.decode, decode.seconds)} (expected; ${measuredOf(setting, "decode")})</li>
      <li id=${whyOf("roofs")} tabindex="-1"><b>Ridge</b> ${three_digits(decode.intensity)} FLOP/byte here; arithmetic takes as long as memory at ${three_digits(decode.ridge)}; the arithmetic units are idle for ${percent(Math.max(0, decode.idle))} of the floor</li>
    </ol>
    <details><summary>Where the facts are from</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Sources"><table class="facts"><tbody>
        <tr><th scope="row">model</th><td>${table.made_by}: <code>${table.command}</code></td></tr>
        ${Object.entries(card.sources).map(([fact, source]) => html`<tr key=${fact}><th scope="row">${fact}</th><td>${source}</td></tr>`)}
        ${card.prices.map((price) => html`<tr key=${price.seller}><th scope="row">$${price.dollars.toFixed(2)} per hour</th><td>${price.seller}, ${price.date}: ${price.source}</td></tr>`)}
      </tbody></table></div>
    </details>
    ${table.notes.map((note) => html`<p class="dim">${note}</p>`)}
  </section>`;
}

/** Show `a + b = c`, each term with its name below it. */
function Sum({ terms, total }) {
  return html`<span class="equation">
    ${terms.map(([amount, name], at) => html`${at > 0 && html`<span>+</span>`}<span class="term">${amount}<small>${name}</small></span>`)}
    <span>=</span><b>${total}</b>
  </span>`;
}
