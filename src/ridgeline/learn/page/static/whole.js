// Integers as people type them. Other text is refused in a line that says what the field accepts and which value still
// applies.

import { useEffect, useState } from "page/dom.js";
import { grouped } from "page/python.js";

const THOUSANDS = { "": 1, k: 2 ** 10, K: 2 ** 10, M: 2 ** 20 }; // as on the command line
const TYPED = /^([+-]?\d+(?:\.\d+)?(?:e\+?\d+)?)([kKM]?)$/i;
const GROUPED = /^([+-]?\d{1,3})((?:[,_ \u00a0\u202f']\d{3})+)(?=$|[.kKM])/;

/** Return the integer of `1500`, `1,500`, `2k` or `1e3`; undefined for other text. */
export function readWhole(text) {
  const plain = text.trim().replace(GROUPED, (all, first, rest) => first + rest.replace(/\D/g, ""));
  const found = TYPED.exec(plain);
  const value = found ? Number(found[1]) * (THOUSANDS[found[2]] ?? NaN) : NaN;
  return Number.isSafeInteger(value) ? value : undefined;
}

/**
 * Return {own, trouble} for a field of an integer. own: the attributes of the input. trouble: a message, or "". value:
 * the current number, null for none. usual: what applies if the field is empty, in words; without it, the field must
 * not be empty. eager: whether each typed letter counts, not only a finished number.
 */
export function useWhole({ name, value, least, most, usual = null, eager = false, onInput }) {
  const [typed, type] = useState(null);
  const [trouble, say] = useState("");
  const shown = value === null ? "" : String(value);
  const reset = () => {
    type(null);
    say("");
  };
  useEffect(reset, [value]);
  const read = (text) => {
    if (text.trim() === "") return usual === null ? undefined : null;
    const count = readWhole(text);
    return count !== undefined && count >= least && count <= most ? count : undefined;
  };
  const take = (text) => {
    const count = read(text);
    if (count === undefined) return say(refusal({ name, text, value, least, most, usual }));
    reset();
    if (count !== value) onInput(count);
  };
  const follow = (text) => {
    type(text);
    const count = read(text);
    if (count === undefined) return;
    say("");
    if (eager && count !== value) onInput(count);
  };
  const step = (by) => take(String(Math.min(most, Math.max(least, (value ?? 0) + by))));
  const keys = { ArrowUp: () => step(1), ArrowDown: () => step(-1), Escape: reset };
  const own = {
    value: typed ?? shown,
    inputmode: "numeric",
    autocomplete: "off",
    "aria-invalid": trouble ? "true" : null,
    onInput: (event) => follow(event.target.value),
    onChange: (event) => take(event.target.value),
    onKeyDown: (event) => {
      const act = keys[event.key];
      if (!act || (event.key === "Escape" && typed === null)) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    },
  };
  return { own, trouble };
}

function refusal({ name, text, value, least, most, usual }) {
  const said = text.trim() === "" ? "it is empty" : `${text.trim().slice(0, 40)} is not a number`;
  const holds = value === null ? usual : grouped(value);
  return `${name} takes a whole number from ${grouped(least)} to ${grouped(most)}, and ${said}. The value is still: ${holds}.`;
}
