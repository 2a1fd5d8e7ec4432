// The race: the same story at the speed of two cards, as one user would see it appear.

import { html, useEffect, useMemo, useRef, useState } from "page/dom.js";
import { measuredOf, settingOf } from "page/calc_case.js";
import { rateWith, timeWith } from "page/calc_interval.js";
import { Live } from "page/calc_live.js";
import { Trouble, useId } from "page/controls.js";
import { Estimate_add, Estimate_mul, Estimate_per_second } from "page/plan_formulas.js";

const STORY = (
  "Once there was a card that could count faster than anyone. It waited all day, for it had nothing to count: every number " +
  "had to be carried up from the cellar first, and the stairs were narrow. One day a second guest came, and asked for the " +
  "same numbers. The card laughed, for one walk down the stairs was now enough for two. Soon thirty guests sat at the table. " +
  "But each had brought a suitcase of their own, and the suitcases had to go up the stairs as well."
).split(/(?<= )/);

export function Race({ setting, all, cards, rival, onRival, source, context }) {
  const id = useId();
  const own = all.cards[rival];
  const [elapsed, start, running] = useClock();
  const runners = useMemo(() => [setting, attempt(setting, all, rival)].filter(Boolean).map(paceOf), [setting, rival]);
  return html`<section class="card race" aria-labelledby="race-title">
    <h2 id="race-title">Race</h2>
    <p class="lead">The same story as ${setting.state.users === 1 ? "one user sees" : "each user sees"} it typed, at the expected pace; [a .. b] holds 8 of 10 measurements of such cases.
      ${" "}<label for=${id}>Against</label>${" "}
      <select id=${id} onChange=${(event) => onRival(event.target.value)}>${cards.map((name) => html`<option value=${name} selected=${name === own?.name}>${name}</option>`)}</select>
      ${" "}<button type="button" class="main" onClick=${start}>${running ? "Again" : "Start"}</button></p>
    ${rival && !own && html`<${Trouble}>There is no GPU ${rival} to compare with; choose another.<//>`}
    ${runners.map(({ name, first, pace, intervals, origin }) => {
      const written = Math.max(0, Math.min(STORY.length, Math.floor((elapsed - first.expected) / pace.expected) + 1));
      const done = written === STORY.length;
      return html`<div class="racer" key=${name}>
        <p class="dim"><b>${name}</b> ${timeWith(intervals.load, first)} to the first token, then ${rateWith(intervals.decode, Estimate_per_second(pace, 1))} a second${done ? html`: done after ${timeWith(intervals.static, Estimate_add(first, Estimate_mul(pace, STORY.length - 1)))}` : ""} <small>(${origin})</small></p>
        <p class="story" aria-hidden="true">${STORY.slice(0, written).join("")}<span class=${running && !done ? "writing" : ""}></span></p>
      </div>`;
    })}
    <${Live} source=${source} context=${context} onStart=${start} />
  </section>`;
}

function paceOf(setting) {
  const { card, serving, state, decode, intervals } = setting;
  const first = serving.steady(state.users).stay.ttft;
  return { name: card.name, first, pace: decode.seconds, intervals, origin: `${measuredOf(setting, "decode")}; ${setting.level}` };
}

function attempt(setting, all, card) {
  if (!all.cards[card] || card === setting.card.name) return null;
  try {
    return settingOf(setting.table, all, { ...setting.state, card });
  } catch {
    return null;
  }
}

const LONGEST = 120; // maximum seconds

/** Return the seconds since the start, a function that starts, and whether the clock runs. */
function useClock() {
  const [elapsed, tell] = useState(0);
  const [begun, begin] = useState(0);
  const frame = useRef(0);
  useEffect(() => {
    if (!begun) return undefined;
    const tick = (now) => {
      const seconds = (now - begun) / 1000;
      tell(seconds);
      if (seconds < LONGEST) frame.current = requestAnimationFrame(tick);
    };
    frame.current = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame.current);
  }, [begun]);
  return [begun ? elapsed : 0, () => begin(performance.now()), begun > 0 && elapsed < LONGEST];
}
