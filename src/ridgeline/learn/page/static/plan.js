// A plan, like price/plan: memory, subtraction by subtraction; the phases of a request; users under load and their
// maximum; and the price of a token. Pure functions. Bytes, seconds, dollars; an Estimate is {floor, bound, expected}.
//
//   makeCase(table, card, engine, {utilization})  the case that all other functions take: {table, device, engine, devices,
//                     ranks, utilization}. table: from openTable; card, engine: from openCards. Throws if they do not fit
//                     together
//   makeWorkload(table, {input, output, batch, ttft, tpot, stepTokens})  the same with what follows: tokens, context (the
//                     mean of decode steps), given, encoded, ... ttft, tpot: maximum seconds, null for no target. Throws if
//                     the model takes no such requests
//   memoryOf(asked, workload)      {total, budget, weights, activations, overhead, left, pages, pageBytes, perToken,
//                     requestTokens, requestBytes, kvTokens, concurrency, stateBytes, logitRows, sampler, held, atEnd,
//                     together, users, limit, fits, missing}; budget - weights - activations - overhead = left
//   prefillOf(asked, workload), decodeOf(asked, batch, context, encoded)  a PhasePrice
//   decodeIntensity(asked, batch, context, encoded)   FLOP/B of a decode step alone
//   requestOf(asked, workload)     {prefill, decode, seconds}: the batch, sent at once, until it has all its tokens
//   new Serving(asked, workload)   .memory  .prefill (one prompt alone)  .itl(users)  .load(users)  .marching(users)
//                     .capacity; for any batch
//     load(users)     {users, itl, prefill, tpot, ttft, ttftMarching, tokensPerSecond, requestsPerSecond, tokensPerUser:
//                     Estimates; prefillShare, waits (null, except if ranks wait for each other)}
//     capacity        {users, limit: "memory" | "step" | "ttft" | "tpot", load}

import { MemoryRule_budget, MemoryRule_logit_rows, MemoryRule_overhead, first_between, matrix_intensity } from "page/formulas.js";
import { Estimate_add, Estimate_mul, Estimate_of, Estimate_per_second, Phase, PlanWorkload, PlanWorkload_context, PlanWorkload_encoder_step, PlanWorkload_given, PlanWorkload_prompt_step, PlanWorkload_tokens, PromptQueue, PromptQueue_all, PromptQueue_one, RankPrompts, RankPrompts_on, missed_target, most_users, prefill_share, rank_waits, steady_state, sum_phase } from "page/plan_formulas.js";
import { activationPeak, drive, priceStep, stepCost } from "page/price.js";
import { decodeWork, prefillWork, segment, workOf } from "page/work.js";

const SPEECH_PROMPT = 3; // tokens before the text that a speech model generates for a window

export function makeCase(table, card, engine, { utilization = 0.9 } = {}) {
  if (table.devices > 1 && card.link === null) throw new Error(`${card.title} has no known link between GPUs; choose one GPU`);
  if (engine.own_attention !== table.ranks > 1) {
    const [has, lacks] = engine.own_attention ? ["the engine", "the table"] : ["the table", "the engine"];
    throw new Error(`${has} uses --enable-dp-attention, but ${lacks} does not: use it for both or for neither`);
  }
  const device = drive(card, engine, table.devices);
  return { table, device, engine, devices: table.devices, ranks: table.ranks, utilization };
}

export function makeWorkload(table, asked = {}) {
  const { batch = 1, ttft = null, tpot = null, stepTokens = 2048 } = asked;
  let { input = 1024, output = 256 } = asked;
  let encoded = 0;
  if (table.encoder) {
    const sound = table.encoder.reads === "sound";
    encoded = sound ? table.encoder.context : input;
    if (sound) output = Math.min(output, Math.floor(table.context / 2));
    input = sound ? SPEECH_PROMPT : 1;
    if (encoded > table.encoder.context) throw new Error(`the model's encoder takes ${table.encoder.context} tokens of input`);
  }
  if (input + output > table.context) {
    throw new Error(`${input} tokens of input and ${output} of output are more than the model's context of ${table.context}`);
  }
  const workload = PlanWorkload(input, output, batch, ttft, tpot, stepTokens, table.memory.page_size, encoded);
  return { ...workload, given: PlanWorkload_given(workload), tokens: PlanWorkload_tokens(workload), context: PlanWorkload_context(workload) };
}

