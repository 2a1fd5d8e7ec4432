"""The formats in which models write tool calls, one family of models in each module.

Each module has a small generator that reads the calls and a `ToolFormat` that describes the text around them.
`core/text/tools/tool_formats.py` lists them by name.
"""
