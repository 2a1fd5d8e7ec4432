"""A probe that finds out how a chat template takes a conversation, by rendering small ones.

Templates differ in what they do with a message that OpenAI's interface allows: some fail on a null content, print it as
"None", or leave a tool call out unless it is null; some want a call's arguments as an object and others as JSON text;
some leave out a `developer` message, or every system message after the first. The probe renders a conversation of each
kind and looks for its words in the result.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

from ridgeline.text.budget import MAX_SECONDS, Exhausted
from ridgeline.text.tools.formats import ALL_FORMATS, ToolFormat
from ridgeline.text.tools.parser import ToolParser
from ridgeline.untrusted import ModelRefused

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None, bool], str]
"""Renders messages, tools, and whether the prompt ends with the opening of a response. Raises ValueError."""

IdKind = Literal["any", "short", "function"]
_KINDS: tuple[IdKind, ...] = get_args(IdKind)

ABSENT: Final = "absent"
"""The content of a message that lacks the key `content`."""

_ALIASES = {"developer": "system", "function": "tool"}
"""The roles that are renamed for a template without a branch of their own, and their new names."""

_NAMES = ("probe_name", "probe_second_name")
_ARGUMENTS = {"probe_key": "probe_value"}
_ASK = {"role": "user", "content": "probe_question"}
_SAID = {"role": "assistant", "content": "probe_statement"}
_TEXTS = ("probe_text", "probe_second_text", "probe_third_text")
_UNKNOWN_ROLE = "probe_role"
_IDS: Mapping[str, tuple[str, str]] = {
    "any": ("1", "call_1123456789abcdef01234567"),
    "short": ("probeid01", "probeid02"),
    "function": (f"functions.{_NAMES[0]}:0", f"functions.{_NAMES[1]}:1"),
}
"""The ids of the probe's calls, by what a template takes."""
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
    ids: IdKind = "any"
    """The ids that the template takes: any, nine letters and digits ("short"), or `functions.NAME:NUMBER`, which Kimi's
    templates write in place of the name ("function")."""
    named_results: bool = False
    """Whether a result has to repeat the name of its function."""
    several: bool = True
    """Whether all calls of a message are written, rather than the first or none."""
    beside_text: bool = True
    """Whether text and calls of one message stay together. Apart they are two messages, each of which is written."""

    def message(self, names: Sequence[str], ids: Sequence[str] | None = None) -> Message:
        """Return an assistant message of the probe that calls these functions. ids: of the calls, if not the usual."""
        calls = [self._call(*pair) for pair in zip(names, ids or _IDS[self.ids], strict=False)]
        kept = {} if self.content == ABSENT else {"content": self.content}
        return {"role": "assistant", **kept, "tool_calls": calls}

    def result(self) -> Message:
        """Return the result of the probe's first call."""
        named = {"name": _NAMES[0]} if self.named_results else {}
        return {"role": "tool", **named, "tool_call_id": _IDS[self.ids][0], "content": _TEXTS[0]}

    def _call(self, name: str, identity: str) -> Message:
        arguments = json.dumps(_ARGUMENTS) if self.arguments_as_text else _ARGUMENTS
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class TemplateProbe:
    """The behaviour of one template towards roles, calls and their results, each found when it is first asked for.

    If a template fails on all of the probe's conversations of one kind, it gets such messages unchanged: it may need
    something that the probe lacks, and otherwise it reports the error itself.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._roles: dict[str, str | None] = {}
        self._spent = 0.0  # seconds of processor time; all renderings together get what one prompt may take

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
        """Whether system messages at the beginning have to be joined, because the template leaves one out."""
        leading = [{"role": "system", "content": text} for text in _TEXTS]
        if not self._texts([leading[0], _ASK]):
            return False
        found = self._texts([*leading, _ASK])
        return not found or not all(_includes(text, _TEXTS) for text in found)

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
        """The form and the format in which the template writes tool calls."""
        contents: tuple[str | None, ...] = ("", None, ABSENT)  # "" first: templates that join it to other text take it
        forms = (
            CallForm(content, as_text, ids)
            for ids, as_text, content in itertools.product(_KINDS, (False, True), contents)
        )
        written = [form for form in forms if self._writes_call(form)]
        form = next((form for form in written if self._takes_result(form)), next(iter(written), None))
        if form is None:
            return ProbedCalls(None, None)
        form = self._completed(form)
        return ProbedCalls(form, self._find_format(form))

    def _writes_call(self, form: CallForm) -> bool:
        """Whether a call in this form is written once, whichever of the ids it has."""
        texts = [self._call_text([_ASK, form.message(_NAMES[:1], [each])]) for each in _IDS[form.ids]]
        if form.ids == "function":  # each id contains the name of one function
            texts = texts[:1]
        return all(text is not None and self._is_once(text, _NAMES[:1]) for text in texts)

    def _is_once(self, text: str, names: Sequence[str]) -> bool:
        """Whether a text has each call exactly once, with arguments that are quoted once and no null in words."""
        (key, value), *_ = _ARGUMENTS.items()
        call = _after(text, self._asked)
        misread = ('\\"' + key, f"{{'{key}'", "&#34;" + key, "&quot;" + key)
        written = all(call.count(name) == 1 for name in names) and call.count(key) == call.count(value) == len(names)
        return written and not self._prints_null(text) and not any(each in text for each in misread)

    def _prints_null(self, text: str) -> bool:
        """Whether a text has "None" or "null" more often than a conversation without calls has."""
        return any(text.count(word) > self._said.count(word) for word in ("None", "null"))

    def _completed(self, form: CallForm) -> CallForm:
        """Return the form with its remaining fields, which are found by rendering calls in it."""
        several = self._call_text([_ASK, form.message(_NAMES)])
        call, said = form.message(_NAMES[:1]), {"role": "assistant", "content": _TEXTS[1]}
        rest = [form.result(), _SAID, _ASK]  # some refuse two messages of the assistant only when the user speaks again
        together = self._call_text([_ASK, {**call, **said}, *rest])
        apart = self._call_text([_ASK, said, call, *rest])
        return replace(
            form,
            named_results=not self._takes_result(form, named=False),
            several=several is not None and self._is_once(several, _NAMES),
            beside_text=self._is_call_beside_text(together) or not self._is_call_beside_text(apart),
        )

    def _is_call_beside_text(self, text: str | None) -> bool:
        return text is not None and _includes(text, (_TEXTS[1], _NAMES[0], *_ARGUMENTS))

    @cached_property
    def _said(self) -> str:
        """The conversation with text in place of the call."""
        return self._call_text([_ASK, _SAID]) or ""

    @cached_property
    def _asked(self) -> str:
        """The conversation before the call, as far as it is the same with and without the opening of a response."""
        return self._call_text([_ASK]) or ""

    def _takes_result(self, form: CallForm, *, named: bool | None = None) -> bool:
        """Whether the template goes on from a call to its result. named: whether the result repeats the name."""
        tries = (False, True) if named is None else (named,)
        return any(self._writes_result(replace(form, named_results=each)) for each in tries)

    def _writes_result(self, form: CallForm) -> bool:
        text = self._call_text([_ASK, form.message(_NAMES[:1]), form.result()], opens=True)
        return text is not None and _includes(text, _TEXTS[:1])

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
        laid_out = [each for each in able if each.layout.before + _NAMES[0] in texts[1]]
        return next(iter((*laid_out, *able)), None)

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _texts(self, messages: Sequence[Message]) -> list[str]:
        """Return the prompts without tools and with them, as far as the template does not fail."""
        texts = (self._text(messages, tools, True) for tools in (None, _TOOLS))
        return [text for text in texts if text is not None]

    def _call_text(self, messages: Sequence[Message], *, opens: bool = False) -> str | None:
        """Return the prompt with tools, or without them if the template fails on tools."""
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
    """The form and the format in which a template writes tool calls."""

    form: CallForm | None
    """None if the template writes a call in none of the forms."""
    tool_format: ToolFormat | None
    """The format of the calls, if one of ours reads them."""


def _includes(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)


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
