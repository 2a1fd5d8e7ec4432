"""Preambles: the text of an assistant message that calls tools too ("I look it up."), and where a template takes it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Literal, get_args

from ridgeline.core.text.reasoning import TAGS

Message = Mapping[str, Any]
IndexedMessage = tuple[int, Message]
"""A message and its place in the conversation."""

PreamblePlace = Literal["beside", "before", "before_reasoning", "in_reasoning", "once_a_turn"]
"""The place of a preamble:

- beside: in the message of the calls.
- before: in a message of its own, which has the reasoning too. The calls follow in the next one.
- before_reasoning: in a message of its own. The reasoning stays with the calls.
- in_reasoning: at the end of the message's reasoning (gpt-oss, whose template writes no commentary but calls).
- once_a_turn: joined to the other texts of the assistant's turn where the last of them is. Mistral's older templates
  refuse a turn with two texts, and messages with calls do not count.
"""
PLACES: tuple[PreamblePlace, ...] = get_args(PreamblePlace)
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which a message may have its reasoning."""
_TEXT_MARK, _REASONING_MARK = "kept_text_9d3f_{}_", "kept_reasoning_9d3f_{}_"
"""The marks of a message by its index. They end with a character, so that the mark of 1 is not in the mark of 10."""
_WITH_REASONING = re.compile(f"(?:.*?(?:{'|'.join(re.escape(end) for _, end in TAGS)}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PreamblePlaces:
    """The places in which a template keeps a preamble, best first, in earlier turns and in the running one."""

    over: tuple[PreamblePlace, ...] = ("beside",)
    """The places in a turn that a later message of the user ends."""
    running: tuple[PreamblePlace, ...] = ("beside",)
    """The places in the turn that the response continues."""
    keeps_reasoning: bool = False
    """Whether these places in the running turn keep the reasoning of the message too."""

    @property
    def pairs(self) -> tuple[tuple[PreamblePlace, PreamblePlace], ...]:
        """The places for turns that are over and for the running one, pair by pair, to be tried in this order."""
        most = max(len(self.over), len(self.running))
        return tuple(
            (self.over[min(at, len(self.over) - 1)], self.running[min(at, len(self.running) - 1)]) for at in range(most)
        )


def reasoning_of(message: Message) -> Any:
    """Return a message's reasoning, or None if it has none."""
    return next((message[name] for name in REASONING if message.get(name) is not None), None)


def is_blank(content: object) -> bool:
    """Whether a content has no text: null, white space or an empty list."""
    return not (content.strip() if isinstance(content, str) else content)


def has_preamble(message: Message) -> bool:
    """Whether a message has both text and calls."""
    return bool(message.get("tool_calls")) and not is_blank(message.get("content"))


def with_preambles(
    messages: Iterable[IndexedMessage], over: PreamblePlace, running: PreamblePlace
) -> Iterator[IndexedMessage]:
    """Yield the messages of a conversation with each preamble in its place.

    over: the place in turns that a later message of the user ends. running: the place after the last such message.
    """
    turns = list(messages)
    users = [place for place, (_, message) in enumerate(turns) if message.get("role") == "user"]
    bounds = [0, *users, len(turns)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        yield from _placed(turns[start:end], running if number == len(bounds) - 2 else over)


def _placed(turns: Sequence[IndexedMessage], place: PreamblePlace) -> Iterator[IndexedMessage]:
    """Yield the messages of one turn with each preamble in this place."""
    if place == "once_a_turn" and any(has_preamble(message) for _, message in turns):
        turns, place = _texts_joined(turns), "before_reasoning"
    for index, message in turns:
        if place == "beside" or not has_preamble(message):
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
    """Return one turn's messages with all texts of the assistant joined in the last message that has one."""
    said = [
        place
        for place, (_, message) in enumerate(turns)
        if message.get("role") == "assistant" and not is_blank(message.get("content"))
    ]
    whole = _joined([turns[place][1]["content"] for place in said])
    changed = list(turns)
    for place in said:
        index, message = turns[place]
        changed[place] = (index, {**message, "content": whole if place == said[-1] else None})
    emptied = {place for place in said[:-1] if not turns[place][1].get("tool_calls")}
    return [turn for place, turn in enumerate(changed) if place not in emptied]


def _joined(contents: Sequence[Any]) -> Any:
    """Return contents as one: a text if all are texts, and otherwise a list of parts."""
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    lists = [[{"type": "text", "text": each}] if isinstance(each, str) else list(each) for each in contents]
    return [part for parts in lists for part in parts]


def with_marks(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation with a mark in place of each preamble, and of the reasoning next to calls.

    The prompt of this conversation shows which of them a template keeps. Their own words do not: they may also be in
    another message. Reasoning at the beginning of a text stays, since templates may leave it out.
    """
    return [
        _with_marks(index, message) if message.get("tool_calls") else message for index, message in enumerate(messages)
    ]


def lost_preamble(marked: Sequence[Message], prompt: str) -> int | None:
    """Return the index of the first message whose preamble the prompt of a marked conversation lacks, or None."""
    for index, message in enumerate(marked):
        mark = _TEXT_MARK.format(index)
        if has_preamble(message) and mark in str(message["content"]) and mark not in prompt:
            return index
    return None


def has_running_reasoning(marked: Sequence[Message], prompt: str) -> bool:
    """Whether the prompt of a marked conversation has the reasoning next to the calls of the running turn."""
    running = takewhile(lambda message: message.get("role") != "user", reversed(marked))
    thoughts = [reasoning_of(message) for message in running if message.get("tool_calls")]
    return all(each in prompt for each in thoughts if isinstance(each, str))


def _with_marks(index: int, message: Message) -> dict[str, Any]:
    changed = dict(message)
    reasoning = reasoning_of(message)
    if isinstance(reasoning, str) and not is_blank(reasoning):
        changed = {**_without(message, REASONING), REASONING[0]: _REASONING_MARK.format(index)}
    if has_preamble(message):
        changed["content"] = _with_mark(message["content"], _TEXT_MARK.format(index))
    return changed


def _with_mark(content: Any, mark: str) -> Any:
    """Return a content with a mark in place of its texts."""
    if isinstance(content, str):
        head = _WITH_REASONING.match(content)
        assert head is not None, "it may be empty"
        return content if is_blank(content[head.end() :]) else head[0] + mark
    return [
        {**part, "text": _with_mark(part["text"], mark)}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def _without(message: Message, names: Iterable[str]) -> dict[str, Any]:
    left_out = set(names)
    return {name: value for name, value in message.items() if name not in left_out}
