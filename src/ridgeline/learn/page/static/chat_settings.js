// Next to a conversation: the sampling parameters, and their effect on the candidates at one position of the last
// response.

import { html, useState } from "page/dom.js";
import { Candidates, shown } from "page/chart_candidates.js";
import { converses } from "page/chat_turns.js";
import { Choice, Field, Slider, Switch, Trouble, WholeField } from "page/controls.js";
import { digits } from "page/numbers.js";

const AROUND = 6; // tokens shown on each side of the selected one
const WIDE = "(min-width: 64rem)";

/** answered: the newest response whose tokens are known. place: the index of the selected token, or -1 for the last. */
export function Settings({ models, model, state, set, system, setSystem, answered, place, setPlace }) {
  const [open] = useState(() => matchMedia(WIDE).matches);
  const rules = rulesOf(model, state);
  return html`<aside class="settings" aria-label="Sampling">
    <details open=${open}>
      <summary>Sampling and candidates</summary>
      ${models.length > 1 &&
      html`<${Choice} name="Model" value=${model.id} choices=${models.map(({ id }) => [id, id])} onInput=${(name) => set({ model: name })} />`}
      ${state.model && state.model !== model.id && html`<${Trouble}>This server has no model ${state.model}; the chat uses ${model.id}.<//>`}
      <${Sampling} ...${{ model, state, set, rules }} />
      ${state.candidates && answered && html`<${Place} ...${{ answered, place, setPlace, rules }} />`}
      ${state.candidates && !answered && html`<p class="dim">The candidates of each token appear with the first response. Move a slider to see its effect.</p>`}
      <${More} ...${{ model, state, set, system, setSystem }} />
    </details>
  </aside>`;
}

/** Return the parameters in effect: the fields, or the model's own where a field is empty. */
function rulesOf(model, { temperature, top_p, top_k }) {
  const usual = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, ...model.sampling };
  return {
    temperature: temperature ?? usual.temperature,
    top_p: top_p ?? usual.top_p,
    top_k: top_k ?? usual.top_k,
    min_p: usual.min_p,
  };
}

function Sampling({ model, state, set, rules }) {
  const changed = [state.temperature, state.top_p, state.top_k].some((value) => value !== null);
  const { temperature, top_p, top_k } = rules;
  return html`<fieldset>
    <legend>Sampling</legend>
    <${Slider}
      name="Temperature"
      value=${temperature}
      shown=${temperature === 0 ? "0, greedy" : digits(temperature, temperature < 1 ? 2 : 3)}
      ...${{ least: 0, most: 2, step: 0.05 }}
      onInput=${(value) => set({ temperature: value })}
    />
    <${Slider}
      name="Top-p"
      value=${top_p}
      shown=${top_p === 1 ? "off" : digits(top_p, 2)}
      ...${{ least: 0.05, most: 1, step: 0.01 }}
      onInput=${(value) => set({ top_p: value })}
    />
    <${Slider}
      name="Top-k"
      value=${top_k}
      shown=${top_k === 0 ? "off" : String(top_k)}
      ...${{ least: 0, most: 100, step: 1 }}
      onInput=${(value) => set({ top_k: value })}
    />
    <${WholeField} name="Seed" value=${state.seed} least=${Number.MIN_SAFE_INTEGER} most=${Number.MAX_SAFE_INTEGER} usual="another each time" onInput=${(seed) => set({ seed })} />
    ${changed &&
    html`<button type="button" class="quiet" onClick=${() => set({ temperature: null, top_p: null, top_k: null })}>Defaults of ${model.id}</button>`}
  </fieldset>`;
}

/** Show the candidates of one token, and the tokens around it. */
function Place({ answered, place, setPlace, rules }) {
  const { tokens } = answered;
  const at = place < 0 || place >= tokens.length ? tokens.length - 1 : place;
  const from = Math.max(0, at - AROUND);
  return html`<fieldset>
    <legend>Candidates</legend>
    <${Slider}
      name="Token"
      value=${at + 1}
      shown=${`${at + 1} of ${tokens.length}`}
      ...${{ least: 1, most: tokens.length, step: 1 }}
      onInput=${(value) => setPlace(value - 1)}
    />
    <p class="around">
      ${from > 0 && "…"}${tokens.slice(from, at).map(({ text }) => text)}<mark>${shown(tokens[at].text)}</mark>${tokens.slice(at + 1, at + 1 + AROUND).map(({ text }) => text)}
    </p>
    <${Candidates} token=${tokens[at]} rules=${rules} />
  </fieldset>`;
}

function More({ model, state, set, system, setSystem }) {
  return html`<details class="more">
    <summary>More</summary>
    ${converses(model) && html`<${Field} name="System message" type="area" value=${system} onInput=${setSystem} />`}
    <${WholeField} name="Maximum response tokens" value=${state.length} least=${1} most=${2 ** 31 - 1} usual=${converses(model) ? "the model's default" : "200"} onInput=${(length) => set({ length })} />
    <${Switch} name="Ask for candidates" value=${state.candidates} onInput=${(value) => set({ candidates: value })} />
  </details>`;
}
