"""A probe that detects which forms of conversation a chat template accepts, by rendering small test conversations.

Templates treat messages that OpenAI's interface allows in different ways. Some fail on a null content, print it as
"None", or omit a tool call unless the content is null. Some need the arguments of a call as an object, others as JSON
text. Some omit a `developer` message, or every system message after the first. The probe renders a test conversation of
each kind and searches the prompt for its words. Some templates require a leading system message, or write a call only
if its result follows. If a template writes no call, the probe adds these.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

from ridgeline.core.text.preamble import (
    PLACES,
    REASONING,
    PreamblePlace,
    PreamblePlaces,
    is_blank,
    with_preambles,
    with_thinking_part,
)
from ridgeline.core.text.template_budget import MAX_SECONDS, Exhausted
from ridgeline.core.text.tool_definitions import OPTIONAL_KEYS
from ridgeline.core.text.tools import ALL_FORMATS, Function, ToolFormat, ToolParser
from ridgeline.util.untrusted import ModelRefused

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None, bool], str]
"""A function that renders messages and tools to a prompt; it raises ValueError if the template fails.

The flag requests the opening of a response.
"""

IdKind = Literal["any", "short", "function"]
_KINDS: tuple[IdKind, ...] = get_args(IdKind)

ABSENT: Final = "absent"
"""A marker for a message without the key `content`."""

_ALIASES = {"developer": "system", "function": "tool"}
"""The roles that are renamed for chat templates without a branch for them, with their new names."""

_NAMES = ("probe_name", "probe_second_name")
_ARGUMENTS = {"probe_key": "probe_value"}
_USER_MESSAGE = {"role": "user", "content": "probe_question"}
_ASSISTANT_MESSAGE = {"role": "assistant", "content": "probe_statement"}
_TEXTS = ("probe_text", "probe_second_text", "probe_third_text")
_THOUGHT = "probe_thought"
_RULE = {"role": "system", "content": "probe_instruction"}
_UNKNOWN_ROLE = "probe_role"
_IDS: Mapping[str, tuple[str, str]] = {
    "any": ("1", "call_1123456789abcdef01234567"),
    "short": ("probeid01", "probeid02"),
    "function": (f"functions.{_NAMES[0]}:0", f"functions.{_NAMES[1]}:1"),
}
"""The tool-call ids of test conversations, by the kind of id that the template accepts."""
_TOOLS: tuple[Message, ...] = (
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
    """The form in which a template accepts an assistant message with tool calls, and the tool results."""

    content: str | None = ""
    """The content of a message that has calls but no text: "", None or ABSENT."""
    arguments_as_text: bool = False
    """Whether a template needs a tool call's arguments as JSON text instead of an object."""
    ids: IdKind = "any"
    """The kind of call id that the template accepts.

    "any": every id. "short": nine letters and digits. "function": `functions.NAME:NUMBER`, which Kimi's templates write
    instead of the name.
    """
    named_results: bool = False
    """Whether a tool result must repeat the name of its function for the template."""
    several: bool = True
    """Whether a template writes all tool calls of a message, instead of only the first or none."""
    preambles: PreamblePlaces = field(default_factory=PreamblePlaces)
    """The places to which the text next to tool calls can be moved so that the template does not drop it.

    Examples are the message with the calls itself, a message before it, and its reasoning (`PreamblePlace`).
    """

    def message(self, names: Sequence[str], ids: Sequence[str] | None = None) -> Message:
        """Return a test message that calls the given functions; `ids` replaces the default call ids."""
        calls = [self._call(*pair) for pair in zip(names, ids or _IDS[self.ids], strict=False)]
        return self.with_content({"role": "assistant", "tool_calls": calls})

    def with_content(self, message: Message) -> dict[str, Any]:
        """Return a message with the content that the template needs next to tool calls, if it has calls and no text."""
        if not message.get("tool_calls") or not is_blank(message.get("content")):
            return dict(message)
        kept = {key: value for key, value in message.items() if key != "content"}
        return kept if self.content == ABSENT else {**kept, "content": self.content}

    def result(self, number: int = 0, identity: str | None = None) -> Message:
        """Return the result message of one of the test tool calls; `identity` replaces the default call id."""
        named = {"name": _NAMES[number]} if self.named_results else {}
        return {"role": "tool", **named, "tool_call_id": identity or _IDS[self.ids][number], "content": _TEXTS[0]}

    def _call(self, name: str, identity: str) -> Message:
        """Return one tool call with the test arguments."""
        arguments = json.dumps(_ARGUMENTS) if self.arguments_as_text else _ARGUMENTS
        return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class TemplateProbe:
    """A probe that detects how one template treats roles, tool calls and tool results, each at first use.

    If a template fails on all test conversations of one kind, it receives such messages unchanged: it may need
    something that the probe lacks, and otherwise it reports the error itself.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._roles: dict[str, str | None] = {}
        self._before: tuple[Message, ...] = ()  # first messages of every test conversation with calls
        self._has_results = False  # whether a test conversation of calls includes their results
        self._spent = 0.0  # processor seconds; all renderings together get the budget of one prompt

    # -- roles --------------------------------------------------------------------------------------------------------

    def role(self, role: str) -> str | None:
        """Return the role under which a template writes messages of this role, or None if it omits them."""
        if role in ("user", "assistant"):
            return role
        if role not in self._roles:
            self._roles[role] = self._find_role(role)
        return self._roles[role]

    @cached_property
    def joins_leading(self) -> bool:
        """Whether leading system messages must be joined, because the template would omit one of them or fail."""
        leading = [{"role": "system", "content": text} for text in _TEXTS]
        if not self._texts([leading[0], _USER_MESSAGE]):
            return False
        found = self._texts([*leading, _USER_MESSAGE])
        return not found or not all(_includes(text, _TEXTS) for text in found)

    @cached_property
    def reads_thinking_parts(self) -> bool:
        """Whether the template writes reasoning only as a content part of type `thinking`, as Ministral's does."""
        text = self._text([_USER_MESSAGE, {**_ASSISTANT_MESSAGE, **dict.fromkeys(REASONING, _THOUGHT)}], None, False)
        parts = with_thinking_part({**_ASSISTANT_MESSAGE, REASONING[0]: _THOUGHT})
        in_parts = self._text([_USER_MESSAGE, parts], None, False)
        return text is not None and _THOUGHT not in text and in_parts is not None and _shows_part(in_parts)

    @cached_property
    def needed_keys(self) -> tuple[str, ...]:
        """The optional keys of a function without which the template fails."""
        if self._text([_USER_MESSAGE], _TOOLS, True) is None:
            return ()
        (tool,) = _TOOLS
        without = {key: {k: v for k, v in tool["function"].items() if k != key} for key in OPTIONAL_KEYS}
        return tuple(
            key
            for key, function in without.items()
            if self._text([_USER_MESSAGE], [{**tool, "function": function}], True) is None
        )

    def _find_role(self, role: str) -> str | None:
        """Detect the role under which a template writes messages of this role."""
        if role == "tool":
            return "tool" if self.calls.form is None or self._writes_result(self.calls.form) else None
        own, unknown = (
            self._texts([{"role": name, "content": _TEXTS[0]}, _USER_MESSAGE]) for name in (role, _UNKNOWN_ROLE)
        )
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
        """The way in which a chat template accepts messages with tool calls, and the format in which it writes them."""
        for before, has_results in itertools.product(((), (_RULE,)), (False, True)):
            self._before, self._has_results = before, has_results  # applies to all later renderings
            form = self._find_form()
            if form is not None:
                form = self._completed(form)
                return ProbedCalls(form, self._find_format(form))
        return ProbedCalls(None, None)

    def _find_form(self) -> CallForm | None:
        """Return the first message form in which a template writes a tool call and its result, or at least a call.

        The result is None if the template writes a call in no form.
        """
        contents: tuple[str | None, ...] = ("", None, ABSENT)  # "" can be joined with other text, so it comes first
        results = (False, True) if self._has_results else (False,)
        forms = (
            CallForm(content, as_text, ids, named)
            for named, ids, as_text, content in itertools.product(results, _KINDS, (False, True), contents)
        )
        written = [form for form in forms if self._writes_call(form)]
        return next((form for form in written if self._takes_result(form)), next(iter(written), None))

    def _writes_call(self, form: CallForm) -> bool:
        """Return whether a template writes a tool call in this message form exactly once, for each test id."""
        texts = [self._calling_text(form, 1, each) for each in _IDS[form.ids]]
        if form.ids == "function":  # each id contains the name of one function
            texts = texts[:1]
        return all(text is not None and self._is_once(text, _NAMES[:1]) for text in texts)

    def _calling_text(self, form: CallForm, count: int, identity: str | None = None) -> str | None:
        """Return the prompt of a conversation that ends with `count` tool calls, up to the first result."""
        ids = None if identity is None else [identity]
        results = [form.result(number, identity) for number in range(count)] if self._has_results else []
        text = self._call_text([_USER_MESSAGE, form.message(_NAMES[:count], ids), *results])
        return None if text is None else text.partition(_TEXTS[0])[0]

    def _is_once(self, text: str, names: Sequence[str]) -> bool:
        """Return whether a prompt has each tool call exactly once, with arguments quoted once and no printed null."""
        (key, value), *_ = _ARGUMENTS.items()
        call = _after(text, self._prompt_before_call)
        misread = ('\\"' + key, f"{{'{key}'", "&#34;" + key, "&quot;" + key)
        most = 2 if self._has_results else 1  # the header of a result may also contain the name
        named = all(1 <= call.count(name) <= most for name in names)
        written = named and call.count(key) == call.count(value) == len(names)
        return written and not self._prints_null(text) and not any(each in text for each in misread)

    def _prints_null(self, text: str) -> bool:
        """Return whether a prompt has more "None" or "null" than the prompt of a conversation without calls."""
        return any(text.count(word) > self._text_prompt.count(word) for word in ("None", "null"))

    def _completed(self, form: CallForm) -> CallForm:
        """Detect the other properties of a message form by rendering tool calls in it."""
        form = replace(form, named_results=not self._takes_result(form, named=False))
        several = self._calling_text(form, 2)
        form = replace(form, several=several is not None and self._is_once(several, _NAMES))
        over, _ = self._preamble_places(form, [_ASSISTANT_MESSAGE, _USER_MESSAGE])
        running, keeps_reasoning = self._preamble_places(form, [])
        # If the position does not change when the turn ends, the next prompt starts with this one, which is cached.
        over = (*(place for place in running if place in over), *(place for place in over if place not in running))
        return replace(form, preambles=PreamblePlaces(over, running, keeps_reasoning))

    def _preamble_places(self, form: CallForm, rest: Sequence[Message]) -> tuple[tuple[PreamblePlace, ...], bool]:
        """Return the positions at which a template preserves a text next to tool calls.

        A flag says whether they also preserve reasoning. If some positions preserve the reasoning, only these are
        returned. If no position preserves the text, it stays next to the call.

        Args:
            form: Form of the tool calls.
            rest: Messages after the result of the call.
        """
        reasoning_message = {**form.message(_NAMES[:1]), "content": _TEXTS[1], REASONING[0]: _THOUGHT}
        words = (_NAMES[0], *_ARGUMENTS)
        found: dict[PreamblePlace, bool] = {}
        for place in PLACES:
            turns = with_preambles(enumerate([_USER_MESSAGE, reasoning_message, form.result(), *rest]), place, place)
            text = self._call_text([form.with_content(message) for _, message in turns], opens=True)
            if text is not None and text.count(_TEXTS[1]) == 1 and _includes(text, words):
                found[place] = _THOUGHT in text
        keeps_reasoning = any(found.values())
        kept = tuple(place for place, has_reasoning in found.items() if has_reasoning or not keeps_reasoning)
        return kept or ("with_calls",), keeps_reasoning

    @property
    def _text_prompt(self) -> str:
        """The test prompt with text in place of the tool call."""
        return self._call_text([_USER_MESSAGE, _ASSISTANT_MESSAGE]) or ""

    @property
    def _prompt_before_call(self) -> str:
        """The test prompt before the tool call, without the opening of a response."""
        return self._call_text([_USER_MESSAGE]) or ""

    def _takes_result(self, form: CallForm, *, named: bool | None = None) -> bool:
        """Return whether a template writes a tool's result after its call.

        Args:
            form: Form of the tool calls.
            named: Whether the result repeats the function name. None tries both.
        """
        tries = (False, True) if named is None else (named,)
        return any(self._writes_result(replace(form, named_results=each)) for each in tries)

    def _writes_result(self, form: CallForm) -> bool:
        """Return whether a prompt contains the text of a tool result in this message form."""
        text = self._call_text([_USER_MESSAGE, form.message(_NAMES[:1]), form.result()], opens=True)
        return text is not None and _includes(text, _TEXTS[:1])

    # -- the format of calls ------------------------------------------------------------------------------------------

    def _find_format(self, form: CallForm) -> ToolFormat | None:
        """Return the tool-call format whose parser reads a template's own calls back, or None if no parser does."""
        opened = self._call_text([_USER_MESSAGE], opens=True) or ""
        counts = (1, 2) if form.several else (1,)
        texts = {count: self._calling_text(form, count) or "" for count in counts}
        able = [
            each
            for each in ALL_FORMATS
            if all(_reads(each, text, opened, _NAMES[:count]) for count, text in texts.items())
        ]
        first = {each: f"{each.layout.before}{_NAMES[0]}" for each in able}
        laid_out = [each for each in able if first[each] in texts[1]]
        exact = [each for each in laid_out if f"{each.layout.start}{first[each]}{each.layout.middle}" in texts[1]]
        return next(iter((*exact, *laid_out, *able)), None)

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _texts(self, messages: Sequence[Message]) -> list[str]:
        """Return a test conversation's prompts without and with tools, except any on which the template fails."""
        texts = (self._text(messages, tools, True) for tools in (None, _TOOLS))
        return [text for text in texts if text is not None]

    def _call_text(self, messages: Sequence[Message], *, opens: bool = False) -> str | None:
        """Return the prompt of a conversation with tool definitions, or without them if the template fails on them."""
        messages = [*self._before, *messages]
        text = self._text(messages, _TOOLS, opens)
        return self._text(messages, None, opens) if text is None else text

    def _text(self, messages: Sequence[Message], tools: Sequence[Message] | None, opens: bool) -> str | None:
        """Render a test prompt within a time budget; return None if the template fails or the budget is spent."""
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
    """The way in which a template accepts messages with tool calls, and the format in which it writes the calls."""

    form: CallForm | None
    """The form of messages with tool calls that a template accepts, or None if it writes calls in no form."""
    tool_format: ToolFormat | None
    """The format in which a template writes tool calls, or None if none of the engine's parsers reads it."""


