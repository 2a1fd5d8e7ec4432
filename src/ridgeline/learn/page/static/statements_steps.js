// What texts say of steps, one user's and many users', beside what the price says of the same case. Pure; a statement is
// as statements.js has it.

import { computeBoundPrompt, criticalBatch, firstFrom } from "page/critical.js";
import { fixed, grouped, say, sayGB, sayGiB, saySeconds, three } from "page/numbers.js";
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
    const of = (kind) => rows.filter(({ op }) => op.kind === kind).reduce((sum, { op, cost }) => sum + cost.flops[table.dtype] * op.count, 0);
    return of("attention") - of("linear");
  };
  return { level: firstFrom((length) => excess(length) >= 0), overtakes: firstFrom((length) => excess(length) > 0) };
}

export const ONE_USER = [
  {
    id: "ops-per-byte",
    text: "An H100 does 295 operations in FP16 in the time that a byte takes to come.",
    state: { ...SMALL, card: "h100-sxm" },
    find: ({ card, decode }) => ({ ridge: decode.ridge, peak: decode.ridge * card.bandwidth, bandwidth: card.bandwidth }),
    ledger: ({ ridge, peak, bandwidth }) => `${fixed(ridge, 1)}: ${say(peak, "FLOP/s")} over ${say(bandwidth, "B/s")}.`,
    why: "Of dense matrices. Data sheets print twice that first, for matrices of which half are zeros.",
  },
  {
    id: "one-user",
    text: "8B on an A100: 16 GB a token, 8 ms, 125 tokens a second; 16 GFLOP take 0.05 ms.",
    state: { ...SMALL, input: 1, output: 1 },
    find: ({ decode }) => ({ weights: decode.cost.weights, floor: decode.seconds.floor, arithmetic: decode.arithmetic, times: decode.memory / decode.arithmetic }),
    ledger: ({ weights, floor, arithmetic, times }) =>
      `${sayGB(weights)}, ${saySeconds(floor)}, ${three(1 / floor)} tokens a second at best; arithmetic ${saySeconds(arithmetic)}, ${three(times)} times less.`,
    why: "Of the embedding's table a token reads one row, not all of it.",
  },
  {
    id: "large-model",
    text: "70B in FP16 takes 42 ms a token on one H100; arithmetic is less than half a percent of it.",
    state: LARGE,
    find: ({ decode, serving }) => ({ floor: decode.seconds.floor, share: decode.arithmetic / decode.memory, missing: serving.memory.missing }),
    ledger: ({ floor, share, missing }) => `${saySeconds(floor)} and ${fixed(100 * share, 2)} %, if it fitted: ${sayGiB(missing)} are missing.`,
    why: "140 GB do not go into 80: two cards, or narrower weights.",
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
    ledger: ({ first, arithmetic, all }) => `Prefill ${saySeconds(first)}, of which arithmetic would take ${saySeconds(arithmetic)}; all of it ${saySeconds(all)} at best.`,
    why: "The prefill already gives the first token, so 29 steps follow; and 8 ms a step are an A100's, not an H100's.",
  },
  {
    id: "prefill",
    text: "Prefill is compute-bound.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
    find: ({ asked }) => ({ length: computeBoundPrompt(asked) }),
    ledger: ({ length }) => `From ${grouped(length)} prompt tokens on; a shorter prompt waits for memory.`,
    why: "Short prompts read all weights for a handful of tokens, as decoding does.",
  },
  {
    id: "attention-of-eight",
    text: "A prompt of 8 tokens is dominated by attention.",
    state: { ...SMALL, card: "h100-sxm", input: 8, output: 30 },
    find: ({ asked, state }) => {
      const phase = promptOf(asked, state.input);
      return { attention: attentionOf(phase), all: phase.seconds.bound };
    },
    ledger: ({ attention, all }) => `Attention takes ${saySeconds(attention)} of ${saySeconds(all)}.`,
    why: "Its work grows with pairs of tokens, and eight tokens make few; the matrices are read whole for them.",
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
      `Of a prompt of 1,024 tokens ${saySeconds(attention)} of ${saySeconds(all)}. ` +
      (level < overtakes ? `At ${grouped(level)} tokens it does as much arithmetic as the matrices, from ${grouped(overtakes)} on more.` : `It does more arithmetic than the matrices from ${grouped(overtakes)} tokens on.`),
    why: "Attention grows with the square of a prompt, but from a small beginning. Models of video get there, chats do not.",
  },
];

