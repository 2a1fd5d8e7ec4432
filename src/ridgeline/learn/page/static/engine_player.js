// Recorded runs of an engine, one step at a time: played, stopped, scrubbed.

import { html, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { Slider } from "page/controls.js";
import { EngineState } from "page/engine_state.js";

const PACES = [2, 5, 10, 30]; // steps per second

/** A run at a position: 0 is its snapshot, and each later one adds a frame. */
class Replay {
  constructor(run) {
    this.run = run;
    this.engine = new EngineState();
    this.at = -1;
  }

  /** Go to a position: forward by the frames in between, back from the beginning. */
  seek(place) {
    if (place < this.at || this.at < 0) {
      this.engine.take(this.run.snapshot);
      this.at = 0;
    }
    for (const frame of this.run.frames.slice(this.at, place)) this.engine.take(frame);
    this.at = place;
    return this.engine;
  }
}

/** Return { engine, revision, idle } of a run at a position, like `useLive` for a served engine. */
export function useReplay(run, place) {
  const replay = useMemo(() => new Replay(run), [run]);
  const engine = replay.seek(Math.max(0, Math.min(place, run.frames.length)));
  return { engine, revision: `${run.id}.${place}`, idle: 0 };
}

/** Show the controls of a run. place, setPlace: frames of the run. */
export function Player({ runs, run, choose, place, setPlace, active }) {
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)").matches, []);
  const [plays, setPlays] = useState(!still && place === 0);
  const [pace, setPace] = useState(PACES[1]);
  const last = run.frames.length;
  const ended = place >= last;
  const current = useRef(place);
  current.current = place;
  useEffect(() => {
    if (!plays || !active || ended) return undefined;
    const timer = setInterval(() => setPlace(Math.min(last, current.current + 1)), 1000 / pace);
    return () => clearInterval(timer);
  }, [plays, active, ended, pace, run]);
  const go = (to) => {
    setPlays(false);
    setPlace(Math.max(0, Math.min(last, to)));
  };
  const play = () => {
    if (ended) setPlace(0);
    setPlays(ended || !plays);
  };
  return html`<section class="card player" aria-label="Recorded run">
    <div class="choices" role="group" aria-label="Runs">
      ${runs.map(
        (each) => html`<button
          key=${each.id}
          type="button"
          aria-pressed=${each.id === run.id ? "true" : "false"}
          onClick=${() => {
            choose(each.id);
            setPlays(!still);
          }}
        >
          ${each.title}
        </button>`,
      )}
    </div>
    <p>${run.words}</p>
    <div class="controls">
      <button type="button" class="main" onClick=${play}>${plays && !ended ? "Pause" : ended ? "Again" : "Play"}</button>
      <button type="button" class="quiet" aria-label="A step back" onClick=${() => go(place - 1)}>◂</button>
      <button type="button" class="quiet" aria-label="A step on" onClick=${() => go(place + 1)}>▸</button>
      <label>Steps per second
        <select onChange=${(event) => setPace(Number(event.target.value))}>
          ${PACES.map((each) => html`<option value=${each} selected=${each === pace}>${each}</option>`)}
        </select>
      </label>
    </div>
    <${Slider} name="Step" value=${place} shown=${`${place} of ${last}`} ...${{ least: 0, most: last, step: 1, onInput: go }} />
  </section>`;
}
