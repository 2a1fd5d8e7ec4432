// The tab *Calculator*: the predicted speed of a model on a card.

import { html, useCallback, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { Bar } from "page/calc_bar.js";
import { longestContext, settingOf, withContext } from "page/calc_case.js";
import { nameOf, useCatalogue, useTables } from "page/calc_data.js";
import { Given } from "page/calc_given.js";
import { Folklore } from "page/calc_folklore.js";
import { Levers } from "page/calc_levers.js";
import { Race } from "page/calc_race.js";
import { Beneath, Sentence } from "page/calc_sentence.js";
import { Take } from "page/calc_take.js";
import { Why } from "page/calc_why.js";
import { LoadChart } from "page/chart_load.js";
import { Roofline } from "page/chart_roofline.js";
import { Tower } from "page/chart_tower.js";
import { Trouble } from "page/controls.js";
import { prefillOf } from "page/plan.js";
import { tableName } from "page/source.js";
import { formerly, number, text, whole } from "page/state.js";
import { inTurn } from "page/turns.js";

export const id = "calculator";
export const title = "Calculator";

/**
 * The fields of the address. model: "" is the served one; weights, kv: "" is the released format; ttft, tpot: seconds,
 * 0 is no target; use: the share of memory; rival: the GPU of the race. Their other names are those of `ridgeline
 * plan`.
 */
export const fields = {
  model: text("", 200),
  card: formerly(text("a100-sxm-80gb", 100), "device"),
  cards: formerly(whole(1, 1, 8), "devices"),
  weights: text("", 20),
  kv: text("", 20),
  input: whole(1500, 1, 2 ** 24),
  output: whole(1000, 1, 2 ** 24),
  users: formerly(whole(1, 1, 2048), "batch"),
  ttft: number(1, 0, 1000),
  tpot: number(0.05, 0, 1000),
  use: formerly(number(0.9, 0.3, 1), "memory-utilization"),
  rival: text("h100-sxm", 100),
};

/** Return whether there are prices: a server without a language model has none. */
export function available(context) {
  if (context.served) return context.models.some((model) => model.routes?.includes("/v1/completions"));
  return context.names.includes("cards.json") && context.names.includes("models.json");
}

const WELL_KNOWN = { model: "llama-3-8b", card: "h100-sxm", input: 1500, output: 1000 };

/** Return a well-known model on a well-known GPU; a file may lack that model. */
export function example(context) {
  const { model, ...rest } = WELL_KNOWN;
  const has = context.served || context.names.includes(tableName(model, { devices: 1 }));
  const own = has ? WELL_KNOWN : rest;
  return { says: `Plan ${has ? model : "a model"} on an H100`, shows: "memory, users, speed and cost, predicted", own };
}

const QUIET = 200; // milliseconds from a change to the address: browsers slow down pages that write it more often

/** Return the state during a drag, before it is in the address. */
function useDragged(state, set) {
  const [ahead, setAhead] = useState({});
  const waiting = useRef({ own: {}, timer: 0 });
  const change = useCallback((own) => {
    const { current } = waiting;
    Object.assign(current.own, own);
    setAhead({ ...current.own });
    clearTimeout(current.timer);
    current.timer = setTimeout(() => {
      set(current.own);
      current.own = {};
      setAhead({});
    }, QUIET);
  }, []);
  return [{ ...state, ...ahead }, change];
}

const SEEN = "ridgeline.seen";

/** Return whether the dot should show that it can be moved. */
function firstVisit() {
  try {
    const seen = sessionStorage.getItem(SEEN);
    sessionStorage.setItem(SEEN, "1");
    return !seen && !matchMedia("(prefers-reduced-motion: reduce)").matches;
  } catch {
    return false;
  }
}

const [PAUSE, TRAVEL, STEP_TO] = [1600, 1100, 32];

/** Move the dot from one user to 32. Returns a function that ends it. */
function useFirstStep(ready, active, state, change) {
  const own = useRef({ timer: 0, done: false });
  const stop = useCallback(() => {
    own.current.done = true;
    clearTimeout(own.current.timer);
    cancelAnimationFrame(own.current.frame);
  }, []);
  useEffect(() => {
    if (!ready || !active || own.current.done) return;
    if (state.users !== 1 || !firstVisit()) return stop();
    const go = (start) => (now) => {
      const part = Math.min(1, (now - start) / TRAVEL);
      change({ users: Math.round(STEP_TO ** (part * part * (3 - 2 * part))) });
      if (part < 1 && !own.current.done) own.current.frame = requestAnimationFrame(go(start));
    };
    own.current.timer = setTimeout(() => {
      own.current.frame = requestAnimationFrame((now) => go(now)(now));
    }, PAUSE);
    return stop;
  }, [ready, active]);
  return stop;
}

// Parts that follow a drag after the dragged ones are drawn.
const [WhyInTurn, RaceInTurn, TakeInTurn, FolkloreInTurn] = [Why, Race, Take, Folklore].map(inTurn);

export function view({ source, context, active, state: said, set }) {
  const { all, models, error } = useCatalogue(source);
  const [tableOf, give] = useTables(source);
  const [asked, dragOn] = useDragged(said, set);
  const model = asked.model || (models && (models.models.find((each) => each.served)?.name ?? "llama-3-8b"));
  const table = model && tableOf({ ...asked, model });
  const cut = useRef({}); // the default workload, reduced to the context of the served model
  cut.current = table?.context < 2500 && asked.input === 1500 && asked.output === 1000 && !asked.model ? withContext(asked, longestContext(table, asked)) : {};
  const state = { ...asked, model, ...cut.current };
  const drag = useCallback((own) => dragOn(own.model ? own : { ...cut.current, ...own }), []);
  const [touched, setTouched] = useState(false);
  const [pointed, setGhost] = useState(null);
  const [pinned, setPinned] = useState(null);
  const pin = useCallback((other) => setPinned((before) => (before ? null : other)), []);
  const ghost = pointed ?? pinned;
  const last = useRef(null);
  const [setting, trouble] = useMemo(() => attempt(table, all, state, last.current), [table, all, JSON.stringify(state)]);
  if (setting) last.current = setting;
  // The figures of the previous choice stay while those of the new one are read. They are hidden if that takes longer.
  const shown = setting ?? (trouble ? null : last.current);
  const waits = all && !setting && !trouble;
  const stop = useFirstStep(Boolean(setting), active, state, drag);
  const change = useCallback((own) => {
    stop();
    setTouched(true);
    drag(own);
  }, []);
  const prefill = useMemo(() => shown && prefillOf(shown.asked, { ...shown.workload, batch: 1 }), [shown?.asked, shown?.workload.input]);
  const challenge = useCallback((rival) => drag({ rival }), []);
  const look = useCallback((own) => (change(own), scrollTo({ top: 0, behavior: "smooth" })), []);
  const known = useCallback((name, model) => (models.tables ? models.tables.includes(name) : models.models.some((each) => each.name === model)), [models]);
  const names = useMemo(() => (all ? Object.keys(all.cards) : []), [all]);
  if (error) return html`<${Trouble}>${error}<//>`;
  if (!all) return html`<p class="notice busy" role="status">Loading prices.</p>`;
  const has = (own) => !models.tables || models.tables.includes(nameOf({ ...state, ...own }));
  return html`
    <${Bar} ...${{ state, has, onChange: change }} models=${models.models.map((each) => each.name)} cards=${names}>
      <${Given} ...${{ source, active }} model=${state.model} onGiven=${(model, config) => (give(model, config), change({ model }))} />
    <//>
    ${trouble && html`<${Trouble}>${trouble}<//>`}
    <p class="pending" role="status">${waits ? `Loading the prices of ${whatOf(state)}.` : ""}</p>
    ${shown &&
    html`<div class="figures" inert=${!setting} aria-busy=${setting ? null : "true"}>
      <div class="first">
        <${Sentence} setting=${shown} />
        <div class="pictures">
          <${Roofline} setting=${shown} ghost=${ghost} ...${{ touched, prefill, onChange: change }} />
          <${Tower} setting=${shown} ghost=${ghost} onChange=${change} />
        </div>
        <${Beneath} setting=${shown} />
      </div>
      <div class="under">
        <${LoadChart} setting=${shown} now=${state} ghost=${ghost} onChange=${change} />
        <${Levers} setting=${shown} ...${{ all, tableOf, has, onGhost: setGhost, onPin: pin, onChange: change }} />
        <${WhyInTurn} setting=${shown} />
        <${RaceInTurn} setting=${shown} all=${all} cards=${names} rival=${state.rival} onRival=${challenge} ...${{ source, context }} />
        <${TakeInTurn} setting=${shown} />
      </div>
    </div>`}
    <${FolkloreInTurn} ...${{ all, tableOf, known }} onChange=${look} />
  `;
}

/** Return a model and how it is stored, in words. */
function whatOf({ model, weights, kv, cards }) {
  const stored = [weights && `${weights} weights`, kv && `${kv} KV`, cards > 1 && `${cards} GPUs`].filter(Boolean);
  return [model, ...stored].join(", ");
}

/** Return a Setting, or the reason why there is none, in words. */
function attempt(table, all, state, before) {
  if (!table || !all) return [null, ""];
  if (table.error) return [null, table.error];
  try {
    return [settingOf(table, all, state, before), ""];
  } catch (error) {
    return [null, error.message];
  }
}
