// Users and speed: the speed of each user and of all together as more of them share a card, and the time to the first
// token. The targets are lines to drag; the area within both is shaded.

import { html, useMemo, useState } from "page/dom.js";
import { originOf } from "page/calc_case.js";
import { rateWith, timeWith } from "page/calc_interval.js";
import { ChartTable, useWidth } from "page/chart_parts.js";
import { people } from "page/chart_roofline.js";
import { ErrorInterval_around_rate, ErrorInterval_around_time } from "page/interval_formulas.js";
import { percent, say_seconds, scaled, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";
import { useTurn } from "page/turns.js";

const EDGE = { left: 46, right: 50, top: 22, bottom: 30 };
const POINTS = 28;
const NARROW = 420;
const { log10 } = Math;

/** Return the loads of some numbers of users from 1 to `most`, evenly spaced on a logarithmic axis. */
function loadsOf(serving, most) {
  const counts = new Set();
  for (let at = 0; at <= POINTS; at++) counts.add(Math.round(most ** (at / POINTS)));
  return [...counts].map((users) => serving.load(users));
}

/** now: the state while it is dragged, which the curves follow. */
export function LoadChart({ setting: newest, now, ghost, onChange }) {
  const [box, width] = useWidth(640);
  const setting = useTurn(newest, box);
  const { serving, intervals } = setting;
  const { capacity, memory } = serving;
  const widest = Math.max(2, memory.users, setting.state.users);
  const loads = useMemo(() => loadsOf(serving, widest), [serving, widest]);
  const state = now;
  const most = loads[loads.length - 1].users;
  const x = (users) => EDGE.left + (log10(users) / log10(most)) * (width - EDGE.left - EDGE.right);
  const [speedHigh, totalHigh] = [1.1 * loads[0].tokensPerUser.floor, 1.1 * Math.max(...loads.map((load) => load.tokensPerSecond.floor))];
  const waits = loads.map((load) => load.ttft.expected);
  const [least, longest] = ErrorInterval_around_time(intervals.load, 1).map((factor, end) => factor * (end ? Math.max(...waits) : Math.min(...waits)));
  const [waitLow, waitHigh] = [Math.min(least, state.ttft || Infinity) / 1.6, Math.max(longest, state.ttft) * 1.6];
  const speed = { x, width, top: EDGE.top, bottom: 190, y: (value) => 190 - (Math.min(value, speedHigh) / speedHigh) * (190 - EDGE.top) };
  const total = { ...speed, y: (value) => 190 - (value / totalHigh) * (190 - EDGE.top) };
  const wait = { x, width, top: 232, bottom: 330, y: (value) => 330 - (log10(Math.max(value, waitLow) / waitLow) / log10(waitHigh / waitLow)) * (330 - 232) };
  const within = Math.max(1, capacity.users);
  const rates = ({ floor, expected }) => ErrorInterval_around_rate(intervals.load, expected, floor);
  const times = ({ floor, expected }) => ErrorInterval_around_time(intervals.load, expected, floor);
  return html`<section class="card load" aria-labelledby="load-title">
    <h2 id="load-title">Users and speed</h2>
    <p class="lead">${said(setting, capacity)} <small>(${originOf(setting, "load")})</small></p>
    <figure ref=${box}>
      <svg width=${width} height="360" viewBox=${`0 0 ${width} 360`} role="group" aria-label="Speed and waiting time by number of users">
        ${capacity.users > 0 && html`<rect class="within" x=${x(1)} y=${EDGE.top} width=${x(within) - x(1)} height=${330 - EDGE.top} />`}
        <${Frame} ...${{ ...speed, most }} left=${`${three_digits(speedHigh / 1.1)}`} right=${brief(totalHigh / 1.1)} />
        <${Frame} ...${{ ...wait, most, marks: true }} left=${waitHigh / 1.6 >= 999.5 ? brief(waitHigh / 1.6) : say_seconds(waitHigh / 1.6)} />
        <text class="name" x=${EDGE.left} y="14">${width < NARROW ? "tok/s each" : "tokens per second: each user"}</text>
        <text class="name all" x=${width - EDGE.right} y="14" text-anchor="end">${width < NARROW ? "total" : "all users together"}</text>
        <text class="name" x=${EDGE.left} y="224">seconds to the first token</text>
        <${Curve} ...${{ loads, of: (load) => load.tokensPerUser, on: speed, around: rates }} />
        <${Curve} ...${{ loads, of: (load) => load.tokensPerSecond, on: total, around: rates, sort: "all" }} />
        <${Curve} ...${{ loads, of: (load) => load.ttft, on: wait, around: times }} />
        ${ghost && html`<g class="ghost" aria-hidden="true"><path d=${`M${x(Math.min(most, Math.max(1, ghost.serving.capacity.users)))} ${EDGE.top}V330`} /></g>`}
        <path class="here" d=${`M${x(state.users)} ${EDGE.top}V330`} />
        <text class="here" x=${x(state.users)} y="357" text-anchor="middle">${people(state.users)}</text>
        ${state.tpot > 0 && html`<${Target} name="Target: time per output token" on=${speed} value=${1 / state.tpot} words=${`TPOT ${say_seconds(state.tpot)}`}
          least=${1} most=${speedHigh} onInput=${(rate) => onChange({ tpot: round(1 / rate) })} invert=${(y) => ((190 - y) / (190 - EDGE.top)) * speedHigh} />`}
        ${state.ttft > 0 && html`<${Target} name="Target: time to first token" on=${wait} value=${state.ttft} words=${`TTFT ${say_seconds(state.ttft)}`}
          least=${0.005} most=${100} onInput=${(seconds) => onChange({ ttft: round(seconds) })} invert=${(y) => waitLow * (waitHigh / waitLow) ** ((330 - y) / (330 - 232))} />`}
      </svg>
      <figcaption>Thick: expected. Band: 8 of 10 measurements, up to the physical limit, which is thin. Shaded: within both targets and memory${memory.users ? `, which holds ${people(memory.users)}` : ""}.</figcaption>
    </figure>
    <${ChartTable} name="Users and speed as a table" head=${["users", "TTFT", "TPOT", "tok/s each", "tok/s total", "in prefill"]}
      rows=${loads.map((load) => rowOf(load, intervals.load))} />
  </section>`;
}

function rowOf({ users, ttft, tpot, tokensPerUser, tokensPerSecond, prefillShare }, around) {
  const [times, rates] = [[ttft, tpot].map((each) => timeWith(around, each)), [tokensPerUser, tokensPerSecond].map((each) => rateWith(around, each))];
  return [grouped(users), ...times, ...rates, percent(prefillShare)];
}

/** Return a number for the narrow edge of a chart. */
const brief = (value) => (value >= 99999.5 ? scaled(value, 3) : three_digits(value));

/** Return a dragged value with two digits. */
const round = (seconds) => Number(seconds.toPrecision(2));

function said({ serving, intervals: { load: around } }, { users, limit, load }) {
  const stops = { memory: "memory has no room for more", step: "a step's token budget has no room for more", ttft: "with one more user, TTFT would exceed its target", tpot: "with one more user, TPOT would exceed its target" };
  if (!serving.memory.fits) return "It does not fit.";
  if (!users) return html`Not one user within the targets: ${limit.toUpperCase()} of one is ${timeWith(around, load[limit])}.`;
  return html`<strong>${people(users)}</strong> at the same time, ${rateWith(around, load.tokensPerUser)} tokens per second each,
    ${" "}<strong>${rateWith(around, load.tokensPerSecond)}</strong> in total; ${stops[limit]}.`;
}

function Frame({ x, width, top, bottom, most, left, right, marks }) {
  const powers = [];
  for (let value = 1; value <= most; value *= 10) powers.push(value);
  return html`<g class="axes">
    <path d=${`M${EDGE.left} ${bottom}H${width - EDGE.right}`} />
    ${powers.map((value) => html`<path d=${`M${x(value)} ${top}V${bottom}`} />${marks && html`<text x=${x(value)} y=${bottom + 12} text-anchor="middle">${grouped(value)}</text>`}`)}
    <text x=${EDGE.left - 5} y=${top + 12} text-anchor="end">${left}</text>
    ${right && html`<text x=${width - EDGE.right + 5} y=${top + 12}>${right}</text>`}
  </g>`;
}

/** around: returns both ends of the interval of an estimate. */
function Curve({ loads, of, on, around, sort = "own" }) {
  const points = (value) => loads.map((load) => `${on.x(load.users).toFixed(1)} ${on.y(value(of(load))).toFixed(1)}`);
  const path = (name) => `M${points((estimate) => estimate[name]).join("L")}`;
  const [low, high] = [0, 1].map((end) => points((estimate) => around(estimate)[end]));
  return html`<g class=${`curve ${sort}`}><path class="band" d=${`M${[...low, ...high.reverse()].join("L")}Z`} />
    <path class="floor" d=${path("floor")} /><path class="expected" d=${path("expected")} /></g>`;
}

function Target({ name, on, value, words, least, most, onInput, invert }) {
  const [held, hold] = useState(false);
  const put = (next) => onInput(Math.min(most, Math.max(least, next)));
  const move = (event) => {
    const box = event.currentTarget.ownerSVGElement.getBoundingClientRect();
    put(invert(((event.clientY - box.top) / box.height) * 360));
  };
  const up = value * 1.1;
  const below = on.y(value) < on.top + 14; // the chart's name is above it
  const keys = { ArrowUp: up, ArrowRight: up, ArrowDown: value / 1.1, ArrowLeft: value / 1.1, PageUp: value * 2, PageDown: value / 2, Home: least, End: most };
  return html`<g class="handle target" tabindex="0" role="slider" aria-orientation="vertical" aria-label=${name} aria-valuetext=${words}
    aria-valuemin=${least} aria-valuemax=${most} aria-valuenow=${value} transform=${`translate(0 ${on.y(value)})`}
    onPointerDown=${(event) => {
      event.preventDefault();
      event.currentTarget.setPointerCapture(event.pointerId);
      event.currentTarget.focus();
      hold(true);
    }}
    onPointerMove=${(event) => held && move(event)} onPointerUp=${() => hold(false)}
    onKeyDown=${(event) => {
      if (keys[event.key] === undefined) return;
      event.preventDefault();
      put(keys[event.key]);
    }}>
    <rect class="reach" x=${EDGE.left} y="-10" width=${on.width - EDGE.left - EDGE.right} height="20" />
    <path d=${`M${EDGE.left} 0H${on.width - EDGE.right}`} /><rect class="grip" x=${on.width - EDGE.right - 34} y="-4" width="28" height="8" rx="4" />
    <text x=${on.width - EDGE.right - 42} y=${below ? 15 : -6} text-anchor="end">${words}</text>
  </g>`;
}
