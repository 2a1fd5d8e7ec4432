"""The tool calls of Functionary v3.1 and of Llama 3.1's custom functions: a tag with the name around JSON arguments."""

from ridgeline.core.text.tools.call_reader import Reader, expect, read_arguments, until
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_BEGIN, _END = "<function=", "</function>"


def _read(new: NewCall, _opening: str) -> Reader:
    """Read one tool call from its name on, and its closing tag."""
    sink = new()
    sink.take_name((yield from until(">")).strip())
    yield from read_arguments(sink)
    sink.end()
    yield from expect(_END)


FUNCTIONARY = ToolFormat(
    "functionary",
    (_BEGIN,),
    _read,
    CallLayout(start="", before=_BEGIN, middle=">", after=_END, between="", end=""),
)
