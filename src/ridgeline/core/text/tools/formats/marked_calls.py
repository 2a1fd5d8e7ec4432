"""The tool calls of DeepSeek R1 to V3.1, Kimi K2 and Solar Open: a name and its arguments between markers.

The markers are tokens of the vocabulary. The text before the arguments has the name of the function, and in some
formats the id of the call.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ridgeline.core.text.tools.call_reader import Reader, expect, one_of, read_arguments, until
from ridgeline.core.text.tools.call_sink import CallSink
from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


@dataclass(frozen=True, slots=True)
class _Markers:
    """The literals around the tool calls of a section."""

    call: str
    """The start of a call."""
    middle: str
    """The end of the text before the arguments."""
    closing: tuple[str, ...]
    """The literals after the arguments."""
    ends: tuple[str, ...]
    """The literals of which one ends the section."""
    take_header: Callable[[CallSink, str], None]
    """A function that takes the name, and possibly the id, from the text before the arguments."""


def _read(markers: _Markers, new: NewCall, _opening: str) -> Reader:
    """Read a section of tool calls and the marker that ends it."""
    yield from expect(markers.call)
    while True:
        sink = new()
        markers.take_header(sink, (yield from until(markers.middle)).strip())
        yield from read_arguments(sink)
        sink.end()
        for literal in markers.closing:
            yield from expect(literal)
        if (yield from one_of((markers.call, *markers.ends))) != markers.call:
            return


def _take_deepseek_v3(sink: CallSink, header: str) -> None:
    """Take the name from DeepSeek's older header, which also has the type of the tool."""
    kind, separator, name = header.partition(_SEPARATOR)
    if kind.strip() != "function" or not separator:
        raise Malformed
    sink.take_name(name.strip())


def _take_kimi(sink: CallSink, header: str) -> None:
    """Take the id, which contains the name: `functions.NAME:NUMBER`, in which models leave out characters."""
    found = re.fullmatch(r"(?:functions\.)?(.+):[0-9]+", header) or re.fullmatch(r"functions\.?(.+?)[0-9]+", header)
    if found is None:
        raise Malformed
    sink.take_name(found[1])
    sink.identity = header


def _take_solar(sink: CallSink, header: str) -> None:
    """Take the name, which follows the id of the call."""
    _, separator, name = header.partition(_SOLAR_NAME)
    if not separator:
        raise Malformed
    sink.take_name(name.strip())


_BEGIN, _CALL, _SEPARATOR = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK = (_BEGIN, _CALL, _SEPARATOR, _CALL_END, _END)
DEEPSEEK_V3 = ToolFormat(
    "deepseek_v3",
    (_BEGIN,),
    partial(_read, _Markers(_CALL, "```json\n", ("```", _CALL_END), (_END,), _take_deepseek_v3)),
    CallLayout(
        start=f"{_BEGIN}{_CALL}function{_SEPARATOR}",
        before="",
        middle="\n```json\n",
        after="\n```",
        between=f"{_CALL_END}\n{_CALL}function{_SEPARATOR}",
        end=_CALL_END + _END,
    ),
    markers=_DEEPSEEK,
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    (_BEGIN,),
    partial(_read, _Markers(_CALL, _SEPARATOR, (_CALL_END,), (_END,), CallSink.take_name)),
    CallLayout(
        start=_BEGIN + _CALL, before="", middle=_SEPARATOR, after="", between=_CALL_END + _CALL, end=_CALL_END + _END
    ),
    markers=_DEEPSEEK,
)

_KIMI_CALL, _KIMI_MIDDLE, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_BEGINS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_KIMI_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
KIMI_K2 = ToolFormat(
    "kimi_k2",
    _KIMI_BEGINS,
    partial(_read, _Markers(_KIMI_CALL, _KIMI_MIDDLE, (_KIMI_CALL_END,), _KIMI_ENDS, _take_kimi)),
    CallLayout(
        start=_KIMI_BEGINS[0],
        before=f"{_KIMI_CALL}functions.",
        middle=f":0{_KIMI_MIDDLE}",
        after=_KIMI_CALL_END,
        between="",
        end=_KIMI_ENDS[0],
        call_id=":0",
        id_pattern=":[0-9]{1,3}",
    ),
    markers=(*_KIMI_BEGINS, _KIMI_CALL, _KIMI_MIDDLE, _KIMI_CALL_END, *_KIMI_ENDS),
)

_SOLAR_BEGIN, _SOLAR_CALL, _SOLAR_NAME = "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>"
_SOLAR_MIDDLE, _SOLAR_CALL_END, _SOLAR_END = "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"
SOLAR_OPEN = ToolFormat(
    "solar_open",
    (_SOLAR_BEGIN,),
    partial(_read, _Markers(_SOLAR_CALL, _SOLAR_MIDDLE, (_SOLAR_CALL_END,), (_SOLAR_END,), _take_solar)),
    CallLayout(
        start=_SOLAR_BEGIN,
        before=f"{_SOLAR_CALL}a1b2c3d4e5{_SOLAR_NAME}",
        middle=_SOLAR_MIDDLE,
        after=_SOLAR_CALL_END,
        between="",
        end=_SOLAR_END,
        call_id="a1b2c3d4e5",
        id_pattern="[a-z0-9]{10}",
    ),
    markers=(_SOLAR_BEGIN, _SOLAR_CALL, _SOLAR_NAME, _SOLAR_MIDDLE, _SOLAR_CALL_END, _SOLAR_END),
)
