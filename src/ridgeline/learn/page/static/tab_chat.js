// The tab *Chat*: a conversation with the served model, the time of its responses, and the candidates of its sampling.

import { html, useEffect, useRef, useState } from "page/dom.js";
import { Answer, Question } from "page/chat_answer.js";
import { Settings } from "page/chat_settings.js";
import { awaited, converses, fetchAnswer, fetchTrace, requestOf, said } from "page/chat_turns.js";
import { modelsOf } from "page/context.js";
import { Grown, Said } from "page/controls.js";
import { flag, number, text, whole } from "page/state.js";

export const id = "chat";
export const title = "Chat";

/** The fields of the address: the model and its parameters, but not the conversation. null: the model's own. */
export const fields = {
  model: text("", 200),
  temperature: number(null, 0, 100),
  top_p: number(null, 0.01, 1),
  top_k: whole(null, 0, 2 ** 31 - 1),
  seed: whole(null),
  length: whole(null, 1, 2 ** 31 - 1),
  candidates: flag(true),
};

/** Return whether a model generates text. */
export function available(context) {
  return context.served && modelsOf(context, "/v1/completions").length > 0;
}

export function example(context) {
  const model = modelsOf(context, "/v1/completions")[0];
  const says = converses(model) ? `Chat with ${model.id}` : `Continue a text with ${model.id}`;
  return { says, shows: "and see what each response took" };
}

/** Return the turns of a conversation, which is stored nowhere else, and the functions that change it. */
function useConversation(source, model, rules) {
  const turns = useRef([]);
  const running = useRef(null);
  const [revision, setRevision] = useState(0);
  const planned = useRef(0);
  const show = () => setRevision((count) => count + 1);
  // Tokens come faster than the screen is drawn.
  const news = () => {
    planned.current ||= requestAnimationFrame(() => {
      planned.current = 0;
      show();
    });
  };
  useEffect(() => () => running.current?.abort(), []);

  const ask = async (before) => {
    running.current?.abort();
    const answer = awaited();
    const stop = new AbortController();
    running.current = stop;
    turns.current = [...before, answer];
    show();
    try {
      await fetchAnswer(source, answer, requestOf(before, model, rules), stop.signal, news);
    } catch (error) {
      if (error.name === "AbortError") answer.end = "stopped";
      else answer.error = error.message;
    }
    if (running.current === stop) running.current = null;
    news();
    answer.trace = await fetchTrace(source, answer);
    news();
  };
  return {
    revision,
    turns: turns.current,
    writing: running.current !== null,
    say: (words) => ask(words ? [...turns.current, said(words)] : turns.current),
    again: () => ask(turns.current.slice(0, -1)),
    edit: (at, words) => ask([...turns.current.slice(0, at), said(words)]),
    stop: () => running.current?.abort(),
    clear: () => {
      running.current?.abort();
      turns.current = [];
      show();
    },
  };
}

export function view({ context, source, active, state, set }) {
  const models = modelsOf(context, "/v1/completions");
  const model = models.find((each) => each.id === state.model) ?? models[0];
  const [system, setSystem] = useState("");
  const rules = { ...state, system };
  const talk = useConversation(source, model, rules);
  const [place, setPlace] = useState(-1);
  const last = talk.turns.at(-1);
  const answered = [...talk.turns].reverse().find((turn) => turn.tokens?.at(-1)?.top.length);
  const follow = useFollowed(talk, active);
  const drop = (act) => (...given) => {
    setPlace(-1);
    follow();
    act(...given);
  };
  return html`
    <div class="talk">
      ${talk.turns.length === 0 && html`<${Greeting} model=${model} />`}
      <ol class="turns" aria-label="Conversation">
        ${talk.turns.map((turn, at) => {
          const writing = talk.writing && turn === last;
          if (turn.role === "user") {
            return html`<li key=${at}><${Question} turn=${turn} onEdit=${talk.writing ? null : drop((words) => talk.edit(at, words))} /></li>`;
          }
          return html`<li key=${at}>
            <${Answer}
              ...${{ turn, writing, revision: writing || turn === last ? talk.revision : 0 }}
              place=${turn === answered && state.candidates ? place : -1}
              onPlace=${(next) => turn === answered && setPlace(next)}
              onAgain=${turn === last && !talk.writing ? drop(talk.again) : null}
            />
          </li>`;
        })}
      </ol>
      <${Composer} model=${model} talk=${talk} onSay=${drop(talk.say)} onClear=${drop(talk.clear)} />
      <${Said}>${announced(talk, last)}<//>
    </div>
    <${Settings} ...${{ models, model, state, set, system, setSystem, answered, place, setPlace }} revision=${talk.revision} />
  `;
}

/** Return the text for screen readers: that a response is coming, and then the whole response, but not each token. */
function announced(talk, last) {
  if (talk.writing) return "The model is generating.";
  if (last?.role !== "assistant") return "";
  return last.error ? "" : `The model wrote: ${last.text.slice(0, 2000)}`;
}

/** Keep the end of the conversation visible, unless the user has scrolled away. Returns the element that goes there. */
function useFollowed(talk, active) {
  const near = useRef(true);
  useEffect(() => {
    const look = () => {
      const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
      near.current = scrollHeight - clientHeight - scrollTop < 80;
    };
    addEventListener("scroll", look, { passive: true });
    return () => removeEventListener("scroll", look);
  }, []);
  useEffect(() => {
    if (active && near.current && talk.turns.length) scrollTo({ top: document.documentElement.scrollHeight });
  }, [talk.revision]);
  return () => {
    near.current = true;
  };
}

function Greeting({ model }) {
  return html`<div class="greeting">
    <svg class="roof" viewBox="0 0 320 120" aria-hidden="true">
      <path class="under" d="M10 110 150 30H310V110Z" /><path d="M10 110 150 30H310" />
      <circle cx="45" cy="90" r="6" />
    </svg>
    <h1>${converses(model) ? "Chat with" : "Continue a text with"} <span class="name">${model.id}</span></h1>
    <p>Each response shows its measured time next to the time that was predicted for it.</p>
  </div>`;
}

function Composer({ model, talk, onSay, onClear }) {
  const [draft, setDraft] = useState("");
  const area = useRef(null);
  const goesOn = !converses(model) && talk.turns.at(-1)?.role === "assistant";
  const ready = (draft.trim() !== "" || goesOn) && !talk.writing;
  const send = (event) => {
    event.preventDefault();
    if (!ready) return;
    onSay(draft);
    setDraft("");
    area.current.focus();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Escape" && talk.writing) talk.stop();
  };
  const name = converses(model) ? "Type a message" : goesOn ? "Add text, or let the model continue" : "A text to continue";
  return html`<form class="composer" onSubmit=${send}>
    <${Grown} ...${{ value: draft, onInput: setDraft, onKeyDown, inner: area }} aria-label=${name} placeholder=${name} />
    <div class="acts">
      ${talk.turns.length > 0 && html`<button type="button" class="quiet" onClick=${onClear}>New</button>`}
      <span class="gap hint">Enter sends, Shift+Enter starts a new line</span>
      ${talk.writing
        ? html`<button type="button" class="main" onClick=${talk.stop}>Stop</button>`
        : html`<button type="submit" class="main" disabled=${!ready}>${goesOn && !draft.trim() ? "Continue" : "Send"}</button>`}
    </div>
  </form>`;
}
