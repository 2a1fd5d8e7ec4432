// The tab *Pictures*: the images and videos of a server's pipelines, with the progress of each stage next to its
// predicted time, a preview, and a button to stop. In a file it shows a recorded one, step by step.

import { html, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { modelsOf } from "page/context.js";
import { Choice, Field, Said, Slider, Trouble, WholeField } from "page/controls.js";
import { after, begun, ofJob } from "page/drawing.js";
import { Drawing } from "page/drawing_parts.js";
import { number, text, whole } from "page/state.js";

export const id = "pictures";
export const title = "Pictures";

const RECORDED = "pictures.json";
const [IMAGES, VIDEOS] = ["/v1/images/generations", "/v1/videos"];
const PREVIEWS = 3;
const [FEWEST, MOST] = [250, 3000]; // milliseconds between two requests for the state of a video
const PACE = 250; // milliseconds for which a recorded event is shown

/**
 * The fields of the address: the parameters, but not the prompt. null: the model's own. at: the position in a recorded
 * one.
 */
export const fields = {
  model: text("", 200),
  size: text("", 20),
  steps: whole(null, 1, 1000),
  guidance: number(null, 0, 100),
  seed: whole(null, 0, Number.MAX_SAFE_INTEGER),
  at: whole(null, 0, 1e4),
};

const drawersOf = (context) => [...modelsOf(context, IMAGES), ...modelsOf(context, VIDEOS)];

/** Return whether a server has a pipeline, or a file a recorded generation. */
export function available(context) {
  return context.served ? drawersOf(context).length > 0 : context.names.includes(RECORDED);
}

export function example(context) {
  const says = context.served ? `Draw with ${drawersOf(context)[0].id}` : "Watch an image being drawn";
  return { says, shows: "step by step, from noise" };
}

export function view(given) {
  return given.context.served ? html`<${Live} ...${given} />` : html`<${Recorded} ...${given} />`;
}

function Live({ context, source, state, set }) {
  const models = drawersOf(context);
  const model = models.find((each) => each.id === state.model) ?? models[0];
  const clips = model.routes.includes(VIDEOS);
  const [prompt, setPrompt] = useState("");
  const { drawing, busy, trouble, draw, stop } = useDrawing(source);
  const size = model.sizes.includes(state.size) ? state.size : model.sizes[0];
  const steps = state.steps ?? model.num_inference_steps;
  const guidance = state.guidance ?? model.guidance_scale;
  const submit = (event) => {
    event.preventDefault();
    if (busy) return;
    const body = { model: model.id, prompt, size, num_inference_steps: steps, guidance_scale: guidance };
    if (state.seed !== null) body.seed = state.seed;
    draw(body, clips);
  };
  return html`<form class="asked" onSubmit=${submit} onKeyDown=${(event) => event.key === "Escape" && busy && stop()}>
      ${models.length > 1 && html`<${Choice} name="Model" value=${model.id} choices=${models.map((each) => [each.id, each.id])} onInput=${(own) => set({ model: own, size: "", steps: null, guidance: null })} />`}
      <${Field} name="Prompt" type="area" value=${prompt} onInput=${setPrompt} />
      <${Choice} name="Size" value=${size} choices=${model.sizes.map((each) => [each, each.replace("x", " × ")])} onInput=${(own) => set({ size: own })} />
      <${Slider} name="Steps" value=${steps} shown=${String(steps)} least=${1} most=${Math.max(50, steps)} step=${1} onInput=${(own) => set({ steps: own })} />
      <${Slider} name="Guidance" value=${guidance} shown=${String(guidance)} least=${0} most=${Math.max(12, guidance)} step=${0.5} onInput=${(own) => set({ guidance: own })} />
      <${WholeField} name="Seed" value=${state.seed} least=${0} most=${Number.MAX_SAFE_INTEGER} usual="another each time" onInput=${(seed) => set({ seed })} />
      ${state.model && state.model !== model.id && html`<${Trouble}>This server has no pipeline ${state.model}; ${model.id} is used.<//>`}
      ${state.size && state.size !== size && html`<${Trouble}>${model.id} does not draw ${state.size}; the size is ${size}.<//>`}
      <div class="acts">
        ${busy ? html`<button type="button" class="main" onClick=${stop}>Stop</button>` : html`<button type="submit" class="main" disabled=${!prompt.trim()}>Draw</button>`}
      </div>
      ${trouble && html`<${Trouble}>${trouble}<//>`}
    </form>
    ${drawing ? html`<${Drawing} ...${{ drawing, busy }} name=${prompt} />` : html`<p class="greeting">The image appears here, with its measured time next to the predicted time.</p>`}
    <${Said}>${busy ? "The image is being drawn." : drawing?.file || drawing?.clip ? "The image is finished." : ""}<//>`;
}

/** Return the current generation, of which there is one at a time, and functions that start and end it. */
function useDrawing(source) {
  const [drawing, setDrawing] = useState(null);
  const [busy, setBusy] = useState(false);
  const [trouble, say] = useState("");
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  const draw = async (body, clips) => {
    const stopper = new AbortController();
    running.current = stopper;
    setBusy(true);
    say("");
    setDrawing((last) => {
      if (last?.clip) URL.revokeObjectURL(last.clip);
      return begun(body.num_inference_steps);
    });
    try {
      await (clips ? followJob : followPicture)(source, body, setDrawing, stopper.signal);
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
    setBusy(false);
  };
  return { drawing, busy, trouble, draw, stop: () => running.current?.abort() };
}

async function followPicture(source, body, show, signal) {
  const asked = { ...body, stream: true, progress: true, partial_images: PREVIEWS };
  for await (const event of source.events(IMAGES.slice(1), asked, { signal })) show((drawing) => after(drawing, event));
}

/** Follow a video job until it is finished. An abort deletes it. */
async function followJob(source, body, show, signal) {
  let job = await source.post(VIDEOS.slice(1), body);
  const address = `${VIDEOS.slice(1)}/${encodeURIComponent(job.id)}`;
  while (job.status === "queued" || job.status === "in_progress") {
    show(ofJob(job));
    await pause(Math.min(MOST, Math.max(FEWEST, (job.predicted_time_left_s ?? 0) * 100)), signal);
    if (signal.aborted) return source.remove(address);
    job = await source.get(address);
  }
  if (job.error) throw new Error(job.error.message);
  const clip = await source.blob(`${address}/content`);
  show({ ...ofJob(job), clip: URL.createObjectURL(clip) });
}

function pause(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

function Recorded({ source, active, state, set }) {
  const [runs, setRuns] = useState([]);
  const [trouble, say] = useState("");
  const [which, choose] = useState(0);
  useEffect(() => {
    source.data(RECORDED).then(setRuns, (error) => say(error.message));
  }, []);
  const run = runs[which];
  if (trouble) return html`<${Trouble}>${trouble}<//>`;
  if (!run) return html`<p class="notice busy" role="status">The recording is being read.</p>`;
  return html`<${Played} key=${which} ...${{ runs, run, which, choose, active, state, set }} />`;
}

function Played({ runs, run, which, choose, active, state, set }) {
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)").matches, []);
  const last = run.events.length;
  const [plays, setPlays] = useState(!still && state.at === null);
  const place = Math.min(state.at ?? (still ? last : 0), last);
  const now = useRef(place);
  now.current = place;
  useEffect(() => {
    if (!plays || !active || place >= last) return undefined;
    const timer = setInterval(() => set({ at: now.current + 1 }), PACE);
    return () => clearInterval(timer);
  }, [plays, active, place >= last]);
  const drawing = useMemo(() => run.events.slice(0, place).reduce(after, begun()), [run, place]);
  const go = (at) => (setPlays(false), set({ at }));
  return html`<div class="asked">
      ${runs.length > 1 && html`<${Choice} name="Recorded" value=${which} choices=${runs.map((each, at) => [at, each.prompt])} onInput=${(own) => (set({ at: 0 }), choose(Number(own)))} />`}
      <p><strong>${run.model}</strong>: ${run.prompt}</p>
      <${Slider} name="Event" value=${place} shown=${`${place} of ${last}`} least=${0} most=${last} step=${1} onInput=${go} />
      <div class="acts"><button type="button" class="main" onClick=${() => (place >= last && set({ at: 0 }), setPlays(place >= last || !plays))}>${place >= last ? "Again" : plays ? "Pause" : "Play"}</button></div>
    </div>
    <${Drawing} ...${{ drawing, busy: place < last }} name=${run.prompt} />`;
}
