// How a generation is shown: the image, its stages as bars, and the remaining noise.

import { ChartTable } from "page/chart_parts.js";
import { html } from "page/dom.js";
import { Facts } from "page/controls.js";
import { remaining, seen, stagesOf } from "page/drawing.js";
import { percent, say_seconds } from "page/numbers.js";
import { sayWithin } from "page/predicted.js";

const WORDS = { encode: "text", denoise: "denoiser", decode: "decode" };
const [WIDTH, HEIGHT] = [240, 90];
const SMALL = 128; // maximum width of an image whose pixels are drawn with sharp edges

/** busy: whether it is being generated. name: the prompt. */
export function Drawing({ drawing, busy, name }) {
  const { step, steps, previews, file, clip } = drawing;
  const source = seen(drawing);
  const left = remaining(drawing);
  const said = busy ? (left === null ? "Waiting in the queue." : `Step ${step} of ${steps}, ${say_seconds(left)} left.`) : file || clip ? "" : "Stopped.";
  return html`<section class=${drawing.wide <= SMALL ? "drawing small" : "drawing"} aria-label="The drawing">
    <figure class="picture">
      ${clip ? html`<${Clip} ...${{ clip, name }} format=${drawing.format} />` : source ? html`<img class=${file ? "" : "guess"} src=${source} alt=${file ? name : `Predicted image after step ${previews.at(-1).step}: ${name}`} />` : html`<div class="blank" />`}
      <figcaption>${said || (file || clip ? `Seed ${drawing.seed ?? "as recorded"}` : "")}</figcaption>
    </figure>
    <div class="how">
      <ol class="stages" aria-label="Stages">
        ${stagesOf(drawing).map(([stage, share]) => html`<li key=${stage}>
          <span>${WORDS[stage]}</span>
          <progress max="1" value=${share} aria-label=${WORDS[stage]} />
          <span class="dim">${stage === "denoise" ? `${step} of ${steps}` : percent(share)}</span>
        </li>`)}
      </ol>
      ${drawing.noise.length > 1 && html`<${Noise} ...${drawing} />`}
      <${Facts} rows=${rowsOf(drawing, left, busy)} />
      ${previews.length > 0 && html`<ol class="previews" aria-label="Predicted images by step">
        ${previews.map((each) => html`<li key=${each.step}><img src=${`data:image/${drawing.format};base64,${each.data}`} alt=${`after step ${each.step}`} /><small>${each.step}</small></li>`)}
      </ol>`}
    </div>
  </section>`;
}

function Clip({ clip, format, name }) {
  return format === "mp4" ? html`<video src=${clip} controls loop muted aria-label=${name} />` : html`<img src=${clip} alt=${name} />`;
}

function rowsOf({ seconds, predicted, around }, left, busy) {
  const share = predicted > 0 && seconds > 0 ? `${percent(predicted / seconds)} of the measured time` : "";
  const rows = [
    ["measured", say_seconds(seconds), "so far, from this request's own steps"],
    ["predicted", sayWithin(predicted, around), share],
  ];
  return busy && left !== null ? [...rows, ["left", say_seconds(left), "predicted, corrected by the steps so far"]] : rows;
}

/** Show the remaining noise of each step, with a dot at the current one. */
function Noise({ noise, step }) {
  const x = (at) => 8 + (at / noise.length) * (WIDTH - 16);
  const y = (share) => 8 + (1 - share) * (HEIGHT - 16);
  const points = [...noise, 0].map((share, at) => `${x(at).toFixed(1)} ${y(share).toFixed(1)}`);
  const now = step < noise.length ? noise[step] : 0;
  return html`<svg class="noise" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`Noise left before step ${step + 1}: ${percent(now)}`}>
    <path class="ground" d=${`M8 ${HEIGHT - 8}H${WIDTH - 8}`} /><path d=${`M${points.join("L")}`} />
    <circle cx=${x(step)} cy=${y(now)} r="5" />
    <text x=${WIDTH - 8} y="14" text-anchor="end">noise left: ${percent(now)}</text>
  </svg><${ChartTable} name="Noise as a table" head=${["before step", "noise left"]} rows=${noise.map((share, at) => [String(at + 1), percent(share)])} />`;
}
