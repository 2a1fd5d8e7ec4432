// What an engine is doing, as its feed tells: a snapshot, then frames that are laid over it. docs/serving.md has their
// columns. Nothing is drawn here, and nothing known that the feed does not say.

/** States of a page, by the numbers that `pages.state` has for them. */
export const STATES = ["free", "held", "published", "shared", "cached"];

const KEPT = new Set(["held", "published", "shared"]); // with what they have had

const RECENT = 120; // steps that are shown
const ENDED = 100; // requests that have ended and are shown
const WINDOW = 3; // seconds that rates look back

export class EngineState {
  /** Before the first snapshot there is nothing: `begun` is false. */
  constructor() {
    this.begun = false;
    this.revision = 0;
  }

  /** Lay a snapshot or a frame over what is known. */
  take(told) {
    if (told.type === "snapshot") this.begin(told);
    else if (this.begun) this.follow(told);
    this.revision += 1;
  }

  begin(snapshot) {
    const { limits, device, calibrated, counters, clock, priced, step } = snapshot;
    Object.assign(this, { limits, device, calibrated, counters, clock, priced, step });
    this.begun = true;
    this.since = clock;
    this.pages = emptyPages(limits.pages);
    this.counts = STATES.map(() => 0);
    this.counts[0] = limits.pages;
    this.redraw = true; // all pages; else those of `changed`
    this.changed = new Map();
    this.requests = new Map();
    this.ended = [];
    this.endings = new Map();
    this.finished = { requests: 0, prompt: 0, cached: 0 };
    this.steps = snapshot.recent.slice(-RECENT);
    this.ran = [];
    snapshot.pages.forEach((change) => this.lay(change));
    snapshot.requests.forEach((row) => this.requests.set(keyOf(row.request, row.choice), { ...row }));
  }

  follow(frame) {
    const again = frame.steps > 0 && frame.step - frame.steps + 1 < this.step; // some are in the snapshot already
    this.count(frame, again);
    this.steps.push(...frame.recent.filter(({ step }) => step >= this.step));
    this.steps.splice(0, this.steps.length - RECENT);
    if (frame.steps > 0) this.step = Math.max(this.step, frame.step + 1);
    this.priced = frame.priced;
    frame.pages.forEach((change) => this.lay(change));
    this.move(frame);
  }

  /** Counters, and what rates are made of. */
  count(frame, again) {
    const positions = frame.items.reduce((sum, item) => sum + item[2], 0);
    const out = frame.counters.output_tokens - this.counters.output_tokens;
    if (frame.steps > 0) this.clock = Math.max(this.clock, frame.clock);
    this.counters = frame.counters;
    this.ran.push({ clock: this.clock, prompt: again ? 0 : positions - frame.decodes, out });
    const first = this.ran.findIndex(({ clock }) => clock > this.clock - WINDOW);
    this.ran.splice(0, first < 0 ? this.ran.length : first);
  }

  /** A page is in another state now. */
  lay([group, page, name, request, start, references, previous = 0]) {
    const { pages, counts } = this;
    const before = pages.state[page];
    const state = STATES.indexOf(name);
    counts[before] -= 1;
    counts[state] += 1;
    pages.state[page] = state;
    pages.group[page] = group;
    pages.request[page] = request;
    pages.start[page] = start;
    pages.references[page] = references;
    if (name === "free" || (name === "held" && !KEPT.has(STATES[before]))) pages.made[page] += 1;
    if (start >= 0) {
      pages.place[page] = start;
      pages.before[page] = previous;
      pages.madeBefore[page] = pages.made[previous];
    }
    if (!this.changed.has(page)) this.changed.set(page, before);
  }

  /** Requests: first what ran, then how they stand, then those that are no longer there. */
  move(frame) {
    for (const [request, start, count, choice] of frame.items) {
      const lane = this.requests.get(keyOf(request, choice));
      if (!lane) continue;
      lane.computed = start + count;
      lane.known = Math.max(lane.known, lane.computed >= lane.prompt ? lane.computed + 1 : 0);
    }
    for (const row of frame.requests) this.requests.set(keyOf(row.request, row.choice), { ...row });
    for (const [request, choice] of frame.gone) this.leave(request, choice);
    for (const end of frame.ended) this.finish(end);
    this.ended.splice(ENDED);
  }

