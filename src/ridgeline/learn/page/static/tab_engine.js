// The tab *Engine*: what the engine does now, or did in recorded runs: its pages, its requests, its steps.

import { html, useEffect, useState } from "page/dom.js";
import { modelsOf } from "page/context.js";
import { Trouble } from "page/controls.js";
import { Gauges } from "page/engine_gauges.js";
import { Hands } from "page/engine_hands.js";
import { Lanes } from "page/engine_lanes.js";
import { useLive } from "page/engine_live.js";
import { PageMap } from "page/engine_map.js";
import { Player, useReplay } from "page/engine_player.js";
import { StepStrip } from "page/engine_steps.js";
import { Notice } from "page/entrance.js";
import { text, whole } from "page/state.js";

export const id = "engine";
export const title = "Engine";

const RUNS = "runs.json";
const DARK = "(prefers-color-scheme: dark)";

/** For a file: the recorded run, and the position in it. */
export const fields = { run: text("", 40), step: whole(0, 0, 1e6) };

/** Return whether there is an engine or a recorded one. */
export function available(context) {
  return context.served ? modelsOf(context, "/v1/completions").length > 0 : context.names.includes(RUNS);
}

export function example(context) {
  const says = context.served ? "Watch the engine at work" : "Watch an engine at work";
  return { says, shows: "its memory, requests and steps" };
}

export function view(given) {
  return given.context.served ? html`<${Live} ...${given} />` : html`<${Recorded} ...${given} />`;
}

function Live({ context, source, active }) {
  const { engine, revision, idle, trouble } = useLive(source, active);
  const [model] = modelsOf(context, "/v1/completions");
  if (!engine.begun) {
    return trouble ? html`<${Trouble}>${trouble}<//>` : html`<${Notice} busy>Loading the state of the engine.<//>`;
  }
  return html`
    ${trouble && html`<${Trouble}>${trouble}<//>`}
    <${Gauges} ...${{ engine, idle }} />
    <${Hands} ...${{ source, model, active }} />
    <${Panels} ...${{ engine, revision }} />
  `;
}

function Recorded({ source, active, state, set }) {
  const [data, setData] = useState(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    source.data(RUNS).then(setData, (error) => setTrouble(error.message));
  }, []);
  if (trouble) return html`<${Trouble}>${trouble}<//>`;
  if (!data) return html`<${Notice} busy>Unpacking the recorded runs.<//>`;
  return html`<${Replayed} ...${{ runs: data.runs, active, state, set }} />`;
}

function Replayed({ runs, active, state, set }) {
  const run = runs.find(({ id: name }) => name === state.run) ?? runs[0];
  const place = Math.min(state.step, run.frames.length);
  const { engine, revision, idle } = useReplay(run, place);
  return html`
    ${state.run && run.id !== state.run && html`<${Trouble}>This file has no run ${state.run}; it plays ${run.title}.<//>`}
    <${Player}
      ...${{ runs, run, place, active }}
      choose=${(name) => set({ run: name, step: 0 })}
      setPlace=${(step) => set({ step })}
    />
    <${Gauges} ...${{ engine, idle }} />
    <${Panels} ...${{ engine, revision }} />
  `;
}

/** Show the moving parts, next to each other if there is room. */
function Panels({ engine, revision }) {
  const [dark, setDark] = useState(() => matchMedia(DARK).matches);
  useEffect(() => {
    const query = matchMedia(DARK);
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return html`<div class="views">
    <${PageMap} ...${{ engine, revision }} />
    <${Lanes} ...${{ engine, dark }} />
    <${StepStrip} ...${{ engine, revision }} />
  </div>`;
}
