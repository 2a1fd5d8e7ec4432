// The form of a served page: a text, its sampling parameters, and the notice that other requests wait during the
// measurement.

import { html, useState } from "page/dom.js";
import { Grown, Slider } from "page/controls.js";
import { modelsOf } from "page/context.js";
import { three_digits } from "page/numbers.js";

const ROUTE = "/page/trace";

/** onAsk: called with the body of a request. */
export function TraceForm({ context, busy, onAsk }) {
  const model = modelsOf(context, ROUTE)[0];
  const usual = model?.sampling ?? { temperature: 1, top_p: 1, top_k: 0 };
  const [text, setText] = useState("Once upon a time");
  const [rules, setRules] = useState({ temperature: usual.temperature, top_p: usual.top_p, top_k: usual.top_k, seed: 1, max_pause: 30 });
  const change = (name) => (value) => setRules((before) => ({ ...before, [name]: value }));
  const ready = text.trim() !== "" && !busy;
  const send = (event) => {
    event.preventDefault();
    if (ready) onAsk({ prompt: text, ...rules });
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return html`<form class="follow" onSubmit=${send}>
    <h1>Follow a text through <span class="name">${model?.id}</span></h1>
    <${Grown} value=${text} onInput=${setText} onKeyDown=${onKeyDown} aria-label="A text of at most 64 tokens" />
    <div class="acts">
      <details class="gap">
        <summary class="dim">Sampling</summary>
        <div class="rules">
          <${Slider} name="Temperature" value=${rules.temperature} shown=${three_digits(rules.temperature)} least="0" most="2" step="0.05" onInput=${change("temperature")} />
          <${Slider} name="Top-p" value=${rules.top_p} shown=${three_digits(rules.top_p)} least="0.05" most="1" step="0.05" onInput=${change("top_p")} />
          <${Slider} name="Top-k" value=${rules.top_k} shown=${rules.top_k || "off"} least="0" most="50" step="1" onInput=${change("top_k")} />
          <${Slider} name="Longest pause" value=${rules.max_pause} shown=${`${rules.max_pause} s`} least="5" most="300" step="5" onInput=${change("max_pause")} />
          <${Slider} name="Seed" value=${rules.seed} shown=${rules.seed} least="0" most="99" step="1" onInput=${change("seed")} />
        </div>
      </details>
      <button type="submit" class="main" disabled=${!ready}>${busy ? "Measuring…" : "Trace it"}</button>
    </div>
    <p class="hint">The engine measures its prefill and its first decode step several times, op by op. All other requests wait meanwhile; if that would take longer than ${rules.max_pause} s, the server refuses.</p>
  </form>`;
}
