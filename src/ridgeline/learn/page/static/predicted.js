// Predicted times of a server or a recording, with the interval in which 8 of 10 measurements of such cases lie. Pure
// functions.

import { time_interval } from "page/interval_formulas.js";
import { say_seconds } from "page/numbers.js";

/** factors: [low, high] on predicted times, undefined if a recording has none. */
export function sayPredicted(seconds, factors) {
  return factors ? `${say_seconds(seconds)} ${intervalOf(seconds, factors)}` : say_seconds(seconds);
}

export function intervalOf(seconds, [low, high]) {
  return time_interval({ low, high }, seconds);
}

/** around: both ends of the interval in seconds, null if there is none yet. */
export function sayWithin(seconds, around) {
  return sayPredicted(seconds, around && seconds > 0 ? around.map((end) => end / seconds) : undefined);
}

/** Return the phase of an engine's step, a key of `predicted_intervals`. */
export function phaseOf({ positions, decodes }) {
  if (decodes === positions) return "decode";
  return decodes ? "mixed" : "prefill";
}
