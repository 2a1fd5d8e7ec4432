// Where a model on a card turns, as price/crossovers.py has it: from memory-bound to compute-bound, from reading weights to
// reading keys and values. Against the floor, so of the card and not of its kernels. Pure.
//
//   criticalBatch(asked, context, encoded)   batch from which a decode step is compute-bound on one rank; null for none
//   computeBoundPrompt(asked)                length from which a prompt's prefill is compute-bound; null for none
//   kvOutweighsWeights(asked, users)         context from which a decode step reads more KV than weights; null for none
//   firstFrom(holds)                         smallest positive integer from which on `holds`; null for none

import { roofSeconds } from "page/plan.js";
import { stepCost } from "page/price.js";
import { decodeWork, segment, workOf } from "page/work.js";

const MOST = Math.pow(2, 40); // beyond any batch or context there is

export function criticalBatch(asked, context, encoded = 0) {
  const excess = (batch) => {
    const cost = stepCost(asked.table, decodeWork(asked.table, batch, context, encoded), asked.ranks);
    const { arithmetic, memory } = roofSeconds(cost, asked.device);
    return arithmetic - memory;
  };
  const batch = firstFrom((count) => excess(count) >= 0);
  if (batch === null || batch === 1) return batch;
  const [under, over] = [excess(batch - 1), excess(batch)];
  return batch - over / (over - under);
}

export function computeBoundPrompt(asked) {
  const { table, device, ranks } = asked;
  const prompt = (length) => (table.encoder ? segment(1, 1, length, true) : segment(length, length));
  return firstFrom((length) => {
    const { arithmetic, memory } = roofSeconds(stepCost(table, workOf(table, [prompt(length)]), ranks), device);
    return arithmetic / memory >= 1;
  });
}

export function kvOutweighsWeights(asked, users = 1, encoded = 0) {
  return firstFrom((context) => {
    const cost = stepCost(asked.table, decodeWork(asked.table, users, context, encoded), asked.ranks);
    return cost.read > cost.weights;
  });
}

// Given that it holds for all greater ones.
export function firstFrom(holds) {
  let over = 1;
  while (!holds(over)) {
    if (over >= MOST) return null;
    over *= 2;
  }
  let [low, high] = [Math.floor(over / 2) + 1, over];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
