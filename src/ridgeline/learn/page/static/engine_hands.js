// Controls of a served engine: requests, arrivals, a long prompt, an abort. A browser can only abort its own requests.
//
// A browser opens six connections to a server, and the feed uses one. Requests that arrive while all others are in use
// are sent together, as one request with several prompts.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { Slider, Trouble } from "page/controls.js";
import { grouped } from "page/python.js";

const CONNECTIONS = 4;
const ROUTE = "v1/completions";
const STEMS = [
  "Once upon a time there was a small dragon who",
  "In the morning the girl went to the river and",
  "Tom had a red ball. One day",
  "The old man looked at the sea and said",
  "There was a little house in the wood where",
];
const NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Finn", "Grace"];
const ANSWERS = [40, 120]; // tokens of a response, drawn from this range
const ANSWERS_OF_CONTEXT = 0.25; // maximum share of the context; the rest is for the prompt
const LONGEST = 16384; // tokens of a long prompt

/** The requests that this view has sent, and what became of them. */
class Sender {
  constructor(source, model, show) {
    Object.assign(this, { source, model, show });
    this.open = [];
    this.queue = [];
    this.making = 0; // prompts that the server is tokenizing
    this.trouble = "";
  }

  get sent() {
    return this.making + this.open.reduce((sum, each) => sum + each.prompts.length, 0);
  }

  /** The range of tokens of a response that fits into the context with its prompt. */
  get answers() {
    const most = Math.max(1, Math.floor(this.model.max_model_len * ANSWERS_OF_CONTEXT));
    return ANSWERS.map((tokens) => Math.min(tokens, most));
  }

  /** Send prompts as soon as there is a connection for them. */
  add(prompts) {
    this.queue.push(...prompts);
    this.push();
  }

  /** Send a prompt that fills the context up to its response. The server says how many tokens a word has. */
  async addLong() {
    const { model } = this;
    const room = Math.min(model.max_model_len - this.answers[1], LONGEST);
    const words = Array.from({ length: room }, () => anyOf(NAMES)).join(" ");
    this.making += 1;
    this.show();
    try {
      const { tokens } = await this.source.post("tokenize", { model: model.id, prompt: words });
      this.queue.push(tokens.slice(0, room));
    } catch (error) {
      this.trouble = error.message;
    }
    this.making -= 1;
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
    const [least, most] = this.answers;
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

  /** Close the newest connection. The server then ends its requests. */
  abort() {
    this.open[this.open.length - 1]?.stop.abort();
  }

  abortAll() {
    this.queue.length = 0;
    this.open.forEach((one) => one.stop.abort());
    this.show();
  }
}

const anyOf = (list) => list[Math.floor(Math.random() * list.length)];

function prompts(count) {
  return Array.from({ length: count }, () => anyOf(STEMS));
}

/** model: its model card. active: whether the view is visible; arrivals stop while it is hidden. */
export function Hands({ source, model, active }) {
  const [, setShown] = useState(0);
  const sender = useRef(null);
  sender.current ??= new Sender(source, model, () => setShown((count) => count + 1));
  const hands = sender.current;
  const [rate, setRate] = useState(0);
  useArrivals(hands, rate, active);
  useEffect(() => () => hands.abortAll(), []);
  const send = (count) => () => hands.add(prompts(count));
  return html`<section class="card hands" aria-labelledby="hands-title">
    <h2 id="hands-title">Send requests <small>your requests are real work for this server</small></h2>
    <div class="controls">
      ${[1, 10, 100].map((count) => html`<button type="button" class="act" onClick=${send(count)}>Send ${count}</button>`)}
      <button type="button" class="act" onClick=${() => hands.addLong()}>A long prompt</button>
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
  if (sent === 0) return "None of your requests is running.";
  const waits = queue.length ? `; ${grouped(queue.length)} wait for a connection from this browser` : "";
  return `${grouped(sent)} of your requests running${waits}.`;
}

/** Send requests at random times, with this average rate per second. */
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
