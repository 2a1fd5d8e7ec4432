"""The formats in which models call functions: markers, how what stands between them is read, and whose templates have
them.
"""

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
"""Reads the calls after an opening marker; sent characters."""
NewCall = Callable[[], CallSink]


@dataclass(frozen=True, slots=True)
class CallLayout:
    """How a template writes calls: `start`, then for each call `before`, its name, `middle`, its arguments and `after`,
    `between` two of them, and `end`. between is None where an answer has one call only.
    """

    start: str
    before: str
    middle: str
    after: str
    between: str | None
    end: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models calls functions.

    opening: the marker that begins calls in a response. read: the calls after it. markers: literals that may be control
    tokens of the model. starts_bare: a response that begins with a brace is a call too. short_ids: calls get ids of 9
    letters and digits.
    """

    name: str
    opening: str
    read: Callable[[NewCall], Calls]
    layout: CallLayout
    markers: tuple[str, ...]
    starts_bare: bool = False
    short_ids: bool = False


def _hermes(new: NewCall) -> Calls:
    yield from read_call(new(), ("arguments", "parameters"))
    yield from expect("</tool_call>")


def _llama(new: NewCall) -> Calls:
    """Read calls with a semicolon between them, or nothing (Llama 4)."""
    first = ""
    while True:
        yield from read_call(new(), ("parameters", "arguments"), first)
        first = yield from one_of((";", "{"))
        first = "" if first == ";" else first


def _mistral(new: NewCall) -> Calls:
    """Read a list of objects, or in newer models one call: `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`."""
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
"""The formats by the names that vLLM's --tool-call-parser has for them."""

ALL_FORMATS = (*FORMATS.values(), replace(FORMATS["mistral"], layout=_MISTRAL_ARGS))
"""The formats with each layout in which templates write them: Mistral's newer models write calls in another one."""


def format_named(name: str) -> ToolFormat:
    """Return the format of this name. Raises ValueError that lists the names there are."""
    if name not in FORMATS:
        raise ValueError(f"no format of tool calls is called {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]
