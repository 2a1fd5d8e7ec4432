// A conversation as data: what is asked of the server for its next turn, and what becomes of what it sends.

const CHAT = "v1/chat/completions";
const COMPLETIONS = "v1/completions";
const USUAL_LENGTH = 200; // tokens of a text that is continued; the server's own are 16

/** What the user said. */
export function said(text) {
  return { role: "user", text };
}

/** An answer that is still to come. tokens: those told of, each with its `text`, `logprob` and likeliest `top`. */
export function awaited() {
  return { role: "assistant", text: "", thought: "", tokens: [], id: "", end: "", times: null, trace: null, error: "" };
}

/** Whether a model has a template for conversations; one without continues texts. */
export function converses(model) {
  return model.routes.includes(`/${CHAT}`);
}

/** Where to ask for the next turn, and with which body. rules: the fields of the tab, null where nothing was said. */
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

/** Add what an event tells to an answer. */
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

/** The tokens of a chunk, as chats or as completions have them. */
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
 * The answer's text in pieces, one for each of its tokens but those behind it, which ended it; null where they are not
 * the text: thoughts, what came to a stop string. A character of several tokens is the last one's.
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

/** Ask for an answer and keep it up to date. onNews: called after each event. Throws RequestError, AbortError. */
export async function fetchAnswer(source, answer, [address, body], signal, onNews) {
  for await (const event of source.events(address, body, { signal })) {
    take(answer, event);
    onNews();
  }
}

/** What the engine's steps took for an answer, and what their price said of them; null where nobody knows. */
export async function fetchTrace(source, answer) {
  if (!answer.id) return null;
  try {
    return await source.get(`v1/trace/${encodeURIComponent(answer.id)}`);
  } catch {
    return null;
  }
}
