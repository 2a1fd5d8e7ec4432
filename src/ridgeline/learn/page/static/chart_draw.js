// How a token was drawn: the candidates after temperature, top-k, top-p and min-p, and the number in [0, 1) that picked
// one, as a needle on the line of their probabilities.

import { html } from "page/dom.js";
import { shown } from "page/chart_candidates.js";
import { percent, three_digits } from "page/numbers.js";
import { fixed } from "page/python.js";

const WIDTH = 1000;
const ROWS = 10;

/** draw: that of a recording. name: that of its step. */
export function DrawChart({ draw, rules, name }) {
  const widest = Math.max(...draw.candidates.map((each) => Math.max(each.raw, each.tempered, each.drawn ?? 0)), 1e-9);
  const seen = draw.candidates.filter((each, at) => at < ROWS || each.id === draw.taken.id);
  const greedy = draw.uniform === null;
  return html`<section class="card draw" aria-label="The draw">
    <h2>How <code>${shown(draw.taken.piece)}</code> was drawn <small>after the ${name}</small></h2>
    <p class="dim">${greedy ? "Greedy: the most likely token is taken." : html`Temperature ${three_digits(rules.temperature)}, top-k ${rules.top_k || "off"}, top-p ${three_digits(rules.top_p)}${rules.min_p ? `, min-p ${three_digits(rules.min_p)}` : ""} leave ${draw.kept.toLocaleString("en")} of ${draw.vocabulary.toLocaleString("en")} tokens.`}</p>
    ${!greedy && html`<${Needle} draw=${draw} />`}
    <div class="scroll" tabindex="0" role="group" aria-label="Candidates">
    <table class="facts drawable">
      <thead><tr><th scope="col" class="words">token</th><th scope="col"><span class="unseen">chart</span></th><th scope="col">model</th><th scope="col">temperature</th><th scope="col">drawn</th></tr></thead>
      <tbody>
        ${seen.map((each) => html`<tr key=${each.id} class=${each.id === draw.taken.id ? "chosen" : each.removed ? "removed" : ""}>
          <th scope="row"><code>${shown(each.piece)}</code>${each.id === draw.taken.id && html`<span class="unseen"> (taken)</span>`}</th>
          <td><svg class="bars" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">
            <rect class="fill" y="2" width=${(99 * (each.drawn ?? (greedy && each.id === draw.taken.id ? each.raw : 0))) / widest} height="8" />
            <rect class="faint" y="4.5" width=${(99 * each.tempered) / widest} height="3" />
            <rect class="outline" x="0.5" y="1" width=${(99 * each.raw) / widest} height="10" />
          </svg></td>
          <td>${percent(each.raw)}</td><td>${percent(each.tempered)}</td><td>${each.removed || (each.drawn === null ? "–" : percent(each.drawn))}</td>
        </tr>`)}
      </tbody>
    </table>
    </div>
    <p class="hint">Outline: the model. Thin bar: after the temperature. Bar: the probabilities for sampling. Penalties for earlier tokens are not shown.</p>
  </section>`;
}

/** Show the line from 0 to 1, divided among the remaining candidates in the order of the vocabulary. */
function Needle({ draw }) {
  const parts = draw.candidates.filter((each) => each.start !== null).sort((a, b) => a.start - b.start);
  const taken = parts.find((each) => each.id === draw.taken.id);
  const at = WIDTH * draw.uniform;
  return html`<figure class="needle">
    <svg viewBox=${`0 0 ${WIDTH} 40`} preserveAspectRatio="none" role="img" aria-label=${`The number ${fixed(draw.uniform, 4)} lies in the part of ${draw.taken.piece}, which begins at ${fixed(taken.start, 4)} and ends at ${fixed(taken.start + taken.drawn, 4)}`}>
      <rect class="rest" x="0" y="12" width=${WIDTH} height="24" />
      ${parts.map((each) => html`<rect key=${each.id} class=${each === taken ? "part taken" : "part"} x=${WIDTH * each.start} y="12" width=${Math.max(0.5, WIDTH * each.drawn)} height="24"><title>${each.piece}: ${percent(each.drawn)}</title></rect>`)}
      <line class="pin" x1=${at} x2=${at} y1="0" y2="40" />
    </svg>
    <figcaption>The number ${fixed(draw.uniform, 4)} falls into <code>${shown(draw.taken.piece)}</code>, ${fixed(taken.start, 4)} to ${fixed(taken.start + taken.drawn, 4)}. It depends only on the seed and the position, so the same seed gives the same token.</figcaption>
  </figure>`;
}
