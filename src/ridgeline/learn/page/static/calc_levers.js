// Levers: possible changes and their effect. Pointing at one shows it in the charts; a click applies it.

import { html, useRef } from "page/dom.js";
import { settingOf } from "page/calc_case.js";
import { nameOf } from "page/calc_data.js";
import { figuresOf } from "page/calc_figures.js";
import { costWith, timeWith } from "page/calc_interval.js";
import { scaled } from "page/price.js";
import { digits, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";
import { inTurn } from "page/turns.js";

/** Return the possible changes: [name, changes of the state, or of the card {flops, bandwidth}]. */
function changesOf(setting, all) {
  const { state, card, table } = setting;
  const eight = "fp8" in card.peaks ? "fp8" : "int8";
  const next = nextCard(card, all);
  return [
    table.weights === "bf16" && [`${eight} weights`, { weights: eight }],
    table.kv === "bf16" && [`${eight} KV`, { kv: eight }],
    card.link && state.cards < 8 && [`${2 * state.cards} GPUs`, { cards: 2 * state.cards }],
    next && [next.name, { card: next.name }],
    ["twice the FLOP/s", null, { flops: 2 }],
    ["twice the bandwidth", null, { bandwidth: 2 }],
  ].filter(Boolean);
}

/** Return the slowest card with noticeably more bandwidth among those that have a price. */
function nextCard(card, { cards }) {
  const faster = Object.values(cards).filter((each) => each.kind === card.kind && each.prices.length && each.bandwidth > 1.15 * card.bandwidth);
  return faster.sort((a, b) => a.bandwidth - b.bandwidth)[0];
}

/**
 * Return the Setting of a lever, null while its table is read, or a text if there is none. before: the Setting before
 * the change.
 */
export function leverSetting(setting, all, [, own, more], tableOf, before) {
  try {
    if (own) {
      const state = { ...setting.state, ...own };
      const table = tableOf(state);
      if (!table || table.error) return table ? table.error : null;
      return settingOf(table, all, state, before);
    }
    const card = before?.card.of === setting.card ? before.card : { ...scaled(setting.card, more), of: setting.card };
    const cards = { ...all.cards, [card.name]: card };
    return settingOf(setting.table, { ...all, cards }, setting.state, before);
  } catch (error) {
    return error.message;
  }
}

export function Levers({ setting, all, tableOf, has, onGhost, onPin, onChange }) {
  const rows = changesOf(setting, all).filter(([, own]) => !own || has(own));
  const { ttft, itl, users, dollars, floors } = figuresOf(setting);
  const { prefill, decode, load } = setting.intervals;
  return html`<section class="card levers" aria-labelledby="levers-title">
    <h2 id="levers-title">Levers</h2>
    <p class="lead">Effect of each change as a factor; above 1 is better. Point at a change to see it in the charts. Shift-click keeps it there; another Shift-click removes it.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Levers"><table>
      <thead><tr><th scope="col" class="words">instead</th><th scope="col">TTFT</th><th scope="col">step</th><th scope="col">users</th><th scope="col">dollars</th></tr>
        <tr class="now"><th scope="row" class="words">now</th><td>${timeWith(prefill, { expected: ttft, floor: floors.ttft })}</td><td>${timeWith(decode, { expected: itl, floor: floors.itl })}</td><td>${grouped(users)}</td><td>${dollars === null ? "–" : costWith(load, { expected: dollars, floor: floors.dollars })}</td></tr></thead>
      <tbody onMouseLeave=${() => onGhost(null)}>
        ${rows.map((row) => html`<${Lever} key=${row[0]} ...${{ row, setting, all, tableOf, onGhost, onPin, onChange }} />`)}
      </tbody>
    </table></div>
    <p class="dim small">TTFT, on average, and step: all users of the workload at once. Users and dollars per million output tokens (same seller): the most users within the targets. Quality is not priced. [a .. b] holds 8 of 10 measurements of such cases; a factor compares two predictions.</p>
  </section>`;
}

/** A lever is drawn in its turn: six levers take longer than a frame. */
const Lever = inTurn(function Lever({ row, setting, all, tableOf, onGhost, onPin, onChange }) {
  const [name, own] = row;
  const last = useRef(null);
  const other = leverSetting(setting, all, row, tableOf, last.current);
  if (other && typeof other !== "string") last.current = other;
  const base = figuresOf(setting);
  const found = other && typeof other !== "string" ? figuresOf(other, setting.card.prices[0]?.seller) : null;
  const show = () => found && onGhost(other);
  const cells = found && [base.ttft / found.ttft, base.itl / found.itl, ratio(found.users, base.users), ratio(base.dollars, found.dollars)];
  return html`<tr onMouseEnter=${show}>
    <th scope="row" class="words">
      ${own
        ? html`<button type="button" class="quiet lever" onFocus=${show} onBlur=${() => onGhost(null)} onClick=${({ shiftKey }) => (shiftKey ? found && onPin(other) : onChange(own))}>${name}</button>`
        : html`<span class="lever">${name}</span>`}
    </th>
    ${cells
      ? cells.map((factor) => html`<td class=${factor === null ? "" : factor >= 1.03 ? "more" : factor <= 0.97 ? "less" : ""}>${factor === null ? "–" : `× ${factor < 10 ? digits(factor, 3) : three_digits(factor)}`}</td>`)
      : html`<td colspan="4" class="words dim">${other === null ? "loading" : other}</td>`}
  </tr>`;
});

function ratio(after, before) {
  return after && before ? after / before : null;
}
