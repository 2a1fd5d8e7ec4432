"""Conversion of a conversation to the form that a chat template accepts: roles, tool calls and tool results.

The probe detects that form.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import markupsafe

from ridgeline.core.text.preamble import PreamblePlace, has_preamble, reasoning_of, with_preambles, with_thinking_part
from ridgeline.core.text.template_probe import CallForm, IdKind, TemplateProbe
from ridgeline.util.untrusted import without_collecting

_LETTERS = string.ascii_letters + string.digits
_SYSTEM = ("system", "developer")
_ASSISTANT = ("assistant", "model", "chatbot")
_SAMPLE = 64
"""The maximum number of characters of a message that are searched for in the rendered prompt."""
_WORD = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """A message in the form that a chat template receives."""

    index: int
    """The index of the request's message from which this message was made."""
    message: dict[str, Any]
    """The message as a dictionary with the keys of OpenAI's chat API."""

    @property
    def where(self) -> str:
        """The name by which error messages refer to a message."""
        return f"messages[{self.index}]"

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        """The tool calls of the message."""
        return self.message.get("tool_calls") or ()

    def having(self, **changes: Any) -> "TemplateMessage":
        """Return a copy of this message with some of its keys replaced or added."""
        return replace(self, message={**self.message, **changes})


def for_template(messages: Sequence[Mapping[str, Any]], probe: TemplateProbe) -> Iterator[list[TemplateMessage]]:
    """Yield a conversation in each form that the chat template accepts, the best one first.

    The forms differ in the position of the text next to tool calls. OpenAI's interface allows arguments as text, null
    contents next to calls, several calls in a message, and the roles `developer` and `function`. Few templates accept
    all of these.

    Args:
        messages: Conversation whose calls are `tool_calls` (`with_tool_calls`).
        probe: Probe of the template.

    Raises:
        ValueError: If a message has no role, the template omits messages of its role, or the arguments of a call are
            not a JSON object. The message names the faulty one.
    """
    turns = [TemplateMessage(index, dict(message)) for index, message in enumerate(messages)]
    turns = _with_known_roles(_with_ids_of_functions(turns), probe)
    if not any(turn.calls or turn.message.get("role") == "tool" for turn in turns):
        yield _with_thinking_parts([_without_calls(turn) for turn in turns], probe)
        return
    form = probe.calls.form or CallForm()
    pairs = form.preambles.pairs if any(has_preamble(turn.message) for turn in turns) else form.preambles.pairs[:1]
    for over, running in pairs:
        yield _with_thinking_parts(_with_calls(turns, form, over, running), probe)


def _with_thinking_parts(turns: list[TemplateMessage], probe: TemplateProbe) -> list[TemplateMessage]:
    """Move the reasoning of messages into their contents if the template reads it only there."""
    has_reasoning = [
        turn.message["role"] in _ASSISTANT and isinstance(reasoning_of(turn.message), str) for turn in turns
    ]
    if not any(has_reasoning) or not probe.reads_thinking_parts:
        return turns
    return [
        TemplateMessage(turn.index, with_thinking_part(turn.message)) if has else turn
        for turn, has in zip(turns, has_reasoning, strict=True)
    ]


def _with_calls(
    turns: Sequence[TemplateMessage], form: CallForm, over: PreamblePlace, running: PreamblePlace
) -> list[TemplateMessage]:
    """Return messages with tool calls in the template's form, and the text next to calls at the given positions."""
    placed = with_preambles([(turn.index, turn.message) for turn in turns], over, running)
    turns = [TemplateMessage(index, dict(message)) for index, message in placed]
    if not form.several:
        turns = list(_one_call_each(turns))
    if form.named_results:
        turns = list(_with_names_in_results(turns))
    if form.ids != "any":
        turns = list(_with_ids(turns, form.ids))
    return [_in_form(turn, form) for turn in turns]


def left_out(turns: Iterable[TemplateMessage], prompt: str) -> TemplateMessage | None:
    """Return the first message that is missing in a prompt, or None if the prompt has all of them.

    The prompt is searched for the longest line of each text and for the name of each called function. Assistant texts
    are not searched for, since many templates omit earlier reasoning; `lost_preamble` checks the texts next to calls.
    """
    at = 0
    for turn in turns:
        texts = [] if turn.message.get("role") in _ASSISTANT else _texts(turn.message.get("content"))
        for text in (*texts, *(call["function"]["name"] for call in turn.calls)):
            at = _find(prompt, _longest_line(text), at)
            if at < 0:
                return turn
    return None


