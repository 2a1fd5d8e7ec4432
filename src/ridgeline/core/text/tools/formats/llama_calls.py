"""The tool calls of Llama 3: a JSON object that is the whole response, with or without a leading marker."""

from ridgeline.core.text.tools.call_reader import Reader, one_of, read_call
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


def _read(new: NewCall, _opening: str) -> Reader:
    """Read Llama's tool calls, which are separated by a semicolon, or by nothing (Llama 4)."""
    first = ""
    while True:
        yield from read_call(new(), ("parameters", "arguments"), first)
        first = yield from one_of((";", "{"))
        first = "" if first == ";" else first


LLAMA3_JSON = ToolFormat(
    "llama3_json",
    ("<|python_tag|>",),
    _read,
    CallLayout(start="", before='{"name": "', middle='", "parameters": ', after="}", between=None, end=""),
    markers=("<|python_tag|>",),
    bare="{",
)
