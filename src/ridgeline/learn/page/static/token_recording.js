// A recording as the tab plays it, written by learn/page/request_recording.py. Nothing is drawn here. Seconds, bytes,
// FLOPs.

/**
 * Return a recording with its steps in the form of `readStep`, and with the `factors` of their intervals: [low, high],
 * undefined in an older recording.
 */
export function readRecording(raw) {
  const factors = (step) => raw.predicted_intervals?.[step.name];
  return { ...raw, steps: raw.steps.map((step) => ({ ...readStep(raw, step), factors: factors(step) })) };
}

/**
 * Return a step: `ops` with their numbers by name; `parts` in the order of time, including the time outside ops; their
 * total `length`; and `lanes`: the ops of each layer, and those before and after.
 */
function readStep(raw, step) {
  const ops = step.entries.map((values, at) => readOp(raw, step, values, at)).filter((op) => op.outputs.length);
  const parts = partsOf(step, ops);
  const last = parts[parts.length - 1];
  return { ...step, ops, parts, length: last.begin + last.seconds, lanes: lanesOf(ops) };
}

function readOp(raw, step, values, at) {
  const op = { ...raw.ops[at] };
  raw.columns.forEach((name, place) => {
    op[name] = values[place];
  });
  op.nbytes = op.weights + op.read + op.written + op.activations;
  op.intensity = op.nbytes ? op.flops / op.nbytes : 0;
  op.share = op.measured / step.measured;
  op.reached = op.measured ? op.bound / op.measured : 0;
  op.name = nameOf(op);
  return op;
}

/** Return the name of an op within its layer: `mlp.gate_up` for `model.layers.0.mlp.gate_up`. */
function nameOf(op) {
  const parts = op.path.split(".");
  const at = op.layer === null ? 0 : parts.indexOf(String(op.layer));
  return parts.slice(at + 1).join(".") || op.path;
}

/** Return ops and the gaps between them, each with its start. A negative gap, which hooks can cause, is left out. */
function partsOf(step, ops) {
  const parts = [];
  let time = 0;
  const add = (name, seconds, op) => {
    if (op === undefined && seconds <= 0) return;
    parts.push({ name, begin: time, seconds, op });
    time += seconds;
  };
  const { batch, sampling } = step.overheads;
  const gaps = ops.reduce((sum, op) => sum + op.gap, 0);
  add("batch", batch);
  ops.forEach((op, at) => {
    add("between ops", op.gap);
    add(op.name, op.measured, at);
  });
  add("between ops", step.overheads["between ops"] - gaps);
  add("sampling", sampling);
  return parts;
}

/** Return the lanes. places: the indices of their ops in the step. measured, expected: the total seconds. */
function lanesOf(ops) {
  const lanes = [];
  ops.forEach((op, at) => {
    const last = lanes[lanes.length - 1];
    if (!last || last.layer !== op.layer) {
      const title = op.layer !== null ? `layer ${op.layer}` : lanes.length ? "after" : "before";
      lanes.push({ title, layer: op.layer, places: [], measured: 0, expected: 0 });
    }
    const lane = lanes[lanes.length - 1];
    lane.places.push(at);
    lane.measured += op.measured;
    lane.expected += op.expected;
  });
  return lanes;
}

/** Return the part of a step that runs at a moment. */
export function partAt(step, time) {
  return step.parts.find((part) => time < part.begin + part.seconds) ?? step.parts[step.parts.length - 1];
}

/**
 * Return how many times slower than real time a step is played: a power of ten, so that it takes one to ten seconds.
 */
export function slowness(seconds) {
  return 10 ** Math.max(0, Math.ceil(-Math.log10(seconds)));
}

/** Return the part of a step that is visible at a zoom around an op: [from, to] in seconds. */
export function windowAround(step, place, zoom) {
  const width = step.length / zoom;
  const part = step.parts.find((each) => each.op === place);
  const middle = part ? part.begin + part.seconds / 2 : 0;
  const from = Math.min(Math.max(0, middle - width / 2), step.length - width);
  return [from, from + width];
}

/** Return the rows of attention of the token at a position, by layer and head, or null if they were not recorded. */
export function rowsOf(attention, position) {
  return attention?.rows[position] ?? null;
}

/** Return the mean of a layer's heads. */
export function meanOf(rows) {
  return rows[0].map((_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
}
