// Parts that tabs share: fields with names, sliders, bars, notices.

import { html, useEffect, useRef } from "page/dom.js";
import { useWhole } from "page/whole.js";

let made = 0;

/** Return an id that is unique to a component. */
export function useId() {
  const id = useRef("");
  if (!id.current) id.current = `id${++made}`;
  return id.current;
}

/** Show a slider with its name and value. shown: the value for reading. hint: its effect, in one line. */
export function Slider({ name, value, shown, hint, least, most, step, onInput, disabled = false }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}>${name}</label><output for=${id}>${shown}</output>
    <input
      id=${id}
      type="range"
      min=${least}
      max=${most}
      step=${step}
      value=${value}
      disabled=${disabled}
      aria-valuetext=${shown}
      aria-describedby=${hint ? `${id}-hint` : null}
      onInput=${(event) => onInput(Number(event.target.value))}
    />
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
  </div>`;
}

/** Show a field to type into. type: that of the input, or "area" for several lines. */
export function Field({ name, value, hint, type = "text", onInput, ...more }) {
  const id = useId();
  const own = { id, value, onInput: (event) => onInput(event.target.value), ...more };
  return html`<div class="field">
    <label for=${id}>${name}</label>
    ${type === "area" ? html`<textarea rows="3" ...${own} />` : html`<input type=${type} ...${own} />`}
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
  </div>`;
}

/** Show a field for an integer, or for none: `usual` says what applies then. */
export function WholeField({ usual, ...asked }) {
  const id = useId();
  const { own, trouble } = useWhole({ ...asked, usual, eager: true });
  return html`<div class="field">
    <label for=${id}>${asked.name}</label>
    <input id=${id} type="text" placeholder=${usual} aria-describedby=${trouble ? `${id}-trouble` : null} ...${own} />
    ${trouble && html`<${Trouble} id=${`${id}-trouble`}>${trouble}<//>`}
  </div>`;
}

/** Show a choice of one of several. choices: [value, words]. */
export function Choice({ name, value, choices, onInput }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}>${name}</label>
    <select id=${id} onChange=${(event) => onInput(event.target.value)}>
      ${choices.map(([each, words]) => html`<option value=${each} selected=${each === value}>${words}</option>`)}
    </select>
  </div>`;
}

/** Show a checkbox. */
export function Switch({ name, value, hint, onInput }) {
  const id = useId();
  return html`<div class="field switch">
    <input id=${id} type="checkbox" checked=${value} onChange=${(event) => onInput(event.target.checked)} />
    <label for=${id}>${name}</label>
    ${hint && html`<small>${hint}</small>`}
  </div>`;
}

/** Show one line that says what went wrong. */
export function Trouble({ id = null, children }) {
  return html`<p class="trouble" role="alert" id=${id}>${children}</p>`;
}

/** Show words only to screen readers, which read them when they change. */
export function Said({ children }) {
  return html`<p class="unseen" role="status">${children}</p>`;
}

/** Show rows of names and values. */
export function Facts({ rows }) {
  return html`<table class="facts">
    <tbody>
      ${rows.map(([name, value, more]) => html`<tr><th scope="row">${name}</th><td>${value}</td><td>${more ?? ""}</td></tr>`)}
    </tbody>
  </table>`;
}

/** Show a field for several lines, as high as its text up to the limit in the stylesheet. */
export function Grown({ value, onInput, inner, ...more }) {
  const own = useRef(null);
  const area = inner ?? own;
  useEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${area.current.scrollHeight + 2}px`;
  }, [value]);
  return html`<textarea ref=${area} rows="1" value=${value} onInput=${(event) => onInput(event.target.value)} ...${more} />`;
}
