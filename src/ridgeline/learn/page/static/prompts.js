// Prompts that wait for their first token, on one rank and on several that wait for each other. PromptQueue repeats that of
// price/plan/prompt_queue.py, whose running sums are numpy's. Pure.
//
//   new RankPrompts(asked, workload)   asked: of makeCase (plan.js)
//     .on(requests)   PromptQueue of one rank where as many ranks have some: .all(count), .one(count): Estimates
//     .pauses(users)  Pauses of price/plan/prompt_queue.py
//   prefillStep(asked, workload, start, end, ranks)   the priced step of these positions, prompts laid end to end

import { Estimate, Estimate_add, Estimate_mul, Estimate_of, prompt_pauses } from "page/plan_formulas.js";
import { priceStep } from "page/price.js";
import { gcd } from "page/python.js";
import { segment, workOf } from "page/work.js";

export function prefillWork(asked, workload, start, end) {
  const length = workload.input;
  const ends = Math.floor(end / length) - Math.floor(start / length);
  const segments = [];
  for (let at = start; at < end; ) {
    const done = at % length;
    const count = Math.min(length - done, end - at);
    segments.push(segment(count, done + count, workload.encoded, done === 0 && workload.encoded > 0));
    at += count;
  }
  return workOf(asked.table, segments, ends);
}

export function prefillStep(asked, workload, start, end, ranks = asked.ranks) {
  return priceStep(asked.table, asked.device, prefillWork(asked, workload, start, end), ranks);
}

class PromptQueue {
  constructor(asked, workload, ranks) {
    Object.assign(this, { asked, workload, ranks });
    this.clock = [Estimate(0, 0, 0)]; // after so many full steps
    this.waits = [Estimate(0, 0, 0)]; // of the prompts that have ended by then, summed
    this.known = new Map();
    this.steps = new Map();
  }

  // Seconds until all of `count` prompts have their first token; between whole numbers a straight line.
  all(count) {
    return this.between(count, "all");
  }

  // Seconds until one of them has, on average over their places in the row.
  one(count) {
    return this.between(count, "one");
  }

  between(count, which) {
    const lower = Math.floor(count);
    const part = count - lower;
    const low = this.whole(lower)[which];
    return part ? Estimate_add(Estimate_mul(low, 1 - part), Estimate_mul(this.whole(lower + 1)[which], part)) : low;
  }

  whole(count) {
    if (!this.known.has(count)) this.known.set(count, this.priced(count));
    return this.known.get(count);
  }

  priced(count) {
    const { input, promptStep } = this.workload;
    const positions = count * input;
    const full = Math.floor(positions / promptStep);
    this.fill(full);
    let [clock, waits] = [this.clock[full], this.waits[full]];
    if (positions % promptStep) {
      clock = Estimate_add(clock, this.seconds(full * promptStep, positions));
      waits = Estimate_add(waits, Estimate_mul(clock, count - Math.floor((full * promptStep) / input)));
    }
    return { all: clock, one: Estimate_mul(waits, 1 / count) };
  }

  // So many full steps, few of them unlike each other.
  fill(full) {
    const { input, promptStep } = this.workload;
    const unlike = input / gcd(promptStep, input); // then steps begin at the same places in prompts again
    for (let at = this.clock.length - 1; at < full; at++) {
      const begins = (at % unlike) * promptStep;
      const clock = Estimate_add(this.clock[at], this.seconds(begins, begins + promptStep));
      const ended = Math.floor(((at + 1) * promptStep) / input) - Math.floor((at * promptStep) / input);
      this.clock.push(clock);
      this.waits.push(Estimate_add(this.waits[at], Estimate_mul(clock, ended)));
    }
  }

  seconds(start, end) {
    const begins = start % this.workload.input;
    const key = `${begins} ${end - start}`;
    if (!this.steps.has(key)) {
      const step = prefillStep(this.asked, this.workload, begins, begins + end - start, this.ranks);
      this.steps.set(key, Estimate_of([step]));
    }
    return this.steps.get(key);
  }
}

export class RankPrompts {
  constructor(asked, workload) {
    Object.assign(this, { asked, workload, queues: new Map() });
  }

  on(requests) {
    const ranks = Math.min(requests, this.asked.ranks);
    if (!this.queues.has(ranks)) this.queues.set(ranks, new PromptQueue(this.asked, this.workload, ranks));
    return this.queues.get(ranks);
  }

  pauses(users) {
    const all = (requests, count) => this.on(requests).all(count);
    const one = (requests, count) => this.on(requests).one(count);
    return prompt_pauses(users, this.asked.ranks, this.workload.output, all, one);
  }
}
