"""Preambles: the text of an assistant message next to its tool calls ("I look it up."), and its place in the prompt."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Literal, get_args

from ridgeline.core.text.reasoning_format import REASONING_FORMATS, Section

Message = Mapping[str, Any]
IndexedMessage = tuple[int, Message]
"""A message and its index in the conversation."""

PreamblePlace = Literal["with_calls", "before", "before_reasoning", "in_reasoning", "once_a_turn"]
"""The position in a template's messages of the text that an assistant message has next to its tool calls."""
PLACES: tuple[PreamblePlace, ...] = get_args(PreamblePlace)
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The keys under which a message can store its reasoning."""
_TEXT_MARK, _REASONING_MARK = "kept_text_9d3f_{}_", "kept_reasoning_9d3f_{}_"
"""Placeholders that test renderings have in place of a message's text and reasoning, with the message's index.

They end with an underscore, so that the mark of message 1 is not part of the mark of message 10.
"""
_ENDS = sorted({each.closing for each in REASONING_FORMATS if each.markers.get(each.closing) is Section.RESPONSE})
_WITH_REASONING = re.compile(f"(?:.*?(?:{'|'.join(map(re.escape, _ENDS))}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PreamblePlaces:
    """The positions at which a chat template does not drop an assistant's text next to tool calls, best first."""

    completed_turns: tuple[PreamblePlace, ...] = ("with_calls",)
    """The positions of texts next to tool calls in completed turns, which end with a later user message."""
    current_turn: tuple[PreamblePlace, ...] = ("with_calls",)
    """The positions in the current turn, which the response continues."""
    keeps_reasoning: bool = False
    """Whether the template also writes a message's reasoning if its text is at a position in `current_turn`."""

    @property
    def pairs(self) -> tuple[tuple[PreamblePlace, PreamblePlace], ...]:
        """Pairs of positions for a text next to tool calls, in completed turns and in the current one, best first."""
        most = max(len(self.completed_turns), len(self.current_turn))
        return tuple(
            (
                self.completed_turns[min(at, len(self.completed_turns) - 1)],
                self.current_turn[min(at, len(self.current_turn) - 1)],
            )
            for at in range(most)
        )


def reasoning_of(message: Message) -> Any:
    """Return the reasoning of a message, or None if it has none."""
    return next((message[name] for name in REASONING if message.get(name) is not None), None)


def with_thinking_part(message: Message) -> dict[str, Any]:
    """Return a message with its reasoning as the first part of its content, of type `thinking`."""
    reasoning, content = reasoning_of(message), message.get("content")
    parts: list[Any] = [] if is_blank(content) else _parts(content)
    return {**_without(message, REASONING), "content": [{"type": "thinking", "thinking": reasoning}, *parts]}


def is_blank(content: object) -> bool:
    """Return whether the content of a message has no text: it is null, white space or an empty list."""
    return not (content.strip() if isinstance(content, str) else content)


def has_preamble(message: Message) -> bool:
    """Return whether a message has both text and tool calls."""
    return bool(message.get("tool_calls")) and not is_blank(message.get("content"))


