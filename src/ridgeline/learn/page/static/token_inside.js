// The inside of the model at one token: its attention, the prediction of each layer, and the active neurons and
// experts.

import { html } from "page/dom.js";
import { AttentionChart } from "page/chart_attention.js";
import { shown } from "page/chart_candidates.js";
import { percent, three_digits } from "page/numbers.js";
import { meanOf, rowsOf } from "page/token_recording.js";

/** Return the selected layer and head, and their row. The default is the last layer and the mean of its heads. */
export function layerAndHead(recording, position, state) {
  const rows = rowsOf(recording.attention, position);
  if (!rows) return { layer: 0, head: null, row: null };
  const layer = Math.min(state.layer ?? rows.length - 1, rows.length - 1);
  const head = state.head !== null && state.head < rows[layer].length ? state.head : null;
  return { layer, head, row: head === null ? meanOf(rows[layer]) : rows[layer][head] };
}

export function Inside({ recording, position, state, set }) {
  const { layer, head } = layerAndHead(recording, position, state);
  const rows = rowsOf(recording.attention, position);
  return html`
    ${rows && html`<${AttentionChart} ...${{ recording, position, rows, layer, head, set }} />`}
    ${recording.lens && html`<${Lens} lens=${recording.lens} />`}
    ${recording.experts && html`<${Experts} experts=${recording.experts} />`}
    ${recording.neurons && html`<${Neurons} neurons=${recording.neurons} />`}
  `;
}

/** Show the logit lens; the chart is a table. */
function Lens({ lens }) {
  return html`<section class="card" aria-label="Lens">
    <h2>Logit lens: what each layer predicts</h2>
    <p class="dim">After the last token of the prompt the model predicts <code>${shown(lens.word)}</code> first${lens.settled === "embedding" ? " all along" : ` from layer ${lens.settled} on`}.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Lens">
    <table class="facts lens">
      <thead><tr><th scope="col" class="words">after</th><th scope="col" class="words">says</th><th scope="col"><span class="unseen">chart</span></th><th scope="col">rank</th><th scope="col" class="words">next</th></tr></thead>
      <tbody>
        ${lens.rows.map((row) => html`<tr key=${row.after}>
          <th scope="row">${row.after === "embedding" ? "embedding" : `layer ${row.after}`}</th>
          <td class="words"><code>${shown(row.top[0][0])}</code> ${percent(row.top[0][1])}</td>
          <td><svg class="bars" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="fill" y="1" width=${100 * row.share} height="8" /><rect class="outline" x="0.5" y="1" width="99" height="8" /></svg></td>
          <td>${row.rank.toLocaleString("en")}</td>
          <td class="words">${row.top.slice(1, 4).map(([piece], at) => html`<code key=${at}>${shown(piece)}</code> `)}</td>
        </tr>`)}
      </tbody>
    </table>
    </div>
    <p class="hint">Bar and rank: the probability and the rank that the layer gives to the model's word.</p>
  </section>`;
}

function Neurons({ neurons }) {
  return html`<section class="card" aria-label="Neurons">
    <h2>Most active neurons</h2>
    <p class="dim">In each feed-forward layer at the last token of the prompt, with the tokens whose logits they raise.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Neurons">
    <table class="facts">
      <thead><tr><th scope="col" class="words">layer</th><th scope="col">neuron</th><th scope="col">activation</th><th scope="col" class="words">raises</th></tr></thead>
      <tbody>
        ${neurons.layers.flat().map((each, at) => html`<tr key=${at}>
          <th scope="row">${each.layer}</th>
          <td>${each.expert === null ? each.index : `e${each.expert}/${each.index}`}</td>
          <td>${each.activation < 0 ? "−" : ""}${three_digits(Math.abs(each.activation))}</td>
          <td class="words">${each.promotes.map(([piece], place) => html`<code key=${place}>${shown(piece)}</code> `)}</td>
        </tr>`)}
      </tbody>
    </table>
    </div>
  </section>`;
}

function Experts({ experts }) {
  return html`<section class="card" aria-label="Experts">
    <h2>Chosen experts</h2>
    <p class="dim">Experts of the last token of the prompt, and the number that all its tokens use.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Experts">
    <table class="facts">
      <thead><tr><th scope="col" class="words">layer</th><th scope="col" class="words">experts and weights</th><th scope="col">used by all tokens</th><th scope="col">if balanced</th></tr></thead>
      <tbody>
        ${experts.layers.map((each) => html`<tr key=${each.layer}>
          <th scope="row">${each.layer}</th>
          <td class="words">${each.picked.map((expert, at) => html`<span class="pick" key=${expert}>${expert} <span class="dim">${percent(each.weights[at])}</span></span>`)}</td>
          <td>${each.hit} of ${each.load.length}</td>
          <td>${three_digits(each.expected)}</td>
        </tr>`)}
      </tbody>
    </table>
    </div>
  </section>`;
}
