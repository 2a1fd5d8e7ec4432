// The figures of a Setting that levers compare and that an export has. Pure functions.

import { dollars_per_million } from "page/plan_formulas.js";

/**
 * Return the figures by which levers are compared: the mean time to the first token if all current users send at once,
 * their step, the maximum number of users, and the dollars per million tokens of these.
 */
export function figuresOf({ serving, decode, card, asked, state }, seller = card.prices[0]?.seller) {
  const { capacity } = serving;
  const price = card.prices.find((each) => each.seller === seller);
  const hourly = price ? price.dollars * asked.devices : null;
  const rate = capacity.users ? capacity.load.tokensPerSecond : null;
  const [ttft, itl] = [serving.marching(state.users), decode.seconds];
  const dollars = dollars_per_million(hourly, rate && rate.expected);
  const floors = { ttft: ttft.floor, itl: itl.floor, dollars: dollars_per_million(hourly, rate && rate.floor) };
  return { ttft: ttft.expected, itl: itl.expected, users: capacity.users, dollars, floors };
}

const KINDS = ["decode", "prefill", "load", "memory"];

/** Return the shown figures in SI units, and the factors of their intervals: the keys of `plan --json`, flat. */
export function figuresTaken(setting) {
  const { state, decode, serving, context, table, intervals } = setting;
  const { memory, capacity } = serving;
  const { ttft, itl, users, dollars } = figuresOf(setting);
  const { floor, bound, expected } = decode.seconds;
  return {
    ...state, model: table.model, context,
    "decode.floor": floor, "decode.bound": bound, "decode.expected": expected,
    "decode.bytes": decode.weight_bytes + decode.kv_read_bytes + decode.kv_write_bytes, "decode.flops": decode.flops,
    "decode.intensity": decode.intensity, "decode.ridge": decode.ridge, "decode.limit": decode.limit,
    "memory.total": memory.total, "memory.budget": memory.budget, "memory.weights": memory.weights,
    "memory.activations": memory.activations, "memory.overhead": memory.overhead, "memory.left": memory.left,
    "memory.users": memory.users, "answer.users": users, "answer.users_limited_by": capacity.limit,
    "answer.itl": itl, "answer.dollars_per_million_tokens": dollars,
    "load.asked.ttft": serving.steady(state.users).stay.ttft.expected, "load.asked.ttft_marching": ttft,
    "trust.known": intervals.decode.known,
    ...Object.fromEntries(KINDS.flatMap((kind) => ["low", "high"].map((end) => [`trust.intervals.${kind}.${end}`, intervals[kind][end]]))),
  };
}
