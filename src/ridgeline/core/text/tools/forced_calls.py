"""Grammars that force a model to call functions in its own format, in llguidance's Lark syntax."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ridgeline.core.text.json_form import JSON_LAYOUT
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.tool_formats import ToolFormat
from ridgeline.core.text.vocabulary import literal_pattern


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model can call."""

    name: str
    """The name of the function."""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """The JSON schema of the arguments, an object."""


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
    """
    layout, literal = tool_format.layout, partial(_literal, tool_format, tokenizer)
    names = [f"call_{index}" for index in range(len(functions))]
    more = f" ({literal(layout.between)} call)*" if several and layout.between is not None else ""
    calls = " ".join(filter(None, (literal(layout.start), "call")))
    rules = [
        f"start: calls{'' if or_schema is None else ' | answer'}",
        f"calls: {calls}{more} {literal(layout.end)}",
        f"call: {' | '.join(names)}",
    ]
    if or_schema is not None:
        rules.append(f"answer: %json {_guided(json.loads(or_schema))}")
    for index, function in enumerate(functions):
        name = json.dumps(function.name, ensure_ascii=False)[1:-1] if layout.before else function.name
        before = literal(layout.before + name + layout.middle)
        rules.append(f"call_{index}: {before} arguments_{index} {literal(layout.after)}")
        rules.append(f"arguments_{index}: %json {_guided(function.parameters)}")
    return "\n".join(rules) + "\n"


def _guided(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as text with the engine's layout of JSON, which the schema cannot override."""
    return json.dumps({**schema, "x-guidance": JSON_LAYOUT}, ensure_ascii=False)


def _literal(tool_format: ToolFormat, tokenizer: Tokenizer, text: str) -> str:
    """Return a text in Lark syntax: markers that are tokens as their ids, the rest in quotes."""
    control = [marker for marker in tool_format.markers if marker in tokenizer.control]
    written: list[str] = []
    end = 0
    for match in re.finditer(literal_pattern(control), text):
        written += [_quoted(text[end : match.start()]), f"<[{tokenizer.control[match[0]]}]>"]
        end = match.end()
    return " ".join(filter(None, (*written, _quoted(text[end:]))))


def _quoted(text: str) -> str:
    """Return a text in quotes, or "" if it is empty."""
    return json.dumps(text, ensure_ascii=False) if text else ""
