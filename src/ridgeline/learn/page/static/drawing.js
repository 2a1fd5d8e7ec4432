// An image or a video while it is generated, from a server's events or from recorded ones: the progress of each stage,
// the remaining time, and the preview. Nothing is drawn here.

const STAGES = ["encode", "denoise", "decode"];
const TRUSTED = 2; // steps after which the prediction is corrected by their measured time

/** Return the state before the first event. steps: those of the denoiser, if known. */
export function begun(steps = 0) {
  return { step: 0, steps, stage: "", noise: [], seconds: 0, predicted: 0, around: null, left: null, previews: [], file: null, format: "png", seed: null, wide: 0 };
}

/** Return the state after one more event of /v1/images/generations. */
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

function timesOf({ inference_time_s: seconds, predicted_time_s: predicted, predicted_interval_s: around = null }) {
  return { seconds, predicted, around };
}

/** Return the state of a job, as /v1/videos/ID describes it. */
export function ofJob(job) {
  const { num_inference_steps: steps, progress, predicted_time_left_s: left, seed } = job;
  const step = job.status === "completed" ? steps : Math.round((progress * steps) / 100);
  const stage = job.status === "queued" ? "" : step < steps ? "denoise" : "decode";
  return { ...begun(steps), ...timesOf(job), step, stage, left, seed, format: job.output_format };
}

/** Return the remaining seconds: the predicted ones, and after two steps these, corrected by the measured time. */
export function remaining({ left, seconds, predicted, step }) {
  if (left === null) return null;
  return step >= TRUSTED && predicted > 0 ? (left * seconds) / predicted : left;
}

/** Return the finished share of each stage, 0 to 1. */
export function stagesOf({ stage, step, steps, file }) {
  const at = file ? STAGES.length : STAGES.indexOf(stage);
  const share = { encode: at >= 0 ? 1 : 0, denoise: steps > 0 ? step / steps : 0, decode: file || (stage === "decode" && step >= steps) ? 1 : 0 };
  return STAGES.map((name) => [name, share[name]]);
}

/** Return the latest preview or the result as a data URL, "" for none. */
export function seen({ file, format, previews }) {
  const data = file ?? previews.at(-1)?.data;
  return data ? `data:image/${format};base64,${data}` : "";
}
