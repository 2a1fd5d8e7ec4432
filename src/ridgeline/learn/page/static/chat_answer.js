// The turns of a conversation for reading: texts, folded reasoning, and the measured and predicted time of each
// response.

import { html, useMemo, useState } from "page/dom.js";
import { piecesOf } from "page/chat_turns.js";
import { Facts, Grown, Trouble } from "page/controls.js";
import { percent, say_seconds, three_digits } from "page/numbers.js";
import { sayPredicted } from "page/predicted.js";
import { grouped } from "page/python.js";

/** Show the user's message, and a way to edit it. onEdit: null while it cannot be edited. */
export function Question({ turn, onEdit }) {
  const [draft, setDraft] = useState(null);
  if (draft === null) {
    return html`<div class="question">
      <div class="words">${turn.text}</div>
      ${onEdit && html`<div class="acts"><button type="button" class="quiet" onClick=${() => setDraft(turn.text)}>Edit</button></div>`}
    </div>`;
  }
  const save = (event) => {
    event.preventDefault();
    setDraft(null);
    onEdit(draft);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") setDraft(null);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(event);
  };
  return html`<form class="question editing" onSubmit=${save}>
    <${Grown} value=${draft} onInput=${setDraft} onKeyDown=${onKeyDown} aria-label="Edit your message" />
    <div class="acts">
      <button type="button" class="quiet" onClick=${() => setDraft(null)}>Cancel</button>
      <button type="submit" class="main" disabled=${!draft.trim()}>Ask again</button>
    </div>
  </form>`;
}

/**
 * Show a response. writing: whether it is still being generated. place: the index of the selected token, or -1 for
 * none. onPlace: called when another one is selected. onAgain: null if it cannot be generated again. revision: changes
 * with the contents.
 */
export function Answer({ turn, writing, place, onPlace, onAgain, revision }) {
  const pieces = useMemo(() => (writing ? null : piecesOf(turn)), [writing, revision]);
  const empty = !turn.text && !turn.thought;
  return html`<div class="answer">
    ${turn.thought && html`<${Thought} text=${turn.thought} open=${writing && !turn.text} />`}
    <div class=${writing ? "words writing" : "words"} onClick=${(event) => onPlace(placeOf(event))}>
      ${pieces ? html`<${Pieces} pieces=${pieces} place=${place} />` : turn.text.trimStart()}${writing && empty && html`<span class="wait">…</span>`}
    </div>
    ${turn.error && html`<${Trouble}>${turn.error}<//>`}
    ${!writing && html`<div class="acts">
      <${Took} turn=${turn} />
      <span class="last">
        ${navigator.clipboard && turn.text && html`<${Copy} text=${turn.text} />`}
        ${onAgain && html`<button type="button" class="quiet" onClick=${onAgain}>Again</button>`}
      </span>
    </div>`}
  </div>`;
}

function placeOf(event) {
  const place = event.target.dataset?.place;
  return place === undefined ? -1 : Number(place);
}

/** Show each token separately, to be pointed at; the slider of candidates does the same by keys. */
function Pieces({ pieces, place }) {
  return pieces.map((piece, at) => html`<span key=${at} data-place=${at} class=${at === place ? "piece looked" : "piece"}>${at === 0 ? piece.trimStart() : piece}</span>`);
}

function Thought({ text, open }) {
  return html`<details class="thought" open=${open}>
    <summary>${open ? "Thinking" : "Thoughts"}</summary>
    <div class="words">${text}</div>
  </details>`;
}

function Copy({ text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text).then(() => setDone(true), () => setDone(false));
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="quiet" onClick=${copy}>${done ? "Copied" : "Copy"}</button>`;
}

const ENDS = { length: "cut off at the maximum length", stop: "", abort: "stopped", error: "failed", stopped: "stopped" };

/** Show the time of a response: one line, and the table that it unfolds. */
function Took({ turn }) {
  const { times, trace, end } = turn;
  const ended = ENDS[end] ?? end;
  if (!times) return ended ? html`<span class="took">${ended}</span>` : null;
  const parts = [
    tokens(times.predicted_n),
    times.predicted_per_second > 0 && `${three_digits(times.predicted_per_second)} tok/s out`,
    `first in ${say_seconds(times.first_token_ms / 1e3)}`,
    ended,
  ];
  return html`<details class="took">
    <summary>
      <span>${parts.filter(Boolean).join(" · ")}</span>
      ${trace?.predicted_seconds && html`<${Priced} trace=${trace} />`}
    </summary>
    <${Facts} rows=${rowsOf(times, trace)} />
  </details>`;
}

function tokens(count) {
  return `${grouped(count)} ${count === 1 ? "token" : "tokens"}`;
}

function rowsOf(times, trace) {
  const ms = (value) => say_seconds(value / 1e3);
  const rate = (value) => (value > 0 ? `${three_digits(value)} tok/s` : "");
  const kept = times.cache_n ? `, ${grouped(times.cache_n)} from the prefix cache` : "";
  const rows = [
    ["queue", ms(times.queued_ms)],
    ["prompt", ms(times.prompt_ms), `${tokens(times.prompt_n)} in${kept} · ${rate(times.prompt_per_second)}`],
    ["response", ms(times.predicted_ms), [`${tokens(times.predicted_n)} out`, rate(times.predicted_per_second)].filter(Boolean).join(" · ")],
    ["total", ms(times.total_ms)],
  ];
  if (!trace) return rows;
  rows.push(["steps, measured", say_seconds(trace.step_seconds), `${grouped(trace.steps)} steps of the engine`]);
  if (trace.predicted_seconds) {
    const share = trace.predicted_share ? `${percent(trace.predicted_share)} of the measured time` : "";
    rows.push(["steps, predicted", predictedOf(trace), share]);
    rows.push(["steps, floor", say_seconds(trace.floor_seconds), "the physical limit"]);
  }
  return rows;
}

/** Return the predicted time of a response's steps, which may be prefills, decode steps or both in one. */
const predictedOf = (trace) => sayPredicted(trace.predicted_seconds, trace.predicted_intervals?.mixed);

/** Show steps as predicted (outline) and measured (bar), and the lower bound (mark). The table has all of them. */
export function Priced({ trace }) {
  const { step_seconds: measured, predicted_seconds: predicted, floor_seconds: floor } = trace;
  const longest = Math.max(measured, predicted);
  const [fill, outline, mark] = [measured, predicted, floor].map((value) => (100 * value) / longest);
  const words = `steps ${say_seconds(measured)}, predicted ${predictedOf(trace)}`;
  return html`<span class="priced">
    <svg class="bars" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
      <rect class="fill" x="0" y="3" width=${fill} height="8" />
      <rect class="outline" x="0.5" y="1.5" width=${Math.max(0, outline - 1)} height="11" />
      <line class="mark" x1=${mark} x2=${mark} y1="0" y2="14" />
    </svg>
    ${words}
  </span>`;
}
