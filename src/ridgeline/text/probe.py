"""How a chat template takes a conversation, found by rendering small ones.

Templates differ in what they do with a message that OpenAI's interface allows: some fail on a null content, print it as
"None", or leave a tool call out unless it is null; some want a call's arguments as an object and others as JSON text;
some leave out a `developer` message, or every system message after the first. The probe renders a conversation of each
kind and looks for its words in the result.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ridgeline.text.budget import MAX_SECONDS, Exhausted
from ridgeline.text.tools.formats import ALL_FORMATS, ToolFormat
from ridgeline.text.tools.parser import ToolParser
from ridgeline.untrusted import ModelRefused

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None, bool], str]
"""Renders messages, tools, and whether the prompt ends with the opening of a response. Raises ValueError."""

ABSENT: Final = "absent"
"""A message without the key `content`."""

_ALIASES = {"developer": "system", "function": "tool"}
"""The roles that a template without a branch of their own gets under another name."""

_NAMES = ("probe_name", "probe_second_name")
_ARGUMENTS = {"probe_key": "probe_value"}
_ASK = {"role": "user", "content": "probe_question"}
_SAID = {"role": "assistant", "content": "probe_statement"}
_TEXTS = ("probe_text", "probe_second_text")
_UNKNOWN_ROLE = "probe_role"
_LONG_IDS = ("call_0123456789abcdef01234567", "call_1123456789abcdef01234567")
_SHORT_IDS = ("probeid01", "probeid02")
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "probe_offered",
            "description": "An offered tool.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "A word."}},
                "required": ["word"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which a template takes an assistant message with tool calls, and their results."""

    content: str | None = ""
    """The content of a message that has calls and no text: "", None or ABSENT."""
    arguments_as_text: bool = False
    """Whether arguments are JSON text rather than an object."""
    short_ids: bool = False
    """Whether ids have to be nine letters and digits."""
    named_results: bool = False
    """Whether a result has to repeat the name of its function."""
    several: bool = True
    """Whether all calls of a message are written, rather than the first or none."""
    beside_text: bool = True
    """Whether the calls of a message are written that has text too."""

    def message(self, names: Sequence[str], text: str | None = None) -> Message:
        """Return an assistant message of the probe that calls these functions."""
        content = self.content if text is None else text
        calls = [self._call(name, identity) for name, identity in zip(names, self.ids, strict=False)]
        kept = {} if content == ABSENT else {"content": content}
        return {"role": "assistant", **kept, "tool_calls": calls}

    def result(self) -> Message:
        """Return the result of the probe's first call."""
        named = {"name": _NAMES[0]} if self.named_results else {}
        return {"role": "tool", **named, "tool_call_id": self.ids[0], "content": _TEXTS[0]}

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of the probe's calls."""
        return _SHORT_IDS if self.short_ids else _LONG_IDS

    def _call(self, name: str, identity: str) -> Message:
        arguments = json.dumps(_ARGUMENTS) if self.arguments_as_text else _ARGUMENTS
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class TemplateProbe:
    """The behaviour of one template towards roles, calls and their results, each found when it is first asked for.

    A template that fails on all of the probe's conversations of a kind is given such messages as they are: it may want
    something that the probe does not have, and otherwise says by itself what is wrong.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._roles: dict[str, str | None] = {}
        self._later: dict[str, bool] = {}
        self._spent = 0.0  # seconds of processor time; renderings together get no more than one may take

    # -- roles --------------------------------------------------------------------------------------------------------

    def role(self, role: str) -> str | None:
        """Return the role under which the template writes a message of this role, or None if it leaves it out."""
        if role in ("user", "assistant"):
            return role
        if role not in self._roles:
            self._roles[role] = self._find_role(role)
        return self._roles[role]

    @cached_property
    def joins_leading(self) -> bool:
        """Whether two system messages at the beginning have to be joined, because the template leaves one out."""
        leading = [{"role": "system", "content": text} for text in _TEXTS]
        if not self._texts([leading[0], _ASK]):
            return False
        found = self._texts([*leading, _ASK])
        return not found or not all(_includes(text, _TEXTS) for text in found)

    def writes_later(self, role: str) -> bool:
        """Whether a message of this role, after the first user message, is written or refused by the template."""
        if role not in self._later:
            found = self._texts([_ASK, _SAID, {"role": role, "content": _TEXTS[0]}, _ASK])
            self._later[role] = all(_includes(text, _TEXTS[:1]) for text in found)
        return self._later[role]

    def _find_role(self, role: str) -> str | None:
        if role == "tool":
            return "tool" if self.calls.form is None or self._writes_result(self.calls.form) else None
        own, unknown = (self._texts([{"role": name, "content": _TEXTS[0]}, _ASK]) for name in (role, _UNKNOWN_ROLE))
        is_written = bool(own) and all(_includes(text, _TEXTS[:1]) for text in own)
        has_branch = own != [text.replace(_UNKNOWN_ROLE, role) for text in unknown]
        if is_written and (has_branch or role not in _ALIASES):
            return role
        if role in _ALIASES:
            return self.role(_ALIASES[role])
        return None if own else role

    # -- calls --------------------------------------------------------------------------------------------------------

    @cached_property
    def calls(self) -> "ProbedCalls":
        """How the template writes tool calls."""
        written: list[CallForm] = []
        texts: list[str] = []
        for short_ids, as_text, content in itertools.product((False, True), (False, True), ("", None, ABSENT)):
            form = CallForm(content, as_text, short_ids)
            text = self._call_text([_ASK, form.message(_NAMES[:1])])
            if text is None:
                continue
            texts.append(text)
            if _writes_once(text, self._asked, _NAMES[:1]):
                written.append(form)
        if not written:
            return ProbedCalls(None, not texts or any(_NAMES[0] in text for text in texts), None)
        able = [form for form in written if self._takes_result(form)] or written
        form = self._completed(self._shortest([each for each in able if _is_like(each, able[0])]))
        return ProbedCalls(form, True, self._find_format(form))

    def _shortest(self, forms: Sequence[CallForm]) -> CallForm:
        """Return the form that writes nothing but the call: another content may open an empty message before it."""
        return min(forms, key=lambda form: len(self._call_text([_ASK, form.message(_NAMES[:1])]) or ""))

    def _completed(self, form: CallForm) -> CallForm:
        """Return the form with what else the template does with it."""
        several = self._call_text([_ASK, form.message(_NAMES)])
        beside = self._call_text([_ASK, form.message(_NAMES[:1], _TEXTS[0])])
        return CallForm(
            form.content,
            form.arguments_as_text,
            form.short_ids,
            named_results=not self._takes_result(form, named=False),
            several=several is not None and _writes_once(several, self._asked, _NAMES),
            beside_text=beside is not None and _writes_once(beside, self._asked, _NAMES[:1]),
        )

    @cached_property
    def _asked(self) -> str:
        """The conversation before the call, as far as it is the same with and without the opening of a response."""
        return self._call_text([_ASK]) or ""

    def _takes_result(self, form: CallForm, *, named: bool | None = None) -> bool:
        """Whether the template goes on from a call to its result. named: whether the result repeats the name."""
        tries = (False, True) if named is None else (named,)
        forms = [CallForm(form.content, form.arguments_as_text, form.short_ids, each) for each in tries]
        return any(self._writes_result(each) for each in forms)

    def _writes_result(self, form: CallForm) -> bool:
        text = self._call_text([_ASK, form.message(_NAMES[:1]), form.result()], opens=True)
        return text is not None and _includes(text, _TEXTS[:1]) and "None" not in _after(text, self._asked)

    # -- the format of calls ------------------------------------------------------------------------------------------

    def _find_format(self, form: CallForm) -> ToolFormat | None:
        """Return the format whose parser reads the template's own calls back, or None if no parser does."""
        opened = self._call_text([_ASK], opens=True) or ""
        counts = (1, 2) if form.several else (1,)
        texts = {count: self._call_text([_ASK, form.message(_NAMES[:count])]) or "" for count in counts}
        able = [
            each
            for each in ALL_FORMATS
            if all(_reads(each, text, opened, _NAMES[:count]) for count, text in texts.items())
        ]
        written = [each for each in able if each.layout.before + _NAMES[0] + each.layout.middle in texts[1]]
        return next(iter((*written, *able)), None)

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _texts(self, messages: Sequence[Message]) -> list[str]:
        """Return what the template makes of the messages without tools and with them, as far as it does not fail."""
        texts = (self._text(messages, tools, True) for tools in (None, _TOOLS))
        return [text for text in texts if text is not None]

    def _call_text(self, messages: Sequence[Message], *, opens: bool = False) -> str | None:
        """Return what the template makes of the messages beside tools, or without them if it fails on tools."""
        text = self._text(messages, _TOOLS, opens)
        return self._text(messages, None, opens) if text is None else text

    def _text(self, messages: Sequence[Message], tools: Sequence[Message] | None, opens: bool) -> str | None:
        if self._spent >= MAX_SECONDS:
            return None
        begun = time.thread_time()
        try:
            return self._render(messages, tools, opens)
        except ModelRefused as error:
            if isinstance(error.__cause__, Exhausted | RecursionError | MemoryError):
                self._spent = MAX_SECONDS
        except ValueError:
            pass
        finally:
            self._spent += time.thread_time() - begun
        return None


