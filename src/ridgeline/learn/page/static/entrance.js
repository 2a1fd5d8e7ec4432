// What the page shows before a tab: a notice, the form for a key, or an overview if no tab fits.

import { html, useState } from "page/dom.js";
import { Field, Trouble } from "page/controls.js";

/** Show a sentence instead of everything else. busy: whether the page is waiting. */
export function Notice({ busy = false, children }) {
  return html`<p class=${busy ? "notice busy" : "notice"} role="status">${children}</p>`;
}

const SENDABLE = /^[\x21-\x7e]+$/;

/** Show the form for an API key. refused: the server's message about the previous one, "" for none. */
export function KeyForm({ refused, onKey }) {
  const [key, setKey] = useState("");
  const [unsendable, setUnsendable] = useState(false);
  const send = (event) => {
    event.preventDefault();
    const said = key.trim();
    setUnsendable(!SENDABLE.test(said));
    if (SENDABLE.test(said)) onKey(said);
  };
  const trouble = unsendable
    ? "A key consists of letters, digits and signs, without spaces."
    : refused && "The server does not accept this key.";
  return html`<form class="card entrance" onSubmit=${send}>
    <h1>This server needs a key</h1>
    <p>It is sent with every request to this server, and kept until this browser tab is closed.</p>
    <${Field} name="API key" type="password" value=${key} onInput=${setKey} autocomplete="off" spellcheck="false" />
    ${trouble && html`<${Trouble}>${trouble}<//>`}
    <button type="submit" class="main">Open</button>
  </form>`;
}

/** Show the models if no tab can show them. */
export function Overview({ context }) {
  if (!context.served) {
    return html`<${Notice}>This file contains no data that a view could show.<//>`;
  }
  return html`<div class="card entrance">
    <h1>Routes of this server</h1>
    <p>There is no view for this kind of model. Programs can use these routes:</p>
    <div class="scroll">
      <table>
        <thead><tr><th scope="col">model</th><th scope="col">routes</th></tr></thead>
        <tbody>
          ${context.models.map(
            (model) => html`<tr key=${model.id}>
              <th scope="row" class="words">${model.id}</th>
              <td class="words">${(model.routes ?? []).map((route) => html`<code>${route}</code> `)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </div>`;
}
