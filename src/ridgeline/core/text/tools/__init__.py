"""Tool calls: what a model writes to have a function called, in the format that its template has.

`tool_formats.py` has the formats, `tool_parser.py` takes calls out of a response while it comes, `call_reader.py` and
`json_scanner.py` read one call, and `forced_calls.py` writes the grammar that makes a model call.
`core/text/template_probe.py` finds a template's format.
"""

from ridgeline.core.text.tools.forced_calls import Function, forced_calls
from ridgeline.core.text.tools.tool_formats import FORMATS, ToolFormat, format_named
from ridgeline.core.text.tools.tool_parser import CallDelta, ToolDelta, ToolParser

__all__ = [
    "FORMATS",
    "CallDelta",
    "Function",
    "ToolDelta",
    "ToolFormat",
    "ToolParser",
    "forced_calls",
    "format_named",
]