def with_system_in_last_user(turns: Sequence[TemplateMessage]) -> list[TemplateMessage] | None:
    """Move the leading system text to the start of the last user message.

    Mistral's templates write the system text only next to a final user message, and omit it in the tool loop. Mistral's
    own tokenizer moves it there.

    Returns:
        The messages, or None if the first one is not a system message, there is no user message, or a content is not a
        string.
    """
    users = [place for place, turn in enumerate(turns) if turn.message.get("role") == "user"]
    if not users or turns[0].message.get("role") not in _SYSTEM:
        return None
    system, user = (turns[place].message.get("content") for place in (0, users[-1]))
    if not (isinstance(system, str) and isinstance(user, str)):
        return None
    joined = turns[users[-1]].having(content=f"{system}\n\n{user}")
    return [*turns[1 : users[-1]], joined, *turns[users[-1] + 1 :]]


def _texts(content: object) -> list[str]:
    """Return the texts of a message content: the string itself, or those of its parts."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else ()
    return [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]


def _longest_line(text: str) -> str:
    """Return the longest line of a text, cut to the length that is searched for in prompts."""
    return max(text.strip().splitlines(), key=len, default="").strip()[:_SAMPLE]


def _find(prompt: str, line: str, start: int) -> int:
    """Return the position in a prompt of a message's line (as is, as JSON, or escaped for HTML), or -1 if missing.

    The search begins at `start`, then covers the whole prompt. If more than half of the words of the line occur, return
    0.
    """
    if (found := prompt.find(line, start)) >= 0:
        return found
    spelled = (line, json.dumps(line, ensure_ascii=False)[1:-1], json.dumps(line)[1:-1], str(markupsafe.escape(line)))
    if (found := max(prompt.find(each) for each in spelled)) >= 0:
        return found
    words = set(_WORD.findall(line))  # a template may remove part of a text
    return 0 if 2 * sum(word in prompt for word in words) > len(words) else -1


# -- roles ------------------------------------------------------------------------------------------------------------


def _with_known_roles(turns: Sequence[TemplateMessage], probe: TemplateProbe) -> list[TemplateMessage]:
    """Rename message roles that the template does not write, and join leading system messages if necessary.

    They are joined if the template requires it or if one of them was renamed.

    Raises:
        ValueError: If a message has no role, or the template omits messages of its role.
    """
    leading = len(list(takewhile(lambda turn: turn.message.get("role") in _SYSTEM, turns)))
    known: list[TemplateMessage] = []
    for turn in turns:
        role = turn.message.get("role")
        if not isinstance(role, str):
            raise ValueError(f"{turn.where}: the message has no role; give one of: system, user, assistant, tool")
        written = probe.role(role)
        if written is None:
            raise ValueError(
                f"{turn.where}: the model's chat template leaves out messages with role {role}; use another role"
            )
        known.append(turn if written == role else turn.having(role=written))
    has_alias = any(turn.message.get("role") != known[at].message["role"] for at, turn in enumerate(turns[:leading]))
    if leading > 1 and (has_alias or probe.joins_leading):
        texts = [turn.message.get("content") or "" for turn in known[:leading]]
        if all(isinstance(text, str) for text in texts):
            return [known[0].having(content="\n\n".join(filter(None, texts))), *known[leading:]]
    return known


# -- calls and their results ------------------------------------------------------------------------------------------


def with_tool_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Convert each message's `function_call`, the predecessor of `tool_calls`, to a tool call.

    A message that also has `tool_calls` stays as it is.
    """
    return [_as_tool_calls(index, message) for index, message in enumerate(messages)]


