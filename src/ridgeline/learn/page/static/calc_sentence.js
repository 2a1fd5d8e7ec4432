// The charts in two sentences, and what limits the step. Each number links to its explanation.

import { html } from "page/dom.js";
import { originOf } from "page/calc_case.js";
import { people } from "page/chart_roofline.js";
import { rate_interval, time_interval } from "page/interval_formulas.js";
import { gb, percent, say_gb, say_seconds, three_digits } from "page/numbers.js";
import { fixed, grouped } from "page/python.js";

/** Return the id of the explanation of a number: its "bytes", its "seconds", or the relation of both "roofs". */
export const whyOf = (about) => `calculator-why-${about}`;

function Because({ of, children }) {
  const go = (event) => {
    event.preventDefault(); // the address holds the state
    const there = document.getElementById(whyOf(of));
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    there.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "center" });
    there.focus({ preventScroll: true });
  };
  return html`<a href=${`#${whyOf(of)}`} onClick=${go}>${children}</a>`;
}

const link = (words, about) => html`<${Because} of=${about}>${words}<//>`;

export function Sentence({ setting }) {
  const { state, table, card, decode, asked } = setting;
  const { users } = state;
  const cards = asked.devices > 1 ? `${asked.devices} × ${card.title}` : `${/^[AEIOU]|^NVIDIA/.test(card.title) ? "an" : "a"} ${card.title}`;
  const floor = decode.seconds.floor;
  const each = html`${link(three_digits(1 / floor), "seconds")} tokens per second${users > 1 ? html` each, ${link(three_digits(users / floor), "seconds")} in total` : ""}`;
  return html`<h1 class="sentence">
    ${users === 1 ? "One user" : `${grouped(users)} users`} of <strong>${table.model}</strong> on <strong>${cards}</strong>:
    ${" "}every ${users === 1 ? "token" : "step"} reads ${link(say_gb(gb(decode.weight_bytes + decode.kv_read_bytes)), "bytes")}.
    ${" "}At best ${link(say_seconds(floor), "seconds")}, ${each};
    ${" "}${waits(decode)}
  </h1>`;
}

function waits(decode) {
  if (decode.limit === "compute") return html`the memory is idle ${link(share(1 - decode.memory / decode.seconds.floor), "roofs")} of the time.`;
  return html`the arithmetic units are idle ${link(share(decode.idle), "roofs")} of the time.`;
}

/** Return a share, with one decimal if only that shows the last percent. */
function share(part) {
  return part > 0.9 ? `${fixed(100 * part, 1)} %` : `${fixed(100 * part, 0)} %`;
}

/** Show the prediction, its interval and where that comes from, and why the card does not take more users. */
export function Beneath({ setting }) {
  const { decode, state, context, wall, serving, intervals } = setting;
  const { expected, floor } = decode.seconds;
  const { memory } = serving;
  const under = wall < decode.ridge;
  return html`<p class="beneath">
    Expected ${link(say_seconds(expected), "seconds")} <span class="interval">${time_interval(intervals.decode, expected, floor)}</span>,
    ${" "}${link(three_digits(1 / expected), "seconds")} <span class="interval">${rate_interval(intervals.decode, 1 / expected, 1 / floor)}</span> tokens per second${state.users > 1 ? " each" : ""}
    ${" "}<small>(${originOf(setting, "decode")})</small>.
    ${" "}${under
      ? html`Whatever the number of users: at ${grouped(context)} tokens of context each has its own keys and values, so the step stays at
        ${" "}${three_digits(wall)} FLOP/byte, below the ridge at ${link(three_digits(decode.ridge), "roofs")}.`
      : html`At ${grouped(context)} tokens of context large batches are compute-bound, because the ridge is at ${link(three_digits(decode.ridge), "roofs")} FLOP/byte.`}
    ${" "}${memory.fits ? html`Memory holds ${people(memory.users)}.` : html`It does not fit: each GPU lacks ${percent(memory.missing / memory.total)} of its size.`}
  </p>`;
}
