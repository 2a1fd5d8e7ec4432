// Statements about steps of one user and of many, next to the predicted figures for the same case. Pure functions.
// statements.js describes a statement.

import { computeBoundPrompt, criticalBatch } from "page/critical.js";
import { first_from } from "page/formulas.js";
import { rate_interval, time_interval } from "page/interval_formulas.js";
import { gb, gib, say, say_gb, say_gib, say_seconds, three_digits } from "page/numbers.js";
import { fixed, grouped } from "page/python.js";
import { decodeOf, makeWorkload, prefillOf } from "page/plan.js";
import { priceStep } from "page/price.js";
import { segment, workOf } from "page/work.js";

export const PLAIN = { cards: 1, weights: "", kv: "", input: 1500, output: 1000, users: 1, ttft: 1, tpot: 0.05, use: 0.9 };
export const SMALL = { ...PLAIN, model: "llama-3-8b", card: "a100-sxm-80gb" };
export const LARGE = { ...PLAIN, model: "llama-3-70b", card: "h100-sxm", input: 1, output: 1 };

const promptOf = (asked, length) => prefillOf(asked, makeWorkload(asked.table, { input: length, output: 1 }));
const attentionOf = (phase) => phase.classes.find((each) => each.kind === "attention").bound;

/** Return the prompt lengths from which attention does as much arithmetic as the matrices, and more; both may exceed any context. */
function attentionOvertakes({ table, device, ranks }) {
  const excess = (length) => {
    const { rows } = priceStep(table, device, workOf(table, [segment(length, length)]), ranks);
    const of = (kind) => rows.filter(({ priced }) => priced.op.kind === kind).reduce((sum, { priced, cost }) => sum + cost.flops[table.dtype] * priced.count, 0);
    return of("attention") - of("linear");
  };
  return { level: first_from((length) => excess(length) >= 0), overtakes: first_from((length) => excess(length) > 0) };
}

export const ONE_USER = [
  {
    id: "ops-per-byte",
    text: "An H100 does 295 FP16 operations in the time in which it reads one byte.",
    state: { ...SMALL, card: "h100-sxm" },
    find: ({ card, decode }) => ({ ridge: decode.ridge, peak: decode.ridge * card.bandwidth, bandwidth: card.bandwidth }),
    ledger: ({ ridge, peak, bandwidth }) => `${fixed(ridge, 1)}: ${say(peak, "FLOP/s")} over ${say(bandwidth, "B/s")}.`,
    why: "This is the rate for dense matrices. Data sheets often print twice the rate, which holds for 2:4 sparse matrices.",
  },
  {
    id: "one-user",
    text: "8B on an A100: 16 GB per token, 8 ms, 125 tokens per second; 16 GFLOP take 0.05 ms.",
    state: { ...SMALL, input: 1, output: 1 },
    find: ({ decode }) => ({ weights: decode.weight_bytes, floor: decode.seconds.floor, arithmetic: decode.arithmetic, times: decode.memory / decode.arithmetic }),
    ledger: ({ weights, floor, arithmetic, times }) =>
      `${say_gb(gb(weights))}, ${say_seconds(floor)}, ${three_digits(1 / floor)} tokens per second at best; the arithmetic takes ${say_seconds(arithmetic)}, ${three_digits(times)} times less.`,
    why: "A token reads only one row of the embedding table.",
  },
  {
    id: "large-model",
    text: "70B in FP16 takes 42 ms per token on one H100; arithmetic takes less than half a percent of that.",
    state: LARGE,
    find: ({ decode, serving }) => ({ floor: decode.seconds.floor, share: decode.arithmetic / decode.memory, missing: serving.memory.missing }),
    ledger: ({ floor, share, missing }) => `${say_seconds(floor)} and ${fixed(100 * share, 2)} %, if it fitted: ${say_gib(gib(missing))} of memory are missing.`,
    why: "140 GB do not fit into 80 GB: use two GPUs or quantised weights.",
  },
  {
    id: "haiku",
    text: "8B on an H100, 8 tokens in and 30 out: 5 ms of prefill, then 30 times 8 ms: 245 ms.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
    find: ({ asked, state }) => {
      const first = promptOf(asked, state.input);
      let all = first.seconds.floor;
      for (let at = 1; at < state.output; at++) all += decodeOf(asked, 1, state.input + at).seconds.floor;
      return { first: first.seconds.floor, arithmetic: first.arithmetic, all };
    },
    ledger: ({ first, arithmetic, all }) => `Prefill ${say_seconds(first)}, of which arithmetic would take ${say_seconds(arithmetic)}; the whole request takes ${say_seconds(all)} at best.`,
    why: "The prefill already gives the first token, so 29 steps follow. And 8 ms per step is an A100's time, not an H100's.",
  },
  {
    id: "prefill",
    text: "Prefill is compute-bound.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
    find: ({ asked }) => ({ length: computeBoundPrompt(asked) }),
    ledger: ({ length }) => `Only from ${grouped(length)} prompt tokens on; a shorter prompt is memory-bound.`,
    why: "A short prompt reads all weights for a few tokens, as decoding does.",
  },
  {
    id: "attention-of-eight",
    text: "A prompt of 8 tokens is dominated by attention.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
    find: ({ asked, state }) => {
      const phase = promptOf(asked, state.input);
      return { attention: attentionOf(phase), all: phase.seconds.bound };
    },
    ledger: ({ attention, all }) => `Attention takes ${say_seconds(attention)} of ${say_seconds(all)}.`,
    why: "Eight tokens make few query-key pairs, but the step reads the matrices in full.",
  },
  {
    id: "attention-dearest",
    text: "Attention is the most expensive operation.",
    state: { ...SMALL, input: 1024, output: 1 },
    find: ({ asked, state }) => {
      const phase = promptOf(asked, state.input);
      return { attention: attentionOf(phase), all: phase.seconds.bound, ...attentionOvertakes(asked) };
    },
    ledger: ({ attention, all, level, overtakes }) =>
      `For a prompt of 1,024 tokens it takes ${say_seconds(attention)} of ${say_seconds(all)}. ` +
      (level < overtakes ? `At ${grouped(level)} tokens it does as many FLOPs as the matrices, and from ${grouped(overtakes)} on more.` : `It does more FLOPs than the matrices from ${grouped(overtakes)} tokens on.`),
    why: "Attention grows with the square of the prompt length but is small at first. Video models reach such lengths, chats do not.",
  },
];

