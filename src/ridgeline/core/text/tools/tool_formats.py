"""The formats in which models call functions: their markers, how to read the calls, and how templates write them."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

from ridgeline.core.text.tools.call_reader import (
    CallSink,
    after_blanks,
    expect,
    one_of,
    read_arguments,
    read_call,
    until,
)

Calls = Generator[None, str, None]
"""A generator that receives the characters after an opening marker and reads the tool calls."""
NewCall = Callable[[], CallSink]
"""A function that creates the object (CallSink) that receives the next tool call of a response."""


@dataclass(frozen=True, slots=True)
class CallLayout:
    """The text that a chat template writes around tool calls.

    The order is `start`; for each call `before`, its name, `middle`, its arguments and `after`; `between`
    each two calls; and `end`.
    """

    start: str
    before: str
    middle: str
    after: str
    between: str | None
    """The text between two tool calls, or None if a response can have only one."""
    end: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The format in which a family of models writes tool calls."""

    name: str
    """The name of a tool-call format in vLLM."""
    opening: str
    """The marker that begins the tool calls in a response."""
    read: Callable[[NewCall], Calls]
    """A function that creates the generator that reads the tool calls after the opening marker."""
    layout: CallLayout
    """The text that chat templates write around tool calls in this format."""
    markers: tuple[str, ...]
    """The literals of a tool-call format that can be control tokens of the model."""
    starts_bare: bool = False
    """Whether a response that begins with a brace, without the opening marker, is also read as tool calls."""
    short_ids: bool = False
    """Whether tool calls have ids of nine letters and digits."""


def _hermes(new: NewCall) -> Calls:
    """Read one tool call in the Hermes format, and its closing tag."""
    yield from read_call(new(), ("arguments", "parameters"))
    yield from expect("</tool_call>")


def _llama(new: NewCall) -> Calls:
    """Read Llama's tool calls, which are separated by a semicolon, or by nothing (Llama 4)."""
    first = ""
    while True:
        yield from read_call(new(), ("parameters", "arguments"), first)
        first = yield from one_of((";", "{"))
        first = "" if first == ";" else first


def _mistral(new: NewCall) -> Calls:
    """Read Mistral's tool calls: a list, or a newer `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`."""
    first = yield from after_blanks()
    if first != "[":
        named = first + (yield from until("[ARGS]"))
        sink = new()
        sink.take_name(named.partition("[CALL_ID]")[0].strip())
        yield from read_arguments(sink)
        sink.end()
        return
    while True:
        yield from read_call(new(), ("arguments", "parameters"))
        if (yield from one_of((",", "]"))) == "]":
            return


_BEGIN, _CALL, _MIDDLE = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"


def _deepseek(new: NewCall) -> Calls:
    """Read tool calls between DeepSeek's begin and end markers."""
    yield from expect(_CALL)
    while True:
        sink = new()
        sink.take_name((yield from until(_MIDDLE)).strip())
        yield from read_arguments(sink)
        sink.end()
        yield from expect(_CALL_END)
        if (yield from one_of((_CALL, _END))) == _END:
            return


_NAME = '{"name": "'
_HERMES = CallLayout("<tool_call>\n", _NAME, '", "arguments": ', "}", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
_LLAMA = CallLayout("", _NAME, '", "parameters": ', "}", None, "")
_MISTRAL = CallLayout("[TOOL_CALLS][", _NAME, '", "arguments": ', "}", ", ", "]")
_MISTRAL_MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
_MISTRAL_ARGS = CallLayout("", "[TOOL_CALLS]", "[ARGS]", "", "", "")
_DEEPSEEK = CallLayout(_BEGIN + _CALL, "", _MIDDLE, "", _CALL_END + _CALL, _CALL_END + _END)

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        ToolFormat("hermes", "<tool_call>", _hermes, _HERMES, ("<tool_call>", "</tool_call>")),
        ToolFormat("llama3_json", "<|python_tag|>", _llama, _LLAMA, ("<|python_tag|>",), starts_bare=True),
        ToolFormat("mistral", "[TOOL_CALLS]", _mistral, _MISTRAL, _MISTRAL_MARKERS, short_ids=True),
        ToolFormat("deepseek_v31", _BEGIN, _deepseek, _DEEPSEEK, (_BEGIN, _CALL, _MIDDLE, _CALL_END, _END)),
    )
}
"""The tool formats by the names of vLLM's --tool-call-parser."""

ALL_FORMATS = (*FORMATS.values(), replace(FORMATS["mistral"], layout=_MISTRAL_ARGS))
"""The tool formats in every layout that templates use; Mistral's newer models have a second layout."""


def format_named(name: str) -> ToolFormat:
    """Return the tool format with this name.

    Raises:
        ValueError: If there is no such format. The message lists the names.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown tool call format {name!r}; use one of {', '.join(FORMATS)}")
    return FORMATS[name]
