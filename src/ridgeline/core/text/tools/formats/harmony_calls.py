"""The tool calls of gpt-oss: a message in the harmony format whose recipient is a function.

The recipient stands before or after the channel, as `to=functions.NAME`. ReasoningSplitter shortens the header of such
a message to the recipient.
"""

import re

from ridgeline.core.text.tools.call_reader import Reader, expect, read_arguments, until
from ridgeline.core.text.tools.json_scanner import Malformed
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat

_NAME = re.compile(r"[^\s<]+")


def _read(new: NewCall, _opening: str) -> Reader:
    """Read the rest of a message's header after `to=functions.`, and the arguments."""
    header = yield from until("<|message|>")
    name = _NAME.match(header)
    if name is None:
        raise Malformed
    sink = new()
    sink.take_name(name[0])
    yield from read_arguments(sink)
    sink.end()
    yield from expect("<|call|>")


HARMONY = ToolFormat(
    "openai",
    ("<|channel|>commentary to=functions.", " to=functions."),
    _read,
    CallLayout(
        start="",
        before="<|channel|>commentary to=functions.",
        middle=" <|constrain|>json<|message|>",
        after="",
        between=None,
        end="<|call|>",
    ),
    markers=("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"),
    may_omit_arguments=True,
)