@dataclass(frozen=True, slots=True)
class ProbedCalls:
    """How a template writes tool calls."""

    form: CallForm | None
    """None if the template writes no call, or fails on all of them."""
    may_be_written: bool
    """False if the template leaves calls out without saying so."""
    tool_format: ToolFormat | None
    """The format of the calls, if one of ours reads them."""


def _is_like(form: CallForm, other: CallForm) -> bool:
    """Whether two forms differ in the content at most."""
    return (form.arguments_as_text, form.short_ids) == (other.arguments_as_text, other.short_ids)


def _includes(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)


def _writes_once(text: str, asked: str, names: Sequence[str]) -> bool:
    """Whether a text has each call exactly once, with arguments that are quoted once and no null in words."""
    (key, value), *_ = _ARGUMENTS.items()
    call = _after(text, asked)
    misread = ('\\"' + key, f"{{'{key}'", "&#34;" + key, "&quot;" + key)
    written = all(call.count(name) == 1 for name in names) and call.count(key) == call.count(value) == len(names)
    return written and "None" not in call and not any(each in text for each in misread)


def _after(text: str, start: str) -> str:
    """Return the text after the beginning that it shares with another."""
    return text[_shared(text, start) :]


def _shared(text: str, other: str) -> int:
    pairs = zip(text, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def _reads(tool_format: ToolFormat, text: str, opened: str, names: Sequence[str]) -> bool:
    """Whether a format's parser takes exactly the probe's calls out of what follows the opening of a response."""
    start = _shared(text, opened)
    # The opening of a response may begin with the marker's first characters, as `<think>` and `<tool_call>` do.
    marker = text.find(tool_format.opening, max(0, start - len(tool_format.opening) + 1))
    parser = ToolParser(tool_format, names)
    deltas = (parser.push(text[start if marker < 0 else min(start, marker) :]), parser.finish())
    calls = [call for delta in deltas for call in delta.calls]
    arguments = ["".join(call.arguments for call in calls if call.index == at) for at in range(parser.complete)]
    found = [call.name for call in calls if call.name]
    expected = [_ARGUMENTS] * len(names)
    return found == list(names) and [json.loads(each) for each in arguments] == expected