def with_preambles(
    messages: Iterable[IndexedMessage], over: PreamblePlace, running: PreamblePlace
) -> Iterator[IndexedMessage]:
    """Yield a conversation's messages with each text next to tool calls moved to the position a template accepts.

    Args:
        messages: The conversation.
        over: Position in completed turns, which end with a later user message.
        running: Position in the current turn, after the last user message.
    """
    turns = list(messages)
    users = [place for place, (_, message) in enumerate(turns) if message.get("role") == "user"]
    bounds = [0, *users, len(turns)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        yield from _placed(turns[start:end], running if number == len(bounds) - 2 else over)


def _placed(turns: Sequence[IndexedMessage], place: PreamblePlace) -> Iterator[IndexedMessage]:
    """Yield the messages of one turn with each text next to tool calls at the given position."""
    if place == "once_a_turn" and any(has_preamble(message) for _, message in turns):
        turns, place = _texts_joined(turns), "before_reasoning"
    for index, message in turns:
        if place == "with_calls" or not has_preamble(message):
            yield index, message
        elif place == "in_reasoning":
            reasoning = reasoning_of(message)
            joined = message["content"] if reasoning is None else _joined([reasoning, message["content"]])
            yield index, {**_without(message, ("content", *REASONING)), REASONING[0]: joined}
        else:
            not_with_text, not_with_calls = (REASONING, ()) if place == "before_reasoning" else ((), REASONING)
            yield index, _without(message, ("tool_calls", *not_with_text))
            yield index, _without(message, ("content", *not_with_calls))


def _texts_joined(turns: Sequence[IndexedMessage]) -> list[IndexedMessage]:
    """Return the messages of one turn with all assistant texts joined in the last message that has text."""
    joined = [
        place
        for place, (_, message) in enumerate(turns)
        if message.get("role") == "assistant" and not is_blank(message.get("content"))
    ]
    whole = _joined([turns[place][1]["content"] for place in joined])
    changed = list(turns)
    for place in joined:
        index, message = turns[place]
        changed[place] = (index, {**message, "content": whole if place == joined[-1] else None})
    emptied = {place for place in joined[:-1] if not turns[place][1].get("tool_calls")}
    return [turn for place, turn in enumerate(changed) if place not in emptied]


def _joined(contents: Sequence[Any]) -> Any:
    """Join message contents: strings become one string, anything else one list of content parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    return [part for content in contents for part in _parts(content)]


def _parts(content: Any) -> list[Any]:
    """Return the content of a message as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def with_marks(messages: Sequence[Message]) -> list[Message]:
    """Replace each text next to tool calls, and the reasoning there, by a unique placeholder.

    The prompt rendered from the result shows which of them the template preserves. Their own words would not show it,
    because the same words can occur in another message. Reasoning at the beginning of a text stays, since templates may
    omit it.
    """
    return [
        _with_marks(index, message) if message.get("tool_calls") else message for index, message in enumerate(messages)
    ]


def lost_preamble(marked: Sequence[Message], prompt: str) -> int | None:
    """Return the index of the first message whose text next to tool calls the template dropped, or None.

    The rendered prompt then lacks the placeholder of that text.
    """
    for index, message in enumerate(marked):
        mark = _TEXT_MARK.format(index)
        if has_preamble(message) and mark in str(message["content"]) and mark not in prompt:
            return index
    return None


def has_running_reasoning(marked: Sequence[Message], prompt: str) -> bool:
    """Return whether a prompt contains all reasoning (or its placeholders) next to the current turn's tool calls."""
    running = takewhile(lambda message: message.get("role") != "user", reversed(marked))
    thoughts = [reasoning_of(message) for message in running if message.get("tool_calls")]
    return all(each in prompt for each in thoughts if isinstance(each, str))


def _with_marks(index: int, message: Message) -> dict[str, Any]:
    """Return one message with placeholders in place of its reasoning and its text next to tool calls."""
    changed = dict(message)
    reasoning = reasoning_of(message)
    if isinstance(reasoning, str) and not is_blank(reasoning):
        changed = {**_without(message, REASONING), REASONING[0]: _REASONING_MARK.format(index)}
    if has_preamble(message):
        changed["content"] = _with_mark(message["content"], _TEXT_MARK.format(index))
    return changed


def _with_mark(content: Any, mark: str) -> Any:
    """Return the content of a message with a placeholder in place of its texts."""
    if isinstance(content, str):
        head = _WITH_REASONING.match(content)
        assert head is not None, "the pattern always matches, if only the empty text"
        return content if is_blank(content[head.end() :]) else head[0] + mark
    return [
        {**part, "text": _with_mark(part["text"], mark)}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def _without(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """Return a message without some of its keys."""
    left_out = set(names)
    return {name: value for name, value in message.items() if name not in left_out}
