"""Tool calls: the formats in which models call functions, parsers for them, and grammars that force a call.

`formats/` has one module for each family of formats, `tool_formats.py` lists them, and `tool_format.py` says what a
format is. `tool_parser.py` extracts calls from a streamed response; `call_reader.py`, `json_scanner.py`,
`literal_reader.py` and `parameter_values.py` read one call. `forced_calls.py` and `call_grammar.py` write the grammar
that forces calls, and `schema_grammar.py` its part for arguments that are not JSON. `tag_style.py`, `tag_reader.py` and
`tagged_parameters.py` describe, read and force parameters between tags. `json_schema.py` resolves the references of a
function's schema and finds the types in it. `core/text/template_probe.py` detects the format of a template.
"""

from ridgeline.core.text.tools.forced_calls import forced_calls
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.tool_format import ToolFormat
from ridgeline.core.text.tools.tool_formats import ALL_FORMATS, FORMATS, format_named
from ridgeline.core.text.tools.tool_parser import CallDelta, ToolDelta, ToolParser

__all__ = [
    "ALL_FORMATS",
    "FORMATS",
    "CallDelta",
    "Function",
    "ToolDelta",
    "ToolFormat",
    "ToolParser",
    "forced_calls",
    "format_named",
]
