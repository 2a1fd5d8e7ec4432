"""The tool calls of Mistral's models: a JSON list, or in newer models a name and its arguments after a marker."""

from dataclasses import replace

from ridgeline.core.text.tools.call_reader import Reader, after_blanks, one_of, read_arguments, read_call, until
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


def _read(new: NewCall, _opening: str) -> Reader:
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
