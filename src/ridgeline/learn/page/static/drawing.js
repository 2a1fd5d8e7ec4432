// A picture or a clip that is being drawn, from what a server tells of it, or told when it was recorded: how far each stage
// is, what is left, what it looks like by now. Nothing is drawn here.

const STAGES = ["encode", "denoise", "decode"];
const TRUSTED = 2; // steps after which the price is corrected by what they took

/** What is known before anything was told. steps: of the denoiser, where that is known. */
export function begun(steps = 0) {
  return { step: 0, steps, stage: "", noise: [], seconds: 0, predicted: 0, left: null, previews: [], file: null, format: "png", seed: null, wide: 0 };
}

/** The same after one more event of /v1/images/generations. */
export function after(drawing, event) {
  switch (event.type) {
    case "image_generation.progress": {
      const { stage, step, steps, noise = drawing.noise } = event;
      return { ...drawing, ...timesOf(event), stage, step, steps, noise, left: event.predicted_time_left_s };
    }
    case "image_generation.partial_image":
      return { ...drawing, ...fileOf(event), previews: [...drawing.previews, { step: drawing.step, data: event.b64_json }] };
    case "image_generation.completed":
      return { ...drawing, ...timesOf(event), stage: "decode", left: 0, ...fileOf(event), file: event.b64_json, seed: event.seed };
    default:
      return drawing;
  }
}

/** wide: pixels. */
function fileOf({ output_format: format, size }) {
  return { format, wide: Number.parseInt(size, 10) || 0 };
}

function timesOf({ inference_time_s: seconds, predicted_time_s: predicted }) {
  return { seconds, predicted };
}

/** The same of what /v1/videos/ID says of a job. */
export function ofJob(job) {
  const { num_inference_steps: steps, progress, predicted_time_left_s: left, seed } = job;
  const step = job.status === "completed" ? steps : Math.round((progress * steps) / 100);
  const stage = job.status === "queued" ? "" : step < steps ? "denoise" : "decode";
  return { ...begun(steps), ...timesOf(job), step, stage, left, seed, format: job.output_format };
}

/** Seconds that are left, as the price has them until two steps have run, then by as much longer as these took. */
export function remaining({ left, seconds, predicted, step }) {
  if (left === null) return null;
  return step >= TRUSTED && predicted > 0 ? (left * seconds) / predicted : left;
}

/** How much of each stage is done, 0 to 1. */
export function stagesOf({ stage, step, steps, file }) {
  const at = file ? STAGES.length : STAGES.indexOf(stage);
  const share = { encode: at >= 0 ? 1 : 0, denoise: steps > 0 ? step / steps : 0, decode: file || (stage === "decode" && step >= steps) ? 1 : 0 };
  return STAGES.map((name) => [name, share[name]]);
}

/** What can be seen by now, as an address of data; "" for nothing. */
export function seen({ file, format, previews }) {
  const data = file ?? previews.at(-1)?.data;
  return data ? `data:image/${format};base64,${data}` : "";
}