export const MANY_USERS = [
  {
    id: "batch-150",
    text: "A batch of about 150 makes an A100 compute-bound.",
    state: { ...SMALL, users: 150 },
    find: ({ asked, wall, decode }) => ({
      wall, ridge: decode.ridge,
      batches: [1, 128, 256, 512].map((context) => criticalBatch(asked, context)),
      never: first_from((context) => criticalBatch(asked, context) === null),
    }),
    ledger: ({ wall, ridge, batches: [none, ...more], never }) =>
      `${three_digits(none)} without context; ${more.map(three_digits).join(", ")} at 128, 256, 512 tokens of context; from ${grouped(never)} tokens on, no batch size is enough. ` +
      `At 2,000 tokens the intensity stays below ${three_digits(wall)} FLOP/byte, but the ridge is at ${three_digits(ridge)}.`,
    why: "A batch shares the weights, but each user's keys and values are read for that user only.",
  },
  {
    id: "batching-32",
    text: "Batching 32 users gives 32 times the throughput.",
    state: { ...SMALL, users: 32 },
    find: ({ asked, state }) => ({
      gains: [128, 512, 2000].map((context) => (state.users * decodeOf(asked, 1, context).seconds.floor) / decodeOf(asked, state.users, context).seconds.floor),
    }),
    ledger: ({ gains }) => `${gains.map((gain) => fixed(gain, 1)).join(", ")} times at 128, 512, 2,000 tokens of context.`,
    why: "The step takes longer, because it reads the keys and values of 32 users.",
  },
  {
    id: "little",
    text: "The number of concurrent requests is the arrival rate times the seconds that each request stays (Little's law).",
    state: { ...SMALL, users: 32 },
    find: ({ serving, state, workload, intervals: { load: { low, high } } }) => {
      const { requestsPerSecond, ttft, tpot } = serving.load(state.users);
      const stay = (of) => ttft[of] + (workload.output - 1) * tpot[of];
      return { rate: requestsPerSecond.expected, most: requestsPerSecond.floor, stay: stay("expected"), least: stay("floor"), around: { low, high } };
    },
    ledger: ({ rate, most, stay, least, around }) =>
      `It is: ${three_digits(rate)} ${rate_interval(around, rate, most)} per second × ${say_seconds(stay)} ${time_interval(around, stay, least)} = ${fixed(rate * stay, 1)}, as expected here.`,
    why: "It holds for every queue that neither grows nor shrinks in the long run. Two of concurrency, rate and stay determine the third.",
  },
  {
    id: "users-on-24-gb",
    text: "24 GB hold an 8B in bf16 and about 30 users of 2,000 tokens: 8 GB divided by 256 MB.",
    state: { ...SMALL, card: "rtx-4090", input: 1999, output: 1 },
    find: ({ serving: { memory } }) => ({ users: memory.users, left: memory.left, each: memory.requestBytes }),
    ledger: ({ users, left, each }) => `${grouped(users)} users: ${say_gib(gib(left))} are left, ${say_gib(gib(each))} each.`,
    why: "A reserve, activations, the driver and CUDA graphs take memory too.",
  },
  {
    id: "concurrency",
    text: "An engine's log: maximum concurrency for 2,048 tokens per request is 68.65x.",
    state: { ...SMALL, card: "h100-sxm", input: 1024, output: 1024 },
    find: ({ serving: { memory }, workload }) => ({ tokens: memory.kvTokens, pages: memory.pages, times: memory.concurrency, said: 140595 / workload.tokens }),
    ledger: ({ tokens, pages, times, said }) =>
      `That log had 140,595 tokens of keys and values: ${fixed(said, 2)}. This GPU has ${grouped(tokens)}, ${grouped(pages)} pages: ${fixed(times, 2)} times.`,
    why: "It is the free KV memory divided by that of a request of full length. It says neither how many requests are admitted nor how fast they are.",
  },
];
