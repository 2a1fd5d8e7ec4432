// The gauges: speed, usage, and whether steps take their predicted time.

import { html } from "page/dom.js";
import { digits, percent, three_digits } from "page/numbers.js";
import { grouped } from "page/python.js";

/** engine: an EngineState. idle: seconds since its last event. */
export function Gauges({ engine, idle }) {
  const now = engine.gauges(idle);
  const { limits, counters, finished } = engine;
  return html`<section class="gauges" aria-label="Gauges">
    <${Gauge} name="Tokens out" value=${three_digits(now.out)} unit="a second" />
    <${Gauge} name="Prompts in" value=${three_digits(now.prompt)} unit="positions a second" />
    <${Gauge} name="Running" value=${grouped(now.running)} unit=${`of at most ${grouped(limits.requests)}`} />
    <${Gauge} name="Waiting" value=${grouped(now.waiting)} unit=${preempted(counters.preemptions)} />
    <${Gauge}
      name="KV memory"
      value=${percent(now.memory)}
      unit=${`${grouped(counters.held_pages)} of ${grouped(limits.pages)} pages`}
      share=${now.memory}
    />
    <${Gauge}
      name="Prefix cache hits"
      value=${now.hits === null ? "–" : percent(now.hits)}
      unit=${`of ${grouped(finished.requests)} ended requests`}
      share=${now.hits}
    />
    <${Gauge}
      name="Prediction"
      value=${now.recent === null ? "–" : digits(now.recent, 3)}
      unit=${saidShare(engine, now.share)}
      more=${engine.device && sayDevice(engine)}
    />
  </section>`;
}

function preempted(count) {
  return count === 1 ? "1 was preempted" : `${grouped(count)} were preempted`;
}

function saidShare({ device }, share) {
  if (device === null) return "no predictions";
  return share === null ? "of the measured time of steps" : html`of the measured time of 120 steps; <span class="since">${digits(share, 3)}</span> since the start`;
}

function sayDevice({ device, calibrated }) {
  return calibrated ? device : `${device}, not calibrated`;
}

/** share: drawn as a bar, if the value is a share. */
function Gauge({ name, value, unit, share, more }) {
  return html`<div class="gauge" title=${more || null}>
    <span class="name">${name}</span>
    <output class="value">${value}</output>
    ${share !== undefined &&
    html`<svg class="bars" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
      <rect class="known" width="100" height="4" /><rect class="fill" width=${100 * Math.min(1, share ?? 0)} height="4" />
    </svg>`}
    <small>${unit}</small>
  </div>`;
}