const onEach = (asked, requests) => Math.ceil(requests / asked.ranks);

// -- memory ----------------------------------------------------------------------------------------------------------

export function memoryOf(asked, workload) {
  const least = MemoryRule_logit_rows(asked.engine.memory, asked.device);
  const peaks = new Map();
  const peakAt = (rows) => {
    const count = Math.min(workload.step_tokens, rows);
    if (!peaks.has(count)) peaks.set(count, stepPeak(asked.table, workload, count));
    return peaks.get(count);
  };
  const held = (rows) => withLogits(asked, workload, rows, peakAt(rows));
  const usual = held(least);
  const most = Math.floor(usual.users / asked.ranks);
  if (most <= least) return usual;
  // Each further request needs a further row of logits. Find the fewest rows that suffice for all requests that fit
  // with them.
  return held(first_between(least + 1, most, (rows) => Math.floor(held(rows).users / asked.ranks) <= rows));
}

function stepPeak(table, workload, rows) {
  const [tokens, encoded] = [workload.step_tokens, PlanWorkload_encoder_step(workload)];
  return activationPeak(table, workOf(table, [segment(tokens, tokens, encoded, encoded > 0)], rows));
}

function withLogits(asked, workload, rows, peak) {
  const { table, device, engine, utilization, ranks } = asked;
  const { weights, page, logit_row: logitRow, token, state, page_size: pageSize } = table.memory;
  const rule = engine.memory;
  const sampler = rule.copies * rows * logitRow;
  const activations = Math.max(peak, sampler);
  const recorded = device.native && engine.name === "ridgeline" ? table.memory.recorded : 0;
  const overhead = MemoryRule_overhead(rule, device, asked.devices) + recorded;
  const taken = weights + activations + overhead;
  const budget = MemoryRule_budget(rule, device.memory, taken, utilization);
  const left = budget - taken;
  const pages = Math.max(0, (left - (left % page)) / page);
  const tokens = workload.tokens;
  const admitted = engine.admission === "full" ? tokens : workload.context;
  const kept = (positions, chunk) => pagesKept(table, positions, chunk, workload.encoded);
  const usersOf = (positions) => {
    const [begins, stays] = [kept(positions, Math.min(positions, workload.step_tokens)), kept(positions, 1)];
    return begins > pages ? 0 : 1 + Math.floor((pages - begins) / stays);
  };
  const atEnd = ranks * usersOf(tokens);
  const fits = atEnd >= 1;
  const held = fits ? ranks * usersOf(admitted) : 0;
  const requestBytes = kept(tokens, 1) * page;
  const positions = (Math.ceil(tokens / pageSize) * pageSize) / tokens;
  return {
    total: device.memory, budget, weights, activations, overhead, left, sampler, logitRows: rows, recorded,
    pages, pageBytes: page, pageSize, perToken: token, stateBytes: state,
    kvTokens: state ? null : kvTokensOf(table, pages),
    requestTokens: tokens, admittedTokens: admitted, requestBytes,
    concurrency: state ? (pages * page) / requestBytes : ((pages * page) / requestBytes) * positions,
    atEnd, held, fits,
    together: Math.min(atEnd, ranks * workload.step_tokens),
    users: Math.min(held, ranks * workload.step_tokens),
    limit: held <= ranks * workload.step_tokens ? "memory" : "step",
    missing: fits ? 0 : requestBytes - left,
  };
}

// Return the maximum number of pages that a sequence of this many positions holds, if a step runs at most `chunk` of
// them.
export function pagesKept(table, positions, chunk, encoded = 0) {
  return table.memory.groups.reduce((total, group) => {
    const slots = { state: 1, encoder: encoded, sequence: positions }[group.of];
    const every = Math.ceil(slots / group.page_size);
    return total + (group.spans === undefined ? every : Math.min(every, Math.ceil((group.spans + chunk) / group.page_size)));
  }, 0);
}

// Return the number of positions that this many pages hold if every layer stores all of them.
function kvTokensOf(table, pages) {
  const { groups, page_size: size } = table.memory;
  const share = groups.filter((group) => group.of === "sequence").reduce((sum, group) => sum + size / group.page_size, 0);
  return share ? Math.floor(pages / share) * size : 0;
}

