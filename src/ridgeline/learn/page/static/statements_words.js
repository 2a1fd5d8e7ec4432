// Statements about words, probabilities and images, which need no prices: arithmetic done here, or facts. Pure
// functions. statements.js describes a statement.

import { percent, three_digits } from "page/numbers.js";
import { fixed, grouped } from "page/python.js";

const dot = (a, b) => a.reduce((sum, each, at) => sum + each * b[at], 0);

/** Return the probabilities of scores: e to the power of each, divided by their sum. */
export function softmax(scores) {
  const powers = scores.map(Math.exp);
  const all = powers.reduce((sum, each) => sum + each, 0);
  return powers.map((each) => each / all);
}

/** Return the attention of a query over keys and values, and its weights. */
export function attend(query, keys, values) {
  const shares = softmax(keys.map((key) => dot(query, key) / Math.sqrt(query.length)));
  return { shares, taken: values[0].map((_, at) => dot(shares, values.map((value) => value[at]))) };
}

export const WORDS = [
  {
    id: "attention-by-hand",
    text: "Attention by hand: q = [1, 0], keys [1, 0], [0, 1], [1, 0], values [10, 0], [0, 10], [5, 5]: weights .40 .20 .40, so [6, 4].",
    find: () => attend([1, 0], [[1, 0], [0, 1], [1, 0]], [[10, 0], [0, 10], [5, 5]]),
    ledger: ({ shares, taken }) => `${shares.map((each) => fixed(each, 4)).join(" ")}, so [${taken.map((each) => fixed(each, 4)).join(", ")}].`,
    why: "The textbook rounds the weights before it multiplies.",
  },
  {
    id: "products-by-hand",
    text: "[1, 2, 3] · [4, 5, 6] = 32, and x = [1, 2] times the rows [2, 1], [1, 2] is [4, 5].",
    find: () => ({ alone: dot([1, 2, 3], [4, 5, 6]), rows: [[2, 1], [1, 2]].map((row) => dot([1, 2], row)) }),
    ledger: ({ alone, rows }) => `${alone} and [${rows.join(", ")}].`,
    why: "Each row of a matrix gives one number of the output.",
  },
  {
    id: "impossible-chances",
    text: "Logits of 12.5 and 8.2 become probabilities of 0.7 and 0.2.",
    find: () => ({ times: Math.exp(12.5 - 8.2), said: 0.7 / 0.2, apart: Math.log(0.7 / 0.2) }),
    ledger: ({ times, said, apart }) => `The first is ${fixed(times, 1)} times as likely as the second, not ${three_digits(said)} times. Logits with those probabilities are ${three_digits(apart)} apart.`,
    why: "Only the difference of logits counts, which is 4.3 here: probabilities are proportional to powers of e.",
  },
  {
    id: "words-are-runs",
    text: "1,000 words take 1,000 runs of the model.",
    find: () => ({ tokens: 1000 / 0.75 }),
    ledger: ({ tokens }) => `At 3/4 of a word per token, ${grouped(tokens)} runs.`,
    why: "A run gives one token, and a word is often several tokens.",
  },
  {
    id: "characters-a-token",
    text: "A token is 3.5 to 4 characters or 3/4 of a word.",
    ledger: () => "This holds for English prose. Code, numbers and other languages have fewer characters per token: ridgeline tokenize MODEL TEXT counts them.",
    why: "A tokenizer has tokens for the pieces that were frequent in its training texts.",
  },
  {
    id: "byte-tokenizer",
    text: "A byte-level tokenizer has 257 symbols.",
    find: () => ({ symbols: 2 ** 8 + 1 }),
    ledger: ({ symbols }) => `${symbols}: all values of a byte, and one that marks beginning and end of a text.`,
    why: "It can encode any text, but each character of other alphabets takes several tokens.",
  },
];

export const PICTURES = [
  {
    id: "guidance",
    text: "50 steps with guidance take 100 passes; 8 or fewer steps save 80 to 90 %.",
    find: () => ({ passes: 2 * 50, saved: [8, 4].map((steps) => 1 - steps / 50) }),
    ledger: ({ passes, saved }) => `${passes}; 8 steps save ${percent(saved[0])}, 4 save ${percent(saved[1])}.`,
    why: "Each step runs the denoiser once with the prompt and once without. Models distilled to few steps often need no guidance, which halves the passes again.",
  },
  {
    id: "latent",
    text: "An image of 1024 × 1024 has a latent of 128 × 128, in patches of 2 × 2 or 4 × 4.",
    find: () => ({ tokens: [2, 4].map((patch) => (128 / patch) ** 2), fewer: (1024 / 128) ** 2 }),
    ledger: ({ tokens, fewer }) => `${tokens.map((count) => grouped(count)).join(" or ")} tokens; the latent has ${fewer} times fewer positions than the image.`,
    why: "Each patch is a token, so a patch of twice the width leaves a quarter of the tokens and a sixteenth of their pairs.",
  },
  {
    id: "single-pass-pictures",
    text: "Models that generate images as tokens make them in a single forward pass.",
    find: () => ({ passes: 24 * 24 }),
    ledger: ({ passes }) => `One pass per token, as for text: Janus's images of 24 × 24 tokens take ${passes} passes.`,
    why: "Each token depends on those before it. Only a denoiser that was distilled to few steps takes few passes.",
  },
];
