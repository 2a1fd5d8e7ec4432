// The state of an engine from its feed: a snapshot, and then frames that change it. docs/serving.md describes their
// columns. Nothing is drawn here, and nothing is added to the feed.

/** The states of a page, by their numbers in `pages.state`. */
export const STATES = ["free", "held", "published", "shared", "cached"];

const KEPT = new Set(["held", "published", "shared"]); // states from which a page that becomes held keeps its contents

const RECENT = 120; // steps that are shown
const ENDED = 100; // ended requests that are shown
const WINDOW = 3; // seconds over which rates are computed

export class EngineState {
  /** Create the state before the first snapshot: `begun` is false. */
  constructor() {
    this.begun = false;
    this.revision = 0;
  }

  /** Apply a snapshot or a frame. */
  take(told) {
    if (told.type === "snapshot") this.begin(told);
    else if (this.begun) this.follow(told);
    this.revision += 1;
  }

  begin(snapshot) {
    const { limits, device, calibrated, predicted_intervals: intervals = {}, counters, clock, priced, step } = snapshot;
    Object.assign(this, { limits, device, calibrated, intervals, counters, clock, priced, step });
    this.begun = true;
    this.since = clock;
    this.pages = emptyPages(limits.pages);
    this.counts = STATES.map(() => 0);
    this.counts[0] = limits.pages;
    this.redraw = true; // all pages; otherwise those of `changed`
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
    const again = frame.steps > 0 && frame.step - frame.steps + 1 < this.step; // some are already in the snapshot
    this.count(frame, again);
    this.steps.push(...frame.recent.filter(({ step }) => step >= this.step));
    this.steps.splice(0, this.steps.length - RECENT);
    if (frame.steps > 0) this.step = Math.max(this.step, frame.step + 1);
    this.priced = frame.priced;
    frame.pages.forEach((change) => this.lay(change));
    this.move(frame);
  }

  /** Update counters and the data of rates. */
  count(frame, again) {
    const positions = frame.items.reduce((sum, item) => sum + item[2], 0);
    const out = frame.counters.output_tokens - this.counters.output_tokens;
    if (frame.steps > 0) this.clock = Math.max(this.clock, frame.clock);
    this.counters = frame.counters;
    this.ran.push({ clock: this.clock, prompt: again ? 0 : positions - frame.decodes, out });
    const first = this.ran.findIndex(({ clock }) => clock > this.clock - WINDOW);
    this.ran.splice(0, first < 0 ? this.ran.length : first);
  }

  /** Change the state of a page. */
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

  /** Update requests: first what ran, then their state, then those that are gone. */
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

  /**
   * Record how a request ended. The engine may not have reported yet that it is gone. A very short request may not have
   * been reported at all.
   */
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

  /**
   * Return the pages of a page's prefix, from the page to the first, as far as they are known and have kept their
   * contents.
   */
  chain(page) {
    const { before, made, madeBefore, place, state } = this.pages;
    const found = [page];
    for (let at = page; before[at] && made[before[at]] === madeBefore[at] && state[before[at]] && place[before[at]] < place[at]; at = before[at]) {
      found.push(before[at]);
    }
    return found;
  }

  /** Return the pages that changed since the last call, or null for all. */
  drain() {
    const changed = this.redraw ? null : [...this.changed];
    this.redraw = false;
    this.changed.clear();
    return changed;
  }

  /** Return the requests by lane: the oldest first, but of the ended ones the newest first. */
  lanes() {
    const all = [...this.requests.values()].sort((one, other) => one.request - other.request || one.choice - other.choice);
    return {
      waiting: all.filter(({ stage }) => stage === "waiting"),
      running: all.filter(({ stage }) => stage !== "waiting"),
      ended: this.ended,
    };
  }

  /** Return the prompt positions and tokens per second. idle: seconds since the engine's last event. */
  rates(idle = 0) {
    const now = this.clock + idle;
    const from = Math.max(now - WINDOW, this.since);
    const ran = this.ran.filter(({ clock }) => clock > from);
    const over = now - from;
    const sum = (name) => ran.reduce((total, each) => total + each[name], 0);
    return over > 0 ? { prompt: sum("prompt") / over, out: sum("out") / over } : { prompt: 0, out: 0 };
  }

  /** Return the numbers of the gauges, null if unknown. */
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
    place: new Int32Array(places).fill(-1), // like `start`, but also for pages that no request holds
    before: new Int32Array(places), // the page of the preceding positions
    made: new Uint32Array(places), // how often its contents changed
    madeBefore: new Uint32Array(places), // that number of the preceding page, when the two were linked
  };
}
