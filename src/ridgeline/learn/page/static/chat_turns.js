// A conversation as data: the request for its next turn, and how the server's events change it.

const CHAT = "v1/chat/completions";
const COMPLETIONS = "v1/completions";
const USUAL_LENGTH = 200; // tokens of a text that is continued; the server's default is 16

/** Return a turn with the user's message. */
export function said(text) {
  return { role: "user", text };
}

/** Return an empty response. tokens: those received, each with its `text`, `logprob` and the most likely `top`. */
export function awaited() {
  return { role: "assistant", text: "", thought: "", tokens: [], id: "", end: "", times: null, trace: null, error: "" };
}

/** Return whether a model has a chat template; one without continues texts. */
export function converses(model) {
  return model.routes.includes(`/${CHAT}`);
}

/** Return the address and the body of the request for the next turn. rules: the fields of the tab, null if empty. */
export function requestOf(turns, model, rules) {
  const { temperature, top_p, top_k, seed } = rules;
  const told = Object.entries({ temperature, top_p, top_k, seed }).filter(([, value]) => value !== null);
  const body = { model: model.id, stream: true, ...Object.fromEntries(told) };
  const most = rules.candidates ? Math.min(20, model.limits?.top_logprobs ?? 20) : 0;
  if (!converses(model)) {
    const prompt = turns.map((turn) => turn.text).join("");
    return [COMPLETIONS, { ...body, prompt, max_tokens: rules.length || USUAL_LENGTH, ...(most && { logprobs: most }) }];
  }
  const heard = turns.filter((turn) => turn.role === "user" || turn.text);
  const messages = heard.map((turn) => ({ role: turn.role, content: turn.text }));
  if (rules.system.trim()) messages.unshift({ role: "system", content: rules.system });
  const candidates = most ? { logprobs: true, top_logprobs: most } : {};
  return [CHAT, { ...body, messages, ...(rules.length && { max_tokens: rules.length }), ...candidates }];
}

/** Add an event to a response. */
export function take(answer, event) {
  answer.id ||= event.id;
  if (event.timings) answer.times = event.timings;
  for (const choice of event.choices ?? []) {
    answer.text += choice.delta?.content ?? choice.text ?? "";
    answer.thought += choice.delta?.reasoning ?? choice.delta?.reasoning_content ?? "";
    answer.tokens.push(...tokensOf(choice.logprobs));
    if (choice.finish_reason) answer.end = choice.finish_reason;
  }
}

/** Return the tokens of a chunk, of chats or of completions. */
function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map(({ token, bytes, logprob, top_logprobs: top }) => ({
      text: token,
      bytes,
      logprob,
      top: top.map((each) => ({ text: each.token, logprob: each.logprob })),
    }));
  }
  return logprobs.tokens.map((text, at) => ({
    text,
    logprob: logprobs.token_logprobs[at],
    top: Object.entries(logprobs.top_logprobs[at] ?? {})
      .map(([other, logprob]) => ({ text: other, logprob }))
      .sort((one, other) => other.logprob - one.logprob),
  }));
}

/**
 * Return the response's text in pieces, one for each token except those after its end. Null if the tokens are not the
 * text, as with reasoning or a stop string. A character of several tokens belongs to the last one.
 */
export function piecesOf(answer) {
  const decoder = new TextDecoder();
  const pieces = answer.tokens.map(({ text, bytes }) =>
    bytes ? decoder.decode(Uint8Array.from(bytes), { stream: true }) : text,
  );
  let length = 0;
  const end = pieces.findIndex((piece) => (length += piece.length) > answer.text.length);
  const inside = end < 0 ? pieces : pieces.slice(0, end);
  return inside.length && inside.join("") === answer.text ? inside : null;
}

/** Request a response and keep it up to date. onNews: called after each event. Throws RequestError, AbortError. */
export async function fetchAnswer(source, answer, [address, body], signal, onNews) {
  for await (const event of source.events(address, body, { signal })) {
    take(answer, event);
    onNews();
  }
}

/** Return the measured and predicted times of the engine's steps for a response, or null if they are not known. */
export async function fetchTrace(source, answer) {
  if (!answer.id) return null;
  try {
    return await source.get(`v1/trace/${encodeURIComponent(answer.id)}`);
  } catch {
    return null;
  }
}
