"""The tool calls of DeepSeek V3.1: a name and its arguments between markers of the vocabulary."""

from ridgeline.core.text.tools.call_reader import expect, one_of, read_arguments, until
from ridgeline.core.text.tools.tool_format import CallLayout, Calls, NewCall, ToolFormat

_BEGIN, _CALL, _MIDDLE = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"


def _read(new: NewCall, _opening: str) -> Calls:
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


DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    (_BEGIN,),
    _read,
    CallLayout(
        start=_BEGIN + _CALL, before="", middle=_MIDDLE, after="", between=_CALL_END + _CALL, end=_CALL_END + _END
    ),
    markers=(_BEGIN, _CALL, _MIDDLE, _CALL_END, _END),
)
