"""The grammar that makes a model call functions, in its own format: Lark as llguidance reads it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ridgeline.core.text.json_form import JSON_FORM
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.tool_formats import ToolFormat
from ridgeline.core.text.vocabulary import literal_pattern


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called. parameters: the JSON schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


def forced_calls(
    tool_format: ToolFormat,
    functions: Sequence[Function],
    tokenizer: Tokenizer,
    *,
    several: bool = True,
    or_schema: str | None = None,
) -> str:
    """A grammar of one call or, where `several` are wanted and the format has them, more. or_schema: the answer may be
    JSON of this schema instead.
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
    """A schema as text, with how its JSON is written; it cannot ask for less than it says."""
    return json.dumps({**schema, "x-guidance": JSON_FORM}, ensure_ascii=False)


def _literal(tool_format: ToolFormat, tokenizer: Tokenizer, text: str) -> str:
    """A text as Lark has it: markers that are tokens by their ids, the rest in quotes."""
    control = [marker for marker in tool_format.markers if marker in tokenizer.control]
    written: list[str] = []
    end = 0
    for match in re.finditer(literal_pattern(control), text):
        written += [_quoted(text[end : match.start()]), f"<[{tokenizer.control[match[0]]}]>"]
        end = match.end()
    return " ".join(filter(None, (*written, _quoted(text[end:]))))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
