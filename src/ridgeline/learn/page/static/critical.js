// The crossovers of a model on a card, like price/crossovers.py: from memory-bound to compute-bound, and from reading
// weights to reading keys and values. They use the floor, so they depend on the card and not on its kernels. Pure
// functions.
//
//   criticalBatch(asked, context, encoded)   batch from which a decode step is compute-bound on one rank; null for none
//   computeBoundPrompt(asked)                length from which a prompt's prefill is compute-bound; null for none
//   kvOutweighsWeights(asked, users)         context from which a decode step reads more KV than weights; null for none

import { balance, compute_bound_from, first_from } from "page/formulas.js";
import { stepCost } from "page/price.js";
import { decodeWork, segment, workOf } from "page/work.js";

export function criticalBatch(asked, context, encoded = 0) {
  const { table, device, ranks } = asked;
  return compute_bound_from((batch) => stepCost(table, decodeWork(table, batch, context, encoded), ranks), device);
}

export function computeBoundPrompt(asked) {
  const { table, device, ranks } = asked;
  const prompt = (length) => (table.encoder ? segment(1, 1, length, true) : segment(length, length));
  return first_from((length) => balance([stepCost(table, workOf(table, [prompt(length)]), ranks)], device) >= 1);
}

export function kvOutweighsWeights(asked, users = 1, encoded = 0) {
  return first_from((context) => {
    const cost = stepCost(asked.table, decodeWork(asked.table, users, context, encoded), asked.ranks);
    return cost.kv_read_bytes > cost.weight_bytes;
  });
}
