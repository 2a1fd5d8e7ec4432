// Statements about keys and values and about models' configs, next to the figures of the tables. Pure functions.
// statements.js describes a statement.

import { gb, say_gb, say_seconds, three_digits } from "page/numbers.js";
import { fixed, grouped } from "page/python.js";
import { priceStep, stepCost, touchedBy } from "page/price.js";
import { LARGE, SMALL } from "page/statements_steps.js";
import { decodeWork, segment, workOf } from "page/work.js";

const billions = (count, places = 2) => `${fixed(count / 1e9, places)} billion`;
const add = (values) => values.reduce((sum, value) => sum + value, 0);
const upTo = (count) => Array.from({ length: count }, (_, at) => at + 1);

/** Return the bytes of keys and values that a step of one user reads at a context. */
const readAt = ({ table, ranks }, context) => stepCost(table, decodeWork(table, 1, context), ranks).kv_read_bytes;

export const KEYS_AND_VALUES = [
  {
    id: "kv-of-a-token",
    text: "Llama-3-8B keeps 2 × 32 × 8 × 128 × 2 = 131,072 bytes per token; 2,000 tokens take 256 MB.",
    state: { ...SMALL, input: 1999, output: 1 },
    find: ({ table }) => ({ token: table.memory.token, all: 2000 * table.memory.token }),
    ledger: ({ token, all }) => `${grouped(token)} bytes; 2,000 tokens take ${say_gb(gb(all))}, which is ${three_digits(all / 2 ** 20)} MiB.`,
    why: "The 256 MB are really MiB, rounded to a power of two.",
  },
  {
    id: "grouped-heads",
    text: "Grouped-query attention saves a factor of four of KV memory.",
    state: { ...SMALL, input: 1999, output: 1 },
    compared: { ...SMALL, model: "llama-2-7b", input: 1999, output: 1 },
    find: ({ table }, other) => ({ token: table.memory.token, ungrouped: other.table.memory.token }),
    ledger: ({ token, ungrouped }) => `Llama-2-7B, of the same depth and width, has a KV head for each query head: ${grouped(ungrouped)} bytes per token compared with ${grouped(token)}, ${three_digits(ungrouped / token)} times as many.`,
    why: "Several query heads share one KV head, and the cache stores only keys and values.",
  },
  {
    id: "kv-of-70b",
    text: "Llama-3-70B: 320 KB per token, 2.6 GB for 8k tokens; its 140 GB do not fit into 80 GB.",
    state: { ...LARGE, input: 8191, output: 1 },
    find: ({ table }) => ({ token: table.memory.token, all: 8192 * table.memory.token, parameters: table.parameters.total, nbytes: table.parameters.bytes }),
    ledger: ({ token, all, parameters, nbytes }) => `${grouped(token)} bytes per token; 8,192 tokens take ${say_gb(gb(all))}; ${billions(parameters, 3)} parameters, ${say_gb(gb(nbytes))}.`,
    why: "The 320 KB are KiB of 1,024 bytes, but the GB are not GiB.",
  },
  {
    id: "kv-cache",
    text: "Without a KV cache, 1,000 tokens cost N(N + 1)/2 positions instead of N: 500 times.",
    state: { ...SMALL, input: 1, output: 1000 },
    find: ({ asked: { table, device, ranks } }) => {
      const seconds = (works) => add(works.map((work) => priceStep(table, device, work, ranks).floor));
      return {
        positions: add(upTo(1000)),
        without: seconds(upTo(1000).map((length) => workOf(table, [segment(length, length)]))),
        with: seconds(upTo(1000).map((length) => decodeWork(table, 1, length))),
      };
    },
    ledger: ({ positions, without, with: kept }) =>
      `${grouped(positions)} positions, but ${say_seconds(without)} against ${say_seconds(kept)} at best: ${three_digits(without / kept)} times.`,
    why: "All positions of a step share the weights that it reads, so a short step takes as long as a single token.",
  },
  {
    id: "linear-with-cache",
    text: "With the cache, attention is linear.",
    state: { ...SMALL, input: 1, output: 2000 },
    find: ({ asked }) => {
      const sums = [1000, 2000].map((count) => add(upTo(count).map((context) => readAt(asked, context))));
      return { step: readAt(asked, 2000) / readAt(asked, 1000), all: sums[1] / sums[0] };
    },
    ledger: ({ step, all }) => `One step is linear: at 2,000 tokens it reads ${three_digits(step)} times as much as at 1,000. All steps up to 2,000 tokens together read ${three_digits(all)} times as much as those up to 1,000.`,
    why: "The work of a step grows linearly, so the sum over all steps grows quadratically. The cache saves a constant factor only.",
  },
];

