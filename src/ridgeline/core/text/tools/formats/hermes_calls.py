"""The Hermes format of tool calls: a JSON object between tags. Qwen, Granite 4 and many others write it."""

from ridgeline.core.text.tools.call_reader import Reader, expect, read_call
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


def _read(new: NewCall, _opening: str) -> Reader:
    """Read one tool call in the Hermes format, and its closing tag."""
    yield from read_call(new(), ("arguments", "parameters"))
    yield from expect("</tool_call>")


HERMES = ToolFormat(
    "hermes",
    ("<tool_call>",),
    _read,
    CallLayout(
        start="<tool_call>\n",
        before='{"name": "',
        middle='", "arguments": ',
        after="}",
        between="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
    ),
    markers=("<tool_call>", "</tool_call>"),
)