// -- phases ----------------------------------------------------------------------------------------------------------

export function prefillOf(asked, workload) {
  const positions = onEach(asked, workload.batch) * workload.input;
  const step = PlanWorkload_prompt_step(workload);
  const works = [];
  for (let at = 0; at < positions; at += step) works.push(prefillWork(asked.table, workload, at, Math.min(at + step, positions)));
  return phaseOf(asked, "prefill", works, workload.input, Math.min(workload.batch, asked.ranks));
}

export function decodeOf(asked, batch, context, encoded = 0) {
  return phaseOf(asked, "decode", [decodeWork(asked.table, onEach(asked, batch), context, encoded)], context, asked.ranks);
}

export function requestOf(asked, workload) {
  const prefill = prefillOf(asked, workload);
  const decode = decodeOf(asked, workload.batch, workload.context, workload.encoded);
  return { prefill, decode, seconds: Estimate_add(prefill.seconds, Estimate_mul(decode.seconds, workload.output - 1)) };
}

// Return the FLOP/B of a decode step, as `decodeOf` does, but without its seconds.
export function decodeIntensity(asked, batch, context, encoded = 0) {
  return matrix_intensity(stepCost(asked.table, decodeWork(asked.table, onEach(asked, batch), context, encoded), asked.ranks));
}

function phaseOf({ table, device }, name, works, context, ranks) {
  const steps = works.map((work) => priceStep(table, device, work, ranks));
  return sum_phase(Phase(name, works, 1, "", context), steps, device);
}

// -- under load ------------------------------------------------------------------------------------------------------

function promptsOf({ table, device, ranks: all }, workload) {
  const seconds = (ranks) => (start, end) => Estimate_of([priceStep(table, device, prefillWork(table, workload, start, end), ranks)]);
  const queue = (ranks) => PromptQueue(workload.input, PlanWorkload_prompt_step(workload), seconds(ranks));
  return RankPrompts(all, workload.output, queue);
}

export class Serving {
  constructor(asked, workload) {
    Object.assign(this, { asked, workload, prompts: promptsOf(asked, workload) });
  }

  get memory() {
    this.held ??= memoryOf(this.asked, this.workload);
    return this.held;
  }

  get prefill() {
    return PromptQueue_all(RankPrompts_on(this.prompts, 1), 1);
  }

  itl(users) {
    const { table, device } = this.asked;
    const work = decodeWork(table, onEach(this.asked, users), this.workload.context, this.workload.encoded);
    return Estimate_of([priceStep(table, device, work)]);
  }

  load(users) {
    const { output } = this.workload;
    const { itl, pauses, stay } = this.steady(users);
    const own = onEach(this.asked, users);
    const marching = () => this.marching(users); // one step for each prompt
    const requestsPerSecond = Estimate_per_second(stay.seconds, users);
    return {
      users, itl, prefill: this.prefill, tpot: stay.tpot, ttft: stay.ttft, requestsPerSecond,
      get ttftMarching() {
        return marching();
      },
      tokensPerSecond: Estimate_mul(requestsPerSecond, output),
      tokensPerUser: Estimate_per_second(stay.tpot, 1),
      prefillShare: prefill_share(itl, stay, output - 1),
      waits: pauses && this.asked.ranks > 1 ? rank_waits(users, own, output, itl, pauses) : null,
    };
  }

  // Return the mean seconds to the first token if all users send their requests at the same moment.
  marching(users) {
    return PromptQueue_one(RankPrompts_on(this.prompts, users), onEach(this.asked, users));
  }

  steady(users) {
    return steady_state(users, onEach(this.asked, users), this.itl(users), this.prompts);
  }

  get capacity() {
    if (this.most) return this.most;
    const [users, limit] = most_users(this.memory.users, this.memory.limit, (count) => this.missed(count));
    this.most = { users, limit, load: this.load(Math.max(1, users)) };
    return this.most;
  }

  // Return the target that this number of users misses, null if none.
  missed(users) {
    const { ttft, tpot } = this.workload;
    if (ttft === null && tpot === null) return null;
    const { stay } = this.steady(users);
    return missed_target(stay.ttft.expected, stay.tpot.expected, ttft, tpot);
  }
}
