// The attention of a token: for each head of a layer its weights as a row, where darker is more.

import { html, useState } from "page/dom.js";
import { shown } from "page/chart_candidates.js";
import { Slider } from "page/controls.js";
import { percent } from "page/numbers.js";
import { meanOf } from "page/token_recording.js";

const CELL = 20;

/**
 * rows: those of the token at `position`, by layer and head. layer: an index among the layers with attention. head:
 * null for all.
 */
export function AttentionChart({ recording, position, rows, layer, head, set }) {
  const rowsOfHeads = rows[layer];
  const number = recording.attention.layers[layer];
  const token = recording.prompt[position];
  const mean = meanOf(rowsOfHeads);
  const row = rowsOfHeads[head] ?? mean;
  const most = [...row.entries()].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return html`<section class="card attention" aria-label="Attention">
    <h2>Whom <code>${shown(token.piece)}</code> looked at</h2>
    <p class="dim">${most.map(([at, share], place) => html`<span key=${at}>${place ? ", " : ""}<code>${shown(recording.prompt[at].piece)}</code> ${percent(share)}</span>`)}</p>
    <${Slider} name="Layer" value=${layer} shown=${number} least="0" most=${rows.length - 1} step="1" onInput=${(value) => set({ layer: value })} />
    <${Slider} name="Head" value=${head ?? -1} shown=${head ?? "mean of all"} least="-1" most=${rowsOfHeads.length - 1} step="1" onInput=${(value) => set({ head: value < 0 ? null : value })} />
    <svg class="heat" viewBox=${`0 0 ${mean.length * CELL} ${rowsOfHeads.length * CELL}`} preserveAspectRatio="none" aria-hidden="true" style=${{ "--rows": rowsOfHeads.length }} onClick=${(event) => event.target.dataset?.row && set({ head: Number(event.target.dataset.row) })}>
      ${rowsOfHeads.map((shares, at) => shares.map((share, place) => html`<rect key=${place} data-row=${at} x=${place * CELL} y=${at * CELL} width=${CELL - 1} height=${CELL - 2} fill-opacity=${share}><title>head ${at}, ${recording.prompt[place].piece}: ${percent(share)}</title></rect>`))}
      ${head !== null && html`<${Looked} at=${head} width=${mean.length * CELL} />`}
    </svg>
    <p class="hint">One row per head, one column per token, from left to right. Darker is more; each row adds up to 1.</p>
    <${Shares} ...${{ recording, rowsOfHeads, mean }} />
  </section>`;
}

function Looked({ at, width }) {
  return html`<rect class="looked" x="0.5" y=${at * CELL} width=${width - 2} height=${CELL - 2} />`;
}

function Shares({ recording, rowsOfHeads, mean }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary class="dim">As a table</summary>
    ${open && html`<div class="scroll" tabindex="0" role="group" aria-label="Attention weights"><table class="facts">
      <thead><tr><th scope="col" class="words">token</th><th scope="col">mean</th>${rowsOfHeads.map((_, at) => html`<th scope="col" key=${at}>head ${at}</th>`)}</tr></thead>
      <tbody>
        ${mean.map((share, place) => html`<tr key=${place}>
          <th scope="row"><code>${shown(recording.prompt[place].piece)}</code></th><td>${percent(share)}</td>${rowsOfHeads.map((shares, at) => html`<td key=${at}>${percent(shares[place])}</td>`)}
        </tr>`)}
      </tbody>
    </table></div>`}
  </details>`;
}
