"""Tool calls: the formats in which models call functions, parsers for them, and grammars that force a call.

`tool_formats.py` defines the formats, `tool_parser.py` extracts calls from a streamed response, `call_reader.py` and
`json_scanner.py` read one call, and `forced_calls.py` writes the grammar that forces calls.
`core/text/template_probe.py` detects the format of a template.
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
