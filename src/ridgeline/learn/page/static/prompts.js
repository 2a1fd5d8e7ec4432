// Prompts that wait for their first token, on one rank and on several that wait for each other, as
// price/plan/prompt_queue.py has them: its head says what the letters stand for. Pure.
//
//   new RankPrompts(asked, workload)   asked: of makeCase (plan.js)
//     .on(requests)   PromptQueue of one rank where as many ranks have some: .all(count), .one(count): Estimates
//     .pauses(users)  {steady, together, apart, first, firstTogether, firstApart}: Estimates
//   prefillStep(asked, workload, start, end, ranks)   the priced step of these positions, prompts laid end to end

import { both, estimateOf, minus, scale, sum, ZERO } from "page/estimate.js";
import { priceStep } from "page/price.js";
import { segment, workOf } from "page/work.js";

const FAR = 10; // standard deviations beyond which nothing is
const NEVER = 1e-12; // a chance that is none

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

const gcd = (a, b) => (b ? gcd(b, a % b) : a);

class PromptQueue {
  constructor(asked, workload, ranks) {
    Object.assign(this, { asked, workload, ranks });
    this.clock = [ZERO]; // after so many full steps
    this.waits = [ZERO]; // of the prompts that have ended by then, summed
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
    return part ? sum(scale(low, 1 - part), scale(this.whole(lower + 1)[which], part)) : low;
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
      clock = sum(clock, this.seconds(full * promptStep, positions));
      waits = sum(waits, scale(clock, count - Math.floor((full * promptStep) / input)));
    }
    return { all: clock, one: scale(waits, 1 / count) };
  }

  // So many full steps, few of them unlike each other.
  fill(full) {
    const { input, promptStep } = this.workload;
    const unlike = input / gcd(promptStep, input); // then steps begin at the same places in prompts again
    for (let at = this.clock.length - 1; at < full; at++) {
      const begins = (at % unlike) * promptStep;
      const clock = sum(this.clock[at], this.seconds(begins, begins + promptStep));
      const ended = Math.floor(((at + 1) * promptStep) / input) - Math.floor((at * promptStep) / input);
      this.clock.push(clock);
      this.waits.push(sum(this.waits[at], scale(clock, ended)));
    }
  }

  seconds(start, end) {
    const begins = start % this.workload.input;
    const key = `${begins} ${end - start}`;
    if (!this.steps.has(key)) {
      const step = prefillStep(this.asked, this.workload, begins, begins + end - start, this.ranks);
      this.steps.set(key, estimateOf([step]));
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
    const ends = 1 / (this.workload.output - 1);
    const ranks = Math.min(users, this.asked.ranks);
    const own = users / ranks;
    const asks = 1 - Math.pow(1 - ends, own);
    const some = 1 - Math.pow(1 - ends, users);
    const fullest = mostOfARank(users, ranks, ends);
    const waiting = Math.max(1, (own * ends) / asks);
    const found = 1 + (own - 1) * ends;
    const [alone, every] = [this.on(1).all(waiting), this.on(users).all(waiting)];
    const [firstAlone, firstEvery] = [this.on(1).one(found), this.on(users).one(found)];
    const more = scale(minus(every, alone), (users * ends - fullest) / (waiting * Math.max(1, ranks - 1)));
    const steady = sum(scale(this.on(1).all(Math.max(1, fullest / some)), some), more);
    return {
      steady,
      together: both(steady, scale(every, asks), Math.min),
      apart: both(steady, scale(alone, ranks * asks), Math.max),
      first: sum(firstAlone, scale(minus(firstEvery, firstAlone), asks)),
      firstTogether: firstEvery,
      firstApart: firstAlone,
    };
  }
}

// The mean of the most prompts that any rank has, where each of the users has one with this chance.
function mostOfARank(users, ranks, chance) {
  if (ranks === 1 || chance === 1) return Math.ceil(users / ranks) * chance;
  const fewer = Math.floor(users / ranks);
  const fuller = users % ranks; // so many ranks have one user more than the others
  const mean = (fewer + 1) * chance;
  const least = Math.max(0, Math.floor(mean - FAR * Math.sqrt(mean) - FAR));
  const chances = [binomials(fewer, least, chance), binomials(fewer + 1, least, chance)];
  const below = [0, 0];
  let most = least;
  for (let count = least; count <= fewer; count++) {
    below.forEach((_, i) => (below[i] += chances[i](count)));
    const beyond = 1 - Math.pow(below[0], ranks - fuller) * Math.pow(below[1], fuller);
    most += beyond;
    if (beyond < NEVER) break;
  }
  return most;
}

// The chance that `count` of `size` users have a prompt, asked for rising counts from `least` on.
function binomials(size, least, chance) {
  let ways = 0; // the logarithm of how many there are
  let reached = 0;
  return (count) => {
    if (count > size) return 0;
    for (; reached < count; reached++) ways += Math.log((size - reached) / (reached + 1));
    return Math.exp(ways + count * Math.log(chance) + (size - count) * Math.log1p(-chance));
  };
}
