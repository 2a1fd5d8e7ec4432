"""Grammars that force a model to call functions in its own format, in llguidance's Lark syntax."""

import json
from collections.abc import Sequence

from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.call_grammar import CallGrammar
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.tool_format import CallLayout, ToolFormat


def forced_calls(
    tool_format: ToolFormat,
    functions: Sequence[Function],
    tokenizer: Tokenizer,
    *,
    several: bool = True,
    or_schema: str | None = None,
) -> str:
    """Return the grammar of a response that consists of tool calls.

    Args:
        tool_format: Format of the model's tool calls.
        functions: Functions that the model can call.
        tokenizer: Tokenizer that knows which markers are tokens.
        several: Whether more than one call is allowed, if the format supports it.
        or_schema: JSON schema of a response that is allowed instead of calls.

    Raises:
        ValueError: If the format cannot enforce the parameters of a function.
    """
    layout, grammar = tool_format.layout, CallGrammar(tokenizer, tool_format.markers)
    names = [f"call_{index}" for index in range(len(functions))]
    grammar.add("start", "calls" if or_schema is None else "calls | response")
    more = several and layout.between is not None
    others = f"({grammar.literal(layout.between or '')} call)*" if more else ""
    grammar.add("calls", grammar.literal(layout.start), "call", others, grammar.literal(layout.end))
    grammar.add("call", " | ".join(names))
    if or_schema is not None:
        grammar.add("response", grammar.json(json.loads(or_schema)))
    for index, (name, function) in enumerate(zip(names, functions, strict=True)):
        try:
            arguments = tool_format.arguments(grammar, f"arguments_{index}", function)
        except ValueError as error:
            raise ValueError(f"function {function.name}: {error}") from None
        grammar.add(name, _header(grammar, layout, function.name), arguments, grammar.literal(layout.after))
    return str(grammar)


def _header(grammar: CallGrammar, layout: CallLayout, name: str) -> str:
    """Return the text from the start of a call to its arguments in Lark syntax; the model chooses the call's id."""
    if not layout.call_id:
        return grammar.literal(layout.before + name + layout.middle)
    start, own, after_id = layout.before.partition(layout.call_id)
    if own:
        parts = (start, after_id + name + layout.middle)
    else:
        start, _, after_id = layout.middle.partition(layout.call_id)
        parts = (layout.before + name + start, after_id)
    return f" /{layout.id_pattern}/ ".join(map(grammar.literal, parts))
