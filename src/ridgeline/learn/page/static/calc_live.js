// The third runner of the race: the served model, which really generates. It starts with a click, because it uses the
// server's time.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { Priced } from "page/chat_answer.js";
import { awaited, converses, fetchAnswer, fetchTrace, requestOf, said } from "page/chat_turns.js";
import { modelsOf } from "page/context.js";
import { say_seconds, three_digits } from "page/numbers.js";

const LENGTH = 100; // tokens, about as many as the others' story has
const ASKS = { chat: "Tell me a short story.", text: "Once upon a time" };
const RULES = { temperature: null, top_p: null, top_k: null, seed: null, system: "", length: LENGTH, candidates: false };

/** onStart: called when the model starts, so that the others start with it. */
export function Live({ source, context, onStart }) {
  const [model] = source.served ? modelsOf(context, "/v1/completions") : [];
  const running = useRef(null);
  const [{ answer }, show] = useState({ answer: null });
  useEffect(() => () => running.current?.abort(), []);
  if (!model) return null;
  const start = async () => {
    const [stop, own] = [new AbortController(), awaited()];
    running.current = stop;
    onStart();
    const news = () => running.current === stop && show({ answer: own });
    news();
    try {
      await fetchAnswer(source, own, requestOf([said(converses(model) ? ASKS.chat : ASKS.text)], model, RULES), stop.signal, news);
      own.trace = await fetchTrace(source, own);
    } catch (error) {
      own.error = error.name === "AbortError" ? "stopped" : error.message;
    }
    news();
    if (running.current === stop) running.current = null;
    show({ answer: own });
  };
  const writes = running.current !== null;
  return html`<div class="racer live">
    <p class="dim"><b>${model.id}</b> ${answer?.times ? tookOf(answer.times) : "live, on this server"}
      ${" "}<button type="button" class="quiet" onClick=${() => (writes ? running.current.abort() : start())}>${writes ? "Stop" : answer ? "Again" : "Type it live"}</button>
      ${answer?.trace?.predicted_seconds && html`<${Priced} trace=${answer.trace} />`}</p>
    ${answer && html`<p class="story">${answer.thought}${answer.text}<span class=${writes ? "writing" : ""}></span></p>`}
    ${answer?.error && html`<p class="trouble" role="alert">${answer.error}</p>`}
  </div>`;
}

/** Return the measured times as one line. */
function tookOf({ first_token_ms: first, predicted_per_second: rate }) {
  return `measured: ${say_seconds(first / 1e3)} to the first token${rate > 0 ? `, then ${three_digits(rate)} a second` : ""}`;
}