def _includes(text: str, words: Iterable[str]) -> bool:
    """Return whether a text contains all of these words."""
    return all(word in text for word in words)


def _shows_part(text: str) -> bool:
    """Return whether a prompt has the test message's reasoning and text, and not its list of parts as such."""
    return _includes(text, (_THOUGHT, _ASSISTANT_MESSAGE["content"])) and not any(
        each in text for each in ("'type'", '"type"')
    )


def _after(text: str, start: str) -> str:
    """Return the part of a text after the prefix that it shares with another text."""
    return text[_shared(text, start) :]


def _shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(text, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def _reads(tool_format: ToolFormat, text: str, opened: str, names: Sequence[str]) -> bool:
    """Return whether a tool format's parser extracts exactly the test calls from a prompt.

    Args:
        tool_format: The format to test.
        text: Prompt with the calls.
        opened: Prompt that ends with the opening of a response.
        names: Functions that are called.
    """
    start = _shared(text, opened)
    # The opening of a response can start with the marker's first characters, as `<think>` and `<tool_call>` do.
    markers = (text.find(each, max(0, start - len(each) + 1)) for each in tool_format.openings)
    parser = ToolParser(tool_format, [Function(name) for name in names])
    deltas = (parser.push(text[min([start, *(at for at in markers if at >= 0)]) :]), parser.finish())
    calls = [call for delta in deltas for call in delta.calls]
    arguments = ["".join(call.arguments for call in calls if call.index == at) for at in range(parser.complete)]
    found = [call.name for call in calls if call.name]
    expected = [_ARGUMENTS] * len(names)
    return found == list(names) and [json.loads(each) for each in arguments] == expected