def _as_tool_calls(index: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the `function_call` of one message to a tool call; a message that has `tool_calls` stays as it is."""
    call = message.get("function_call")
    if not isinstance(call, Mapping) or message.get("tool_calls"):
        return message
    kept = {key: value for key, value in message.items() if key != "function_call"}
    return {**kept, "tool_calls": [{"id": f"call_{index:09d}", "type": "function", "function": dict(call)}]}


def _with_ids_of_functions(turns: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Add the id of the latest call to each `function` message without an id."""
    found: list[TemplateMessage] = []
    last: str | None = None
    for turn in turns:
        last = turn.calls[-1].get("id") if turn.calls else last
        lacks = turn.message.get("role") == "function" and "tool_call_id" not in turn.message and last is not None
        found.append(turn.having(tool_call_id=last) if lacks else turn)
    return found


def _one_call_each(turns: Sequence[TemplateMessage]) -> Iterator[TemplateMessage]:
    """Split messages so that each has one call, followed by its result, for templates that write only one call."""
    taken: set[int] = set()
    for at, turn in enumerate(turns):
        if at in taken:
            continue
        if len(turn.calls) < 2:
            yield turn
            continue
        results = _results_after(turns, at)
        for number, call in enumerate(turn.calls):
            # Text and reasoning come before the first call.
            kept = turn.message if number == 0 else {"role": "assistant", "content": None}
            yield TemplateMessage(turn.index, {**kept, "tool_calls": [call]})
            answering = [place for place in results if turns[place].message.get("tool_call_id") == call.get("id")]
            yield from (turns[place] for place in answering)
            taken.update(answering)


def _results_after(turns: Sequence[TemplateMessage], at: int) -> list[int]:
    """Return the indices of the tool results that follow a message with calls."""
    return list(takewhile(lambda place: turns[place].message.get("role") == "tool", range(at + 1, len(turns))))


def _with_names_in_results(turns: Iterable[TemplateMessage]) -> Iterator[TemplateMessage]:
    """Add the name of the called function to each tool result that lacks it."""
    names: dict[Any, Any] = {}
    for turn in turns:
        names |= {call.get("id"): call["function"].get("name") for call in turn.calls}
        name = names.get(turn.message.get("tool_call_id"))
        lacks = turn.message.get("role") == "tool" and turn.message.get("name") is None and name is not None
        yield turn.having(name=name) if lacks else turn


def _with_ids(turns: Iterable[TemplateMessage], kind: IdKind) -> Iterator[TemplateMessage]:
    """Rewrite the ids of tool calls and results to the form that the template accepts."""
    ids: dict[Any, str] = {}
    for turn in turns:
        changes: dict[str, Any] = {}
        for call in turn.calls:
            of_function = f"functions.{call['function']['name']}:{len(ids)}"
            ids[call.get("id")] = _short(str(call.get("id"))) if kind == "short" else of_function
            changes.setdefault("tool_calls", []).append({**call, "id": ids[call.get("id")]})
        identity = turn.message.get("tool_call_id")
        if isinstance(identity, str):
            changes["tool_call_id"] = ids.get(identity) or _short(identity)
        yield turn.having(**changes) if changes else turn


def _in_form(turn: TemplateMessage, form: CallForm) -> TemplateMessage:
    """Return a message with its tool calls and content in the form that the template accepts."""
    if not turn.calls:
        return _without_calls(turn)
    turn = turn.having(tool_calls=[_call(call, form, turn.where) for call in turn.calls])
    return TemplateMessage(turn.index, form.with_content(turn.message))


def _without_calls(turn: TemplateMessage) -> TemplateMessage:
    """Return a message without an empty list of calls, and with "" in place of null content."""
    kept = {key: value for key, value in turn.message.items() if key != "tool_calls" or value}
    if "content" in kept and kept["content"] is None:
        kept["content"] = ""
    return TemplateMessage(turn.index, kept)


def _call(call: Mapping[str, Any], form: CallForm, where: str) -> dict[str, Any]:
    """Return one tool call with its arguments as the template accepts them: an object or JSON text."""
    function = call["function"]
    arguments = _arguments(function.get("arguments"), where)
    written = json.dumps(arguments, ensure_ascii=False) if form.arguments_as_text else arguments
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": written}}


def _arguments(given: object, where: str) -> Mapping[str, Any]:
    """Return the arguments of a tool call as an object; missing or empty arguments are {}.

    Raises:
        ValueError: If the arguments are anything but a JSON object.
    """
    try:
        value = _read(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        value = ()
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}.tool_calls: the arguments of a call are not a JSON object; send one")
    return value


def _read(text: str) -> Any:
    """Parse a JSON text; return None for an empty text.

    Raises:
        ValueError: If the text is not JSON, or contains NaN or Infinity.
    """
    with without_collecting():
        return json.loads(text, parse_constant=_refuse_constant) if text.strip() else None


def _refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _short(identity: str) -> str:
    """Return a tool-call id of nine letters and digits: the id itself or its hash, so that calls and results match."""
    if len(identity) == 9 and identity.isascii() and identity.isalnum():
        return identity
    number = int.from_bytes(hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:8])
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))
