// The tokens that a model could have written at one position: the model's own probabilities as outlines, those for
// sampling as bars. The chart is a table.

import { html } from "page/dom.js";
import { percent } from "page/numbers.js";
import { chances } from "page/sampling.js";

const ROWS = 10;

/** token: a token of a response. rules: the current temperature, top_k, top_p and min_p. */
export function Candidates({ token, rules }) {
  const { shares, exact } = chances(token.top, rules);
  const rows = token.top.map((each, at) => ({ ...each, share: shares[at], own: Math.exp(each.logprob) }));
  const chosen = rows.findIndex((row) => row.text === token.text);
  const seen = rows.filter((_, at) => at < ROWS || at === chosen);
  const widest = Math.max(...rows.map((row) => Math.max(row.own, row.share)), 1e-9);
  const covered = rows.reduce((sum, row) => sum + row.own, 0);
  return html`<figure class="candidates">
    <table>
      <caption class="unseen">Candidates for this token</caption>
      <thead>
        <tr><th scope="col" class="words">token</th><th scope="col"><span class="unseen">chart</span></th><th scope="col">model</th><th scope="col">drawn</th></tr>
      </thead>
      <tbody>
        ${seen.map((row) => Candidate({ row, widest, chosen: row === rows[chosen] }))}
      </tbody>
    </table>
    <figcaption>
      Outline: the model's own probabilities. Bar: the probabilities for sampling
      ${exact
        ? ", exactly."
        : html` as far as these ${rows.length} tell: the model gives them ${percent(Math.min(1, covered))}, the rest counts for nothing here.`}
    </figcaption>
  </figure>`;
}

function Candidate({ row, widest, chosen }) {
  const [own, share] = [row.own, row.share].map((value) => Math.max(0, (100 * value) / widest));
  return html`<tr class=${chosen ? "chosen" : ""} key=${row.text}>
    <th scope="row" class="words"><code>${shown(row.text)}</code>${chosen && html`<span class="unseen"> (written)</span>`}</th>
    <td>
      <svg class="bars" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
        <rect class="fill" x="0" y="3" width=${share} height="8" />
        <rect class="outline" x="0.5" y="1.5" width=${own} height="11" />
      </svg>
    </td>
    <td>${chance(row.own)}</td>
    <td>${row.share > 0 ? chance(row.share) : "–"}</td>
  </tr>`;
}

/** Return a probability without its last digits. */
function chance(share) {
  return share < 1e-4 ? "<0.01%" : percent(share);
}

const MARKS = { " ": "␣", "\n": "↵", "\t": "⇥" };

/** Return a token with its spaces made visible. */
export function shown(text) {
  return text === "" ? "∅" : text.replace(/[ \n\t]/g, (blank) => MARKS[blank]);
}
