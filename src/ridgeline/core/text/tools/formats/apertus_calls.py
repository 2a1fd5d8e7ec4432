"""The tool calls of Apertus: a list of objects of which each has the function's name as its only key."""

from ridgeline.core.text.tools.call_reader import Reader, expect, one_of, read_arguments, read_string
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_BEGIN, _END = "<|tools_prefix|>", "<|tools_suffix|>"


def _read(new: NewCall, _opening: str) -> Reader:
    """Read a list of objects that map a function's name to its arguments."""
    yield from expect("[")
    while True:
        sink = new()
        yield from expect("{")
        yield from expect('"')
        sink.take_name((yield from read_string()))
        yield from expect(":")
        yield from read_arguments(sink)
        sink.end()
        yield from expect("}")
        if (yield from one_of((",", "]"))) == "]":
            break
    yield from expect(_END)


APERTUS = ToolFormat(
    "apertus",
    (_BEGIN,),
    _read,
    CallLayout(start=f"{_BEGIN}[", before='{"', middle='": ', after="}", between=", ", end=f"]{_END}"),
    markers=(_BEGIN, _END),
)
