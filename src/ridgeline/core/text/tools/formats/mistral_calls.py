"""The tool calls of Mistral's models: a JSON list, or in newer models a name and its arguments after a marker."""

from collections.abc import Generator
from dataclasses import replace

from ridgeline.core.text.tools.call_reader import Reader, after_blanks, one_of, read_arguments, read_call
from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_MAX_HEADER = 300  # characters


def _read_header(header: str) -> Generator[None, str, tuple[str, str]]:
    """Read up to `[ARGS]` or a brace; return what precedes it, and the brace if it has been read.

    `header` is the first character.
    """
    while not header.endswith("[ARGS]"):
        c = yield
        if c == "{":
            return header, c
        header += c
        if len(header) > _MAX_HEADER:
            raise Malformed
    return header.removesuffix("[ARGS]"), ""


def _read(new: NewCall, _opening: str) -> Reader:
    """Read Mistral's tool calls: a list, or a newer `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`.

    Some models leave out `[ARGS]`.
    """
    first = yield from after_blanks()
    if first != "[":
        header, brace = yield from _read_header(first)
        sink = new()
        sink.take_name(header.partition("[CALL_ID]")[0].strip())
        yield from read_arguments(sink, brace)
        sink.end()
        return
    while True:
        yield from read_call(new(), ("arguments", "parameters"))
        if (yield from one_of((",", "]"))) == "]":
            return


MISTRAL = ToolFormat(
    "mistral",
    ("[TOOL_CALLS]",),
    _read,
    CallLayout(start="[TOOL_CALLS][", before='{"name": "', middle='", "arguments": ', after="}", between=", ", end="]"),
    markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    short_ids=True,
)
MISTRAL_ARGS = replace(
    MISTRAL, layout=CallLayout(start="", before="[TOOL_CALLS]", middle="[ARGS]", after="", between="", end="")
)
