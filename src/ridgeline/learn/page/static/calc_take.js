// The plan to take away: as a command line, as JSON, as CSV, and as a link.

import { html, useState } from "page/dom.js";
import { commandOf } from "page/calc_case.js";
import { figuresTaken } from "page/calc_figures.js";

function csvOf(figures) {
  const cell = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replace(/"/g, '""')}"` : String(value ?? ""));
  return Object.entries(figures).map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function Take({ setting }) {
  const figures = () => figuresTaken(setting);
  const command = commandOf(setting.state, setting.table);
  return html`<section class="card take" aria-labelledby="take-title">
    <h2 id="take-title">Export</h2>
    <pre class="scroll" tabindex="0"><code>${command}</code></pre>
    <div class="acts">
      <${Copy} name="Copy the command" text=${() => command} />
      <${Copy} name="Copy JSON" text=${() => JSON.stringify(figures(), null, 1)} />
      <${Copy} name="Copy CSV" text=${() => csvOf(figures())} />
      <${Copy} name="Copy the link" text=${() => location.href} />
      <button type="button" class="quiet" onClick=${() => print()}>Print</button>
    </div>
  </section>`;
}

/** Show a button that copies, or the text to copy by hand if the browser does not let a page copy. */
function Copy({ name, text }) {
  const [said, say] = useState("");
  const [shown, show] = useState(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      say("Copied");
      setTimeout(() => say(""), 1500);
    } catch {
      show(text());
    }
  };
  return html`<button type="button" class="quiet" onClick=${copy}>${said || name}</button>
    ${shown !== null && html`<textarea readonly rows="4" aria-label=${name} ref=${(area) => area?.select()} onBlur=${() => show(null)} value=${shown} />`}`;
}
