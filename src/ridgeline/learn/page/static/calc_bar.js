// The bar of the calculator, which stays visible: the question as chips. A value that a chip does not accept is refused
// in a line below.

import { html, useEffect, useState } from "page/dom.js";
import { Trouble, useId } from "page/controls.js";
import { useWhole } from "page/whole.js";

export const STORAGES = ["", "bf16", "fp16", "fp8", "w8a8", "int8", "int4", "int4-g64", "int4-g32", "mxfp4", "nvfp4"];
export const KEYS = ["", "bf16", "fp16", "fp8", "int8", "nvfp4"];
const COUNTS = [1, 2, 4, 8];

/** models, cards: names. has({weights, kv, cards}): whether the page has such a table or can request it. */
export function Bar({ state, models, cards, has, onChange, children }) {
  const or = (words) => (value) => [value, value || words];
  return html`<div class="chips" role="group" aria-label="Workload and hardware">
    <${Named} name="model" value=${state.model} known=${models} onChange=${(model) => onChange({ model })} wide />
    <${Named} name="card" value=${state.card} known=${cards} onChange=${(card) => onChange({ card })} wide />
    <${Select} name="cards" value=${state.cards} choices=${COUNTS.filter((count) => has({ cards: count })).map((count) => [count, String(count)])} onChange=${(said) => onChange({ cards: Number(said) })} />
    <${Select} name="weights" value=${state.weights} choices=${STORAGES.filter((weights) => has({ weights })).map(or("as released"))} onChange=${(weights) => onChange({ weights })} />
    <${Select} name="KV" value=${state.kv} choices=${KEYS.filter((kv) => has({ kv })).map(or("as released"))} onChange=${(kv) => onChange({ kv })} />
    <${Count} name="input" value=${state.input} onChange=${(input) => onChange({ input })} />
    <${Count} name="output" value=${state.output} onChange=${(output) => onChange({ output })} />
    <${Count} name="users" value=${state.users} most=${2048} onChange=${(users) => onChange({ users })} />
    ${children}
  </div>`;
}

/**
 * Show a choice. A value that is none of the choices, which an address may have, is added to them, so that the field
 * shows the current value.
 */
function Select({ name, value, choices, onChange }) {
  const id = useId();
  if (!choices.some(([each]) => each === value)) choices = [...choices, [value, `${value || "as released"} (not here)`]];
  return html`<div class="asked">
    <label for=${id}>${name}</label>
    <select id=${id} onChange=${(event) => onChange(event.target.value)}>
      ${choices.map(([each, words]) => html`<option value=${each} selected=${each === value}>${words}</option>`)}
    </select>
  </div>`;
}

function Count({ name, value, most = 2 ** 24, onChange }) {
  const id = useId();
  const { own, trouble } = useWhole({ name, value, least: 1, most, onInput: onChange });
  return html`<div class="asked">
      <label for=${id}>${name}</label>
      <input id=${id} size=${Math.max(3, String(own.value).length)} role="spinbutton" aria-valuenow=${value} aria-valuemin="1" aria-valuemax=${most}
        aria-describedby=${trouble ? `${id}-trouble` : null} ...${own} />
    </div>
    ${trouble && html`<${Trouble} id=${`${id}-trouble`}>${trouble}<//>`}`;
}

const letters = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");

/** Return the known names that contain the typed text, those that begin with it first. */
export function meant(typed, known) {
  const said = letters(typed);
  const found = known.filter((name) => letters(name).includes(said));
  return found.sort((a, b) => letters(b).startsWith(said) - letters(a).startsWith(said));
}

/** Show a field for a name, as WAI-ARIA's combobox. An ambiguous text opens the list of matching names. */
function Named({ name, value, known, onChange, wide }) {
  const id = useId();
  const [typed, type] = useState(null);
  const [place, setPlace] = useState(0);
  useEffect(() => setPlace(0), [typed]);
  const open = typed !== null;
  const found = open ? (typed === "" ? known : meant(typed, known)) : [];
  const [trouble, say] = useState("");
  useEffect(() => say(""), [value]);
  const choose = (chosen) => {
    type(null);
    say("");
    onChange(chosen);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && open && found.length) choose(found.includes(typed) ? typed : found[place]);
    else if (event.key === "Enter") leave();
    else if (event.key === "Escape") type(null), say("");
    else if (event.key === "ArrowDown") type(typed ?? ""), setPlace(Math.min(found.length - 1, place + 1));
    else if (event.key === "ArrowUp") setPlace(Math.max(0, place - 1));
    else return;
    event.preventDefault();
  };
  /** Take the typed text if it means one name, else say which names it may mean. */
  const leave = () => {
    type(null);
    if (!open || typed === "" || typed === value) return;
    const begins = found.filter((each) => each.startsWith(typed));
    const [only] = known.includes(typed) ? [typed] : found.length === 1 ? found : begins.length === 1 ? begins : [];
    if (only) choose(only);
    else say(`${name} ${typed.slice(0, 40)} ${mayBe(found)}. The value is still: ${value}.`);
  };
  return html`<div class=${`asked ${wide ? "wide" : ""}`}>
    <label for=${id}>${name}</label>
    <input id=${id} value=${typed ?? value} size=${Math.max(10, Math.ceil(1.05 * (typed ?? value).length))} role="combobox" aria-invalid=${trouble ? "true" : null} aria-describedby=${trouble ? `${id}-trouble` : null} aria-expanded=${open ? "true" : "false"} aria-controls=${`${id}-list`} aria-autocomplete="list"
      aria-activedescendant=${found.length ? `${id}-${place}` : null} autocomplete="off" spellcheck="false"
      onFocus=${(event) => event.target.select()} onInput=${(event) => (type(event.target.value), say(""))} onClick=${() => type(typed ?? "")}
      onBlur=${leave} onKeyDown=${onKeyDown} />
    <ul class="offers" id=${`${id}-list`} role="listbox" aria-label=${name} hidden=${!open}>
      ${found.map(
        (each, at) => html`<li id=${`${id}-${at}`} role="option" key=${each} aria-selected=${at === place ? "true" : "false"}
          onPointerDown=${(event) => event.preventDefault()} onClick=${() => choose(each)}>${each}</li>`,
      )}
      ${open && !found.length && html`<li class="dim" role="option" aria-selected="false" aria-disabled="true">no model has this name</li>`}
    </ul>
  </div>
  ${trouble && html`<${Trouble} id=${`${id}-trouble`}>${trouble}<//>`}`;
}

const NAMED = 4; // names in the message

function mayBe(found) {
  if (!found.length) return "is not in the list; open the list to see all values";
  const more = found.length > NAMED ? ` and ${found.length - NAMED} more` : "";
  return `may be ${found.slice(0, NAMED).join(", ")}${more}; choose one`;
}