export const MANY_USERS = [
  {
    id: "batch-150",
    text: "A batch of about 150 fills an A100.",
    state: { ...SMALL, users: 150 },
    find: ({ asked, wall, decode }) => ({
      wall, ridge: decode.ridge,
      batches: [1, 128, 256, 512].map((context) => criticalBatch(asked, context)),
      never: firstFrom((context) => criticalBatch(asked, context) === null),
    }),
    ledger: ({ wall, ridge, batches: [none, ...more], never }) =>
      `${three(none)} without context; ${more.map(three).join(", ")} at 128, 256, 512 tokens of it; from ${grouped(never)} on no batch does. ` +
      `At 2,000 none gets past ${three(wall)} FLOP a byte, the ridge is at ${three(ridge)}.`,
    why: "Weights are shared by a batch, keys and values are not: each user brings bytes that nobody else needs.",
  },
  {
    id: "batching-32",
    text: "Batching 32 users gives 32 times the throughput.",
    state: { ...SMALL, users: 32 },
    find: ({ asked, state }) => ({
      gains: [128, 512, 2000].map((context) => (state.users * decodeOf(asked, 1, context).seconds.floor) / decodeOf(asked, state.users, context).seconds.floor),
    }),
    ledger: ({ gains }) => `${gains.map((gain) => fixed(gain, 1)).join(", ")} times at 128, 512, 2,000 tokens of context.`,
    why: "The step becomes longer by 32 users' keys and values.",
  },
  {
    id: "little",
    text: "Requests under way are those that come in a second times the seconds that each stays (Little's law).",
    state: { ...SMALL, users: 32 },
    find: ({ serving, state, workload }) => {
      const { requestsPerSecond, ttft, tpot } = serving.load(state.users);
      return { rate: requestsPerSecond.expected, stay: ttft.expected + (workload.output - 1) * tpot.expected };
    },
    ledger: ({ rate, stay }) => `So it is: ${three(rate)} a second × ${saySeconds(stay)} = ${fixed(rate * stay, 1)}, as expected here.`,
    why: "It holds for any queue that neither grows nor empties; of batch, rate and stay, two are free.",
  },
  {
    id: "users-on-24-gb",
    text: "24 GB hold 8B in bf16 and about 30 users of 2,000 tokens: 8 GB over 256 MB.",
    state: { ...SMALL, card: "rtx-4090", input: 1999, output: 1 },
    find: ({ serving: { memory } }) => ({ users: memory.users, left: memory.left, each: memory.requestBytes }),
    ledger: ({ users, left, each }) => `${grouped(users)} users: ${sayGiB(left)} are left, ${sayGiB(each)} each.`,
    why: "Activations, the driver and its graphs, and a reserve that no engine fills live there too.",
  },
  {
    id: "concurrency",
    text: "An engine's log: maximum concurrency for 2,048 tokens a request is 68.65 times.",
    state: { ...SMALL, card: "h100-sxm", input: 1024, output: 1024 },
    find: ({ serving: { memory }, workload }) => ({ tokens: memory.kvTokens, pages: memory.pages, times: memory.concurrency, said: 140595 / workload.tokens }),
    ledger: ({ tokens, pages, times, said }) =>
      `That log had 140,595 tokens of keys and values: ${fixed(said, 2)}. This card has ${grouped(tokens)}, ${grouped(pages)} pages: ${fixed(times, 2)} times.`,
    why: "Free memory over that of one request at its longest: neither how many are admitted, nor how fast they are.",
  },
];
