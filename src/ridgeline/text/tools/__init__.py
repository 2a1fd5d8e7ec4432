"""Tool calls: what a model writes to have a function called, in the format that its template has.

`formats.py` says which formats there are and finds a template's, `parser.py` takes calls out of an answer while it
comes, `call.py` and `json_scanner.py` read one call, `forced.py` writes the grammar that makes a model call, and
`messages.py` puts calls and their results back into a conversation.
"""

from ridgeline.text.tools.forced import Function, forced_calls
from ridgeline.text.tools.formats import FORMATS, ToolFormat, format_named, format_of
from ridgeline.text.tools.messages import with_calls
from ridgeline.text.tools.parser import CallDelta, ToolDelta, ToolParser

__all__ = [
    "FORMATS",
    "CallDelta",
    "Function",
    "ToolDelta",
    "ToolFormat",
    "ToolParser",
    "forced_calls",
    "format_named",
    "format_of",
    "with_calls",
]
