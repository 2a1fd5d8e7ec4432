// Work: what one step asks of a model, as sums, as core/ops/work.py has it. Pure.
//
//   segment(queries, keys, encoded, encodes, inputs)  a part of one sequence: its last `queries` of `keys` positions;
//                                  encoded: positions of an encoder that it looks at; encodes: whether the step runs them
//   workOf(table, segments, logitRows)          Work of a step that runs these; by default a row of logits for each
//   decodeWork(table, users, context, encoded)  Work of a step that gives each user a token; context: with the new position
//   prefillWork(table, workload, start, end)    Work of a step that runs these positions of prompts laid end to end
//
// A work is {rows: {space: n}, sequences, attention: [a {one, few, many} for each of table.reaches]}; a class of query
// length is null or [sequences, queries, pairs, keys, written].

import { StepSegment, StepSegment_attention } from "page/formulas.js";
import { prompt_parts } from "page/plan_formulas.js";

const FEW = 8; // most queries of a sequence that count as a few

export const segment = StepSegment;

export function workOf(table, segments, logitRows = segments.length) {
  const rows = { tokens: 0, logits: logitRows };
  for (const each of segments) {
    rows.tokens += each.q_len;
    if (each.runs_encoder && each.encoder_len) rows.encoder = (rows.encoder || 0) + each.encoder_len;
  }
  return { rows, sequences: segments.length, attention: table.reaches.map((reach) => attentionOf(reach, segments)) };
}

export function decodeWork(table, users, context, encoded = 0) {
  const one = workOf(table, [segment(1, context, encoded)]);
  const many = (sums) => sums && sums.map((sum) => sum * users);
  const attention = one.attention.map((each) => ({ one: many(each.one), few: many(each.few), many: many(each.many) }));
  return { rows: { tokens: users, logits: users }, sequences: users, attention };
}

export function prefillWork(table, { input, encoded }, start, end) {
  const part = ([first, stop]) => segment(stop - first, stop, encoded, first === 0 && encoded > 0);
  const ends = Math.floor(end / input) - Math.floor(start / input);
  return workOf(table, prompt_parts(input, start, end).map(part), ends);
}

function attentionOf(reach, segments) {
  const work = { one: null, few: null, many: null };
  const pattern = { ...reach, query_axis: reach.space };
  for (const each of segments) {
    const sums = Object.values(StepSegment_attention(each, pattern));
    if (!sums[1] && !sums[4]) continue;
    const name = sums[1] <= 1 ? "one" : sums[1] <= FEW ? "few" : "many";
    work[name] = work[name] ? work[name].map((sum, i) => sum + sums[i]) : sums;
  }
  return work;
}
