// What texts say of keys and values and of models' configs, beside what the tables have. Pure; a statement is as
// statements.js has it.

import { fixed, grouped, sayGB, saySeconds, three } from "page/numbers.js";
import { priceStep, stepCost, touchedBy } from "page/price.js";
import { LARGE, SMALL } from "page/statements_steps.js";
import { decodeWork, segment, workOf } from "page/work.js";

const billions = (count, places = 2) => `${fixed(count / 1e9, places)} billion`;
const add = (values) => values.reduce((sum, value) => sum + value, 0);
const upTo = (count) => Array.from({ length: count }, (_, at) => at + 1);

/** Bytes of keys and values that a step of one user reads at a context. */
const readAt = ({ table, ranks }, context) => stepCost(table, decodeWork(table, 1, context), ranks).read;

export const KEYS_AND_VALUES = [
  {
    id: "kv-of-a-token",
    text: "Llama-3-8B keeps 2 × 32 × 8 × 128 × 2 = 131,072 bytes a token; 2,000 tokens take 256 MB.",
    state: { ...SMALL, input: 1999, output: 1 },
    find: ({ table }) => ({ token: table.memory.token, all: 2000 * table.memory.token }),
    ledger: ({ token, all }) => `${grouped(token)} bytes; 2,000 tokens take ${sayGB(all)}, which is ${three(all / 2 ** 20)} MiB.`,
    why: "256 MB are MiB that lost their i, and were rounded to a power of two.",
  },
  {
    id: "grouped-heads",
    text: "Grouped keys and values save a factor of four.",
    state: { ...SMALL, input: 1999, output: 1 },
    beside: { ...SMALL, model: "llama-2-7b", input: 1999, output: 1 },
    find: ({ table }, other) => ({ token: table.memory.token, ungrouped: other.table.memory.token }),
    ledger: ({ token, ungrouped }) => `Llama-2-7B, of the same depth and width, has keys for each head: ${grouped(ungrouped)} bytes a token against ${grouped(token)}, ${three(ungrouped / token)} times as many.`,
    why: "Several heads of queries look at the same keys, and only keys and values are kept.",
  },
  {
    id: "kv-of-70b",
    text: "Llama-3-70B: 320 KB a token, 8k tokens are 2.6 GB; its 140 GB do not fit into 80.",
    state: { ...LARGE, input: 8191, output: 1 },
    find: ({ table }) => ({ token: table.memory.token, all: 8192 * table.memory.token, parameters: table.parameters.total, nbytes: table.parameters.bytes }),
    ledger: ({ token, all, parameters, nbytes }) => `${grouped(token)} bytes a token, 8,192 tokens ${sayGB(all)}; ${billions(parameters, 3)} parameters, ${sayGB(nbytes)}.`,
    why: "320 KiB: the text's KB are 1,024 bytes and its GB are not.",
  },
  {
    id: "kv-cache",
    text: "Without a cache of keys and values 1,000 tokens cost N(N + 1)/2 positions instead of N: 500 times.",
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
      `${grouped(positions)} positions, but ${saySeconds(without)} against ${saySeconds(kept)} at best: ${three(without / kept)} times.`,
    why: "Positions of one step share the weights that it reads, so that short steps take as long as a single token.",
  },
  {
    id: "linear-with-cache",
    text: "With the cache, attention is linear.",
    state: { ...SMALL, input: 1, output: 2000 },
    find: ({ asked }) => {
      const sums = [1000, 2000].map((count) => add(upTo(count).map((context) => readAt(asked, context))));
      return { step: readAt(asked, 2000) / readAt(asked, 1000), all: sums[1] / sums[0] };
    },
    ledger: ({ step, all }) => `A step is: at 2,000 tokens it reads ${three(step)} times what it reads at 1,000. All steps up to there read ${three(all)} times as much.`,
    why: "The sum of steps that grow by one each is half a square: the cache saves the factor, not the square.",
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
      `A layer has ${fixed(attention / 1e9, 3)} + ${fixed(ffn / 1e9, 3)} and norms = ${billions(all, 3)}; the model ${grouped(total)}, ${sayGB(nbytes)}.`,
    why: "The sum is right; the walk through a single layer is off by ten.",
  },
  {
    id: "active-experts",
    text: "A mixture of experts with 22 of 235 billion parameters active is as light as a model of 22.",
    state: { ...LARGE, model: "qwen3-235b-a22b", users: 32 },
    find: ({ table, alone, decode }) => ({
      total: table.parameters.total, active: table.parameters.active, nbytes: table.parameters.bytes,
      one: alone.cost.weights, together: decode.cost.weights,
      touched: [1, 8, 32, 64].map((rows) => touchedBy(table.ops.find((op) => op.touched).touched, rows)),
    }),
    ledger: ({ total, active, nbytes, one, together, touched }) =>
      `${fixed(total / 1e9, 2)} and ${billions(active)}. 1, 8, 32, 64 users touch ${touched.map((count) => fixed(count, 1)).join(", ")} experts of a layer; ` +
      `a step of one reads ${sayGB(one)}, of 32 ${sayGB(together)}; memory holds all ${sayGB(nbytes)}.`,
    why: "Each user hits other experts: arithmetic is saved, memory is not, and bytes hardly.",
  },
  {
    id: "small-are-dense",
    text: "Models under 32 billion parameters are dense.",
    state: { ...SMALL, model: "qwen3-30b-a3b" },
    find: ({ table: { parameters } }) => ({ total: parameters.total, active: parameters.active }),
    ledger: ({ total, active }) => `Qwen3-30B-A3B has ${billions(total)} parameters, of which a token takes ${billions(active)}.`,
    why: "Whether a model is a mixture stands in its config, not in its size.",
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
    why: "Two thirds are of two matrices, four times as wide, beside attention without groups. Gated ones have three.",
  },
  {
    id: "embedding",
    text: "The embedding of Llama-3-8B has about 525 million parameters.",
    state: SMALL,
    find: ({ table: { parameters, memory }, decode }) => ({ count: parameters.by_part.embedding, unread: memory.weights - decode.cost.weights }),
    ledger: ({ count, unread }) => `${grouped(count)}, and a step reads rows of it: ${sayGB(unread)} less than memory holds.`,
    why: "The head is a table of the same size, of which every step reads all.",
  },
  {
    id: "tying",
    text: "GPT-2 and Llama 2 tie the embedding to the head.",
    state: { ...SMALL, model: "gpt2", input: 500, output: 500 },
    beside: { ...SMALL, model: "llama-2-7b" },
    find: (...both) => ({ heads: both.map(({ table }) => table.parameters.by_part.head) }),
    ledger: ({ heads: [gpt2, llama] }) => `GPT-2 ${gpt2 ? "does not" : "does"}; Llama 2 ${llama ? `does not: its head has ${grouped(llama)} parameters of its own` : "does"}.`,
    why: "Each config says it for itself. Read it; what a family did before does not tell.",
  },
  {
    id: "name",
    text: "Qwen3MoeForCausalLM: of the family Qwen, version 3, a mixture of experts, a causal language model.",
    ledger: () => "So ridgeline show reads it. It is all that a name says.",
    why: "How many experts, layers and heads there are stands in the config beside the name; for a few families, that they are mixtures too.",
  },
];