  leave(request, choice) {
    const key = keyOf(request, choice);
    const lane = this.requests.get(key);
    if (!lane) return;
    this.requests.delete(key);
    const end = this.endings.get(request);
    this.ended.unshift({ ...lane, finish: end ? end.finish : "" });
  }

  /** How a request ended. The engine may not have said yet that it is gone; or it was so short that it said nothing. */
  finish(end) {
    const { request, prompt, cached, output, finish, id } = end;
    this.finished.requests += 1;
    this.finished.prompt += prompt;
    this.finished.cached += cached;
    const known = this.ended.filter((lane) => lane.request === request);
    known.forEach((lane) => Object.assign(lane, { finish }));
    const running = [...this.requests.values()].some((lane) => lane.request === request);
    if (running) this.endings.set(request, end);
    if (running || known.length > 0) return;
    const computed = Math.max(0, prompt + output - 1);
    const lane = { request, choice: 0, id, stage: "decode", prompt, cached, computed, known: prompt + output, preemptions: 0 };
    this.ended.unshift({ ...lane, finish });
  }

  /** The pages of a page's prefix, from it to the first, as far as they are known and still have what they had. */
  chain(page) {
    const { before, made, madeBefore, place, state } = this.pages;
    const found = [page];
    for (let at = page; before[at] && made[before[at]] === madeBefore[at] && state[before[at]] && place[before[at]] < place[at]; at = before[at]) {
      found.push(before[at]);
    }
    return found;
  }

  /** Which pages changed since the last time that somebody asked; null for all of them. */
  drain() {
    const changed = this.redraw ? null : [...this.changed];
    this.redraw = false;
    this.changed.clear();
    return changed;
  }

  /** Requests by their lane, the oldest first; those that have ended the newest first. */
  lanes() {
    const all = [...this.requests.values()].sort((one, other) => one.request - other.request || one.choice - other.choice);
    return {
      waiting: all.filter(({ stage }) => stage === "waiting"),
      running: all.filter(({ stage }) => stage !== "waiting"),
      ended: this.ended,
    };
  }

  /** Positions of prompts and tokens a second. idle: seconds since the engine said something. */
  rates(idle = 0) {
    const now = this.clock + idle;
    const from = Math.max(now - WINDOW, this.since);
    const ran = this.ran.filter(({ clock }) => clock > from);
    const over = now - from;
    const sum = (name) => ran.reduce((total, each) => total + each[name], 0);
    return over > 0 ? { prompt: sum("prompt") / over, out: sum("out") / over } : { prompt: 0, out: 0 };
  }

  /** Numbers of the gauges; null for what is not known. */
  gauges(idle = 0) {
    const { counters, limits, finished, priced } = this;
    const of = (part, whole) => (whole > 0 ? part / whole : null);
    const steps = this.steps.filter(({ predicted }) => predicted !== null);
    const total = (name) => steps.reduce((sum, each) => sum + each[name], 0);
    return {
      ...this.rates(idle),
      running: counters.running,
      waiting: counters.waiting,
      memory: of(counters.held_pages, limits.pages) ?? 0,
      hits: of(finished.cached, finished.prompt),
      recent: of(total("predicted"), total("seconds")),
      share: of(priced.predicted, priced.measured),
    };
  }
}

function keyOf(request, choice) {
  return `${request}.${choice}`;
}

function emptyPages(count) {
  const places = count + 1; // pages are numbered from 1
  return {
    count,
    state: new Uint8Array(places),
    group: new Uint8Array(places),
    request: new Float64Array(places),
    start: new Int32Array(places).fill(-1),
    references: new Int32Array(places),
    place: new Int32Array(places).fill(-1), // as `start`, also of those that are kept for nobody
    before: new Int32Array(places), // the page of the positions before
    made: new Uint32Array(places), // how often its contents were others
    madeBefore: new Uint32Array(places), // the same of the page before, when it was that
  };
}