export const MODELS = [
  {
    id: "405b",
    text: "Llama-3.1-405B, from its config: a layer has 5.7 + 26.17 = 31.87 billion parameters, all 126 have 401.6, the model 405.8; about 810 GB.",
    state: { ...LARGE, model: "llama-3.1-405b" },
    find: ({ table: { parameters } }) => {
      const { attention, "feed-forward": ffn } = parameters.layer;
      const all = add(Object.values(parameters.layer));
      return { attention, ffn, all, share: ffn / all, total: parameters.total, nbytes: parameters.bytes };
    },
    ledger: ({ attention, ffn, all, total, nbytes }) =>
      `A layer has ${fixed(attention / 1e9, 3)} + ${fixed(ffn / 1e9, 3)} and norms = ${billions(all, 3)}; the model ${grouped(total)}, ${say_gb(gb(nbytes))}.`,
    why: "The sum is right, but the textbook's calculation for a single layer is off by a factor of ten.",
  },
  {
    id: "active-experts",
    text: "A mixture of experts with 22 of 235 billion parameters active is as light as a model of 22.",
    state: { ...LARGE, model: "qwen3-235b-a22b", users: 32 },
    find: ({ table, alone, decode }) => ({
      total: table.parameters.total, active: table.parameters.active, nbytes: table.parameters.bytes,
      one: alone.weight_bytes, together: decode.weight_bytes,
      touched: [1, 8, 32, 64].map((rows) => touchedBy(table.ops.find((op) => op.touched).touched, rows)),
    }),
    ledger: ({ total, active, nbytes, one, together, touched }) =>
      `${fixed(total / 1e9, 2)} and ${billions(active)}. 1, 8, 32, 64 users activate ${touched.map((count) => fixed(count, 1)).join(", ")} experts of a layer; ` +
      `a step of one user reads ${say_gb(gb(one))}, of 32 users ${say_gb(gb(together))}; memory must hold all ${say_gb(gb(nbytes))}.`,
    why: "Each user activates other experts, so the mixture saves arithmetic, hardly any memory traffic, and no memory.",
  },
  {
    id: "small-are-dense",
    text: "Models under 32 billion parameters are dense.",
    state: { ...SMALL, model: "qwen3-30b-a3b" },
    find: ({ table: { parameters } }) => ({ total: parameters.total, active: parameters.active }),
    ledger: ({ total, active }) => `Qwen3-30B-A3B has ${billions(total)} parameters, of which a token uses ${billions(active)}.`,
    why: "The config states whether a model is a mixture of experts; the size does not tell.",
  },
  {
    id: "feed-forward",
    text: "Feed-forward layers have about two thirds of the weights.",
    state: SMALL,
    find: ({ table: { parameters } }) => {
      const of = (parts) => parts["feed-forward"] / add(Object.values(parts));
      return { all: of(parameters.by_part), single: of(parameters.layer) };
    },
    ledger: ({ all, single }) => `Of Llama-3-8B ${fixed(100 * all, 1)} %, of a single layer ${fixed(100 * single, 1)} %.`,
    why: "Two thirds is right for two matrices of four times the width and attention without grouped heads. Gated layers have three matrices.",
  },
  {
    id: "embedding",
    text: "The embedding of Llama-3-8B has about 525 million parameters.",
    state: SMALL,
    find: ({ table: { parameters, memory }, decode }) => ({ count: parameters.by_part.embedding, unread: memory.weights - decode.weight_bytes }),
    ledger: ({ count, unread }) => `${grouped(count)}, but a step reads only single rows: ${say_gb(gb(unread))} less than memory holds.`,
    why: "The head is a table of the same size, and every step reads all of the head.",
  },
  {
    id: "tying",
    text: "GPT-2 and Llama 2 tie the embedding to the head.",
    state: { ...SMALL, model: "gpt2", input: 500, output: 500 },
    compared: { ...SMALL, model: "llama-2-7b" },
    find: (...both) => ({ heads: both.map(({ table }) => table.parameters.by_part.head) }),
    ledger: ({ heads: [gpt2, llama] }) => `GPT-2 ${gpt2 ? "does not" : "does"}; Llama 2 ${llama ? `does not: its head has ${grouped(llama)} separate parameters` : "does"}.`,
    why: "Each config states it (tie_word_embeddings). Earlier models of a family do not tell.",
  },
  {
    id: "name",
    text: "Qwen3MoeForCausalLM: of the family Qwen, version 3, a mixture of experts, a causal language model.",
    ledger: () => "ridgeline show reads it in this way. The name says no more.",
    why: "The config states the numbers of experts, layers and heads, and for a few families also that they are mixtures of experts.",
  },
];
