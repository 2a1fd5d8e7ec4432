// The work of one step as sums, like core/ops/work.py. Pure functions.
//
//   segment(queries, keys, encoded, encodes, inputs)  a part of one sequence: its last `queries` of `keys` positions;
//                                  encoded: encoder positions that it attends to; encodes: whether the step runs them
//   workOf(table, segments, logitRows)          Work of a step that runs these; by default with a row of logits for each
//   decodeWork(table, users, context, encoded)  Work of a step that gives each user a token; context: with the new position
//   prefillWork(table, workload, start, end)    Work of a step that runs these positions of prompts laid end to end
//
// A work is {rows: {space: n}, sequences, attention: [an AttentionWork for each of table.reaches]}.

import { prompt_parts } from "page/plan_formulas.js";
import { AttentionWork_mul, AttentionWork_of, StepSegment, StepSegment_attention } from "page/step_formulas.js";

export const segment = StepSegment;

export function workOf(table, segments, logitRows = segments.length) {
  const rows = { tokens: 0, logits: logitRows };
  for (const each of segments) {
    rows.tokens += each.q_len;
    if (each.runs_encoder && each.encoder_len) rows.encoder = (rows.encoder || 0) + each.encoder_len;
  }
  const attention = table.reaches.map((reach) => AttentionWork_of(segments.map((each) => StepSegment_attention(each, reach))));
  return { rows, sequences: segments.length, attention };
}

export function decodeWork(table, users, context, encoded = 0) {
  const one = workOf(table, [segment(1, context, encoded)]);
  const attention = one.attention.map((each) => AttentionWork_mul(each, users));
  return { rows: { tokens: users, logits: users }, sequences: users, attention };
}

export function prefillWork(table, { input, encoded }, start, end) {
  const part = ([first, stop]) => segment(stop - first, stop, encoded, first === 0 && encoded > 0);
  const ends = Math.floor(end / input) - Math.floor(start / input);
  return workOf(table, prompt_parts(input, start, end).map(part), ends);
}
