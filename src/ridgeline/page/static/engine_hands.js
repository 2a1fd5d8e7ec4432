// Hands on a served engine: requests, arrivals, a long prompt, an abort. What one's browser sends, it can take back.
//
// A browser opens six connections to a server, of which the feed has one; requests that come while all others are taken
// go together, as one request with several prompts.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { Slider, Trouble } from "page/controls.js";
import { grouped } from "page/numbers.js";

const CONNECTIONS = 4;
const ROUTE = "v1/completions";
const STEMS = [
  "Once upon a time there was a small dragon who",
  "In the morning the girl went to the river and",
  "Tom had a red ball. One day",
  "The old man looked at the sea and said",
  "There was a little house in the wood where",
];
const ANSWERS = [40, 120]; // tokens of an answer: drawn between
const WORDS_OF_CONTEXT = 0.45; // a word is up to two tokens

/** What this view has sent and what became of it. */
class Sender {
  constructor(source, model, show) {
    Object.assign(this, { source, model, show });
    this.open = [];
    this.queue = [];
    this.trouble = "";
  }

  get sent() {
    return this.open.reduce((sum, each) => sum + each.prompts.length, 0);
  }

  /** Send prompts as soon as there is a connection for them. */
  add(prompts) {
    this.queue.push(...prompts);
    this.push();
  }

  push() {
    while (this.queue.length && this.open.length < CONNECTIONS) {
      this.post(this.queue.splice(0, this.model.limits?.prompts ?? 1));
    }
    this.show();
  }

  async post(prompts) {
    const one = { prompts, stop: new AbortController() };
    this.open.push(one);
    const [least, most] = ANSWERS;
    const body = {
      model: this.model.id,
      prompt: prompts,
      max_tokens: Math.round(least + Math.random() * (most - least)),
      temperature: 1,
    };
    try {
      await this.source.post(ROUTE, body, { signal: one.stop.signal });
      this.trouble = "";
    } catch (error) {
      if (error.name !== "AbortError") this.trouble = error.message;
    }
    this.open.splice(this.open.indexOf(one), 1);
    this.push();
  }

  /** Close the newest connection: the server ends what came by it. */
  abort() {
    this.open[this.open.length - 1]?.stop.abort();
  }

  abortAll() {
    this.queue.length = 0;
    this.open.forEach((one) => one.stop.abort());
    this.show();
  }
}

function prompts(count) {
  return Array.from({ length: count }, () => STEMS[Math.floor(Math.random() * STEMS.length)]);
}

function longPrompt(context) {
  const words = Math.max(20, Math.floor(context * WORDS_OF_CONTEXT));
  const names = ["Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace"];
  return Array.from({ length: words }, (_, at) => names[(at * at + words) % names.length]).join(" ");
}

/** engine: an EngineState. active: whether the view is seen; arrivals stop where it is not. */
export function Hands({ source, model, engine, active }) {
  const [, setShown] = useState(0);
  const sender = useRef(null);
  sender.current ??= new Sender(source, model, () => setShown((count) => count + 1));
  const hands = sender.current;
  const [rate, setRate] = useState(0);
  useArrivals(hands, rate, active);
  useEffect(() => () => hands.abortAll(), []);
  const send = (count) => () => hands.add(prompts(count));
  return html`<section class="card hands" aria-labelledby="hands-title">
    <h2 id="hands-title">Hands <small>what you send is real work for this server</small></h2>
    <div class="controls">
      ${[1, 10, 100].map((count) => html`<button type="button" class="act" onClick=${send(count)}>Send ${count}</button>`)}
      <button type="button" class="act" onClick=${() => hands.add([longPrompt(engine.limits.context)])}>A long prompt</button>
      <button type="button" class="act" disabled=${hands.open.length === 0} onClick=${() => hands.abort()}>Abort the last</button>
      <button type="button" class="quiet" disabled=${hands.open.length === 0} onClick=${() => hands.abortAll()}>Abort all</button>
    </div>
    <${Slider}
      name="Arrivals a second"
      value=${rate}
      shown=${rate === 0 ? "none" : String(rate)}
      ...${{ least: 0, most: 20, step: 1, onInput: setRate }}
    />
    <p class="dim" role="status">${sayOf(hands)}</p>
    ${hands.trouble && html`<${Trouble}>${hands.trouble}<//>`}
  </section>`;
}

function sayOf({ sent, queue }) {
  if (sent === 0) return "Nothing of yours is under way.";
  const waits = queue.length ? `; ${grouped(queue.length)} wait for a connection of this browser` : "";
  return `${grouped(sent)} of yours under way${waits}.`;
}

/** Requests at random times, so many a second on average. */
function useArrivals(hands, rate, active) {
  useEffect(() => {
    if (rate === 0 || !active) return undefined;
    let timer = 0;
    const next = () => {
      timer = setTimeout(() => {
        hands.add(prompts(1));
        next();
      }, (-Math.log(1 - Math.random()) / rate) * 1000);
    };
    next();
    return () => clearTimeout(timer);
  }, [rate, active]);
}
