// The tab *One token*: the path of a text through the model, op by op, as recorded: typed into a served page, or in the
// file that is the page.

import { html, useCallback, useEffect, useMemo, useState } from "page/dom.js";
import { DrawChart } from "page/chart_draw.js";
import { StepChart } from "page/chart_step.js";
import { modelsOf } from "page/context.js";
import { Choice, Said, Trouble } from "page/controls.js";
import { say_seconds } from "page/numbers.js";
import { oneOf, whole } from "page/state.js";
import { TraceForm } from "page/token_form.js";
import { Inside } from "page/token_inside.js";
import { OpCard } from "page/token_op.js";
import { readRecording } from "page/token_recording.js";
import { StepFacts } from "page/token_step.js";
import { TokenText } from "page/token_text.js";

export const id = "token";
export const title = "One token";

const RECORDED = "recordings.json";
const ROUTE = "page/trace";

/** The fields of the address: the selection, but not the text. null: the last. */
export const fields = {
  step: oneOf(["decode", "prefill"]),
  op: whole(0, 0, 2 ** 20),
  layer: whole(null, 0, 2 ** 16),
  head: whole(null, 0, 2 ** 16),
};

/** Return whether a server can record a text, or a file has recorded ones. */
export function available(context) {
  return context.served ? modelsOf(context, `/${ROUTE}`).length > 0 : context.names.includes(RECORDED);
}

export function example(context) {
  const name = context.served ? modelsOf(context, `/${ROUTE}`)[0].id : "a model";
  return { says: `Follow one token through ${name}`, shows: "op by op, predicted next to measured" };
}

/** Return the recordings, the selected one, and a function that requests another. */
function useRecordings(context, source) {
  const [{ list, place }, setRecordings] = useState({ list: [], place: 0 });
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    if (context.served) return;
    source.data(RECORDED).then((found) => setRecordings({ list: found, place: 0 }), (error) => setTrouble(error.message));
  }, []);
  const ask = async (body) => {
    setBusy(true);
    setTrouble("");
    try {
      const made = await source.post(ROUTE, body);
      setRecordings((before) => ({ list: [...before.list, made], place: before.list.length }));
    } catch (error) {
      setTrouble(error.message);
    }
    setBusy(false);
  };
  const choose = (at) => setRecordings((before) => ({ ...before, place: at }));
  return { list, place, choose, ask, busy, trouble };
}

export function view({ context, source, active, state, set }) {
  const recordings = useRecordings(context, source);
  const raw = recordings.list[recordings.place];
  const recording = useMemo(() => (raw ? readRecording(raw) : null), [raw]);
  return html`
    ${context.served && html`<${TraceForm} context=${context} busy=${recordings.busy} onAsk=${recordings.ask} />`}
    ${recordings.trouble && html`<${Trouble}>${recordings.trouble}<//>`}
    ${recordings.list.length > 1 && html`<${Recorded} recordings=${recordings} />`}
    <${Said}>${recordings.busy ? "The engine is measuring." : recording ? `Recorded. The model continues with: ${recording.answer}` : ""}<//>
    ${recording && html`<${Way} key=${recordings.place} ...${{ recording, active, state, set }} />`}
  `;
}

function Recorded({ recordings }) {
  const choices = recordings.list.map((each, at) => [at, `${each.model}: ${each.text}`]);
  const onInput = (at) => recordings.choose(Number(at));
  return html`<${Choice} name="Recorded" value=${recordings.place} choices=${choices} onInput=${onInput} />`;
}

/** Show one recording. */
function Way({ recording, active, state, set }) {
  const step = recording.steps.find((each) => each.name === state.step) ?? recording.steps[0];
  const at = recording.steps.indexOf(step);
  const place = Math.min(state.op, step.ops.length - 1);
  const [position, setPosition] = useState(recording.prompt.length - 1);
  const toOp = useCallback((next) => set({ op: Math.min(Math.max(0, next), step.ops.length - 1) }), [step]);
  const draw = recording.draws[at];
  return html`
    <${TokenText} ...${{ recording, position, state }} onPosition=${setPosition} />
    <div class="way">
      <section class="card" aria-label="The step">
        <div class="steps" role="group" aria-label="Step">
          ${recording.steps.map(
            (each) => html`<button type="button" class="quiet" key=${each.name} aria-pressed=${each === step ? "true" : "false"} onClick=${() => set({ step: each.name })}>
              ${each.name} <span class="dim">${say_seconds(each.measured)}</span>
            </button>`,
          )}
        </div>
        <${StepChart} key=${step.name} ...${{ step, place, active, onPlace: toOp }} />
        <${StepFacts} ...${{ recording, step }} />
      </section>
      <${OpCard} ...${{ step, op: step.ops[place], device: recording.device }} />
    </div>
    <div class="inside">
      <${Inside} ...${{ recording, position, state, set }} />
      ${draw && html`<${DrawChart} ...${{ draw, rules: recording.rules, name: step.name }} />`}
    </div>
  `;
}
