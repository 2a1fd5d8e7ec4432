"""Tool calls: what a model writes to have a function called, in the format that its template has.

`formats.py` has the formats, `parser.py` takes calls out of a response while it comes, `call.py` and `json_scanner.py`
read one call, and `forced.py` writes the grammar that makes a model call. `text/template_probe.py` finds a template's
format.
"""

from ridgeline.text.tools.forced import Function, forced_calls
from ridgeline.text.tools.formats import FORMATS, ToolFormat, format_named
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
]
