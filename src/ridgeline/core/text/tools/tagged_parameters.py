"""The grammar of parameters that are text between tags: what it allows is read back as valid for the schema.

A string is any text without its closing tag, an enum is one of its literals, and every other value is JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ridgeline.core.text.tools.call_grammar import CallGrammar, pattern_of
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_schema import MAX_NESTED, MAX_PARTS, branches, json_types, resolved
from ridgeline.core.text.tools.schema_grammar import check_parameters, is_readable
from ridgeline.core.text.tools.tag_style import AS_JSON, AS_TEXT, CDATA, TagStyle

_BLANKS = r"[\s\x1c-\x1f]*"  # what Python's str.strip removes
_LIKE_NUMBERS, _LIKE_LISTS = rf"{_BLANKS}-?[0-9](?s:.*)", rf"{_BLANKS}[\[{{](?s:.*)"
_MAX_EXACT = 1000  # characters
_KEY = "[A-Za-z_][A-Za-z0-9_-]{0,63}"


@dataclass(frozen=True, slots=True)
class _Value:
    """A kind of value that a schema allows."""

    kind: Literal["text", "literal", "json"]
    """Whether the value is text, exactly one text, or JSON."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The schema of texts or of JSON."""
    literal: str = ""
    """The one text."""
    is_string: bool = True
    """Whether the value is a string."""


def tagged_parameters(style: TagStyle, grammar: CallGrammar, name: str, function: Function) -> str:
    """Add the rules of a call's parameters, and return the name of the first rule.

    Required parameters have the order of the schema. Optional ones can be left out. Parameters that the schema does not
    describe are only allowed if it says so (`additionalProperties`).

    Args:
        style: Literals of the format.
        grammar: The grammar to extend.
        name: The name of the rule.
        function: The function that is called.

    Raises:
        ValueError: If the schema is wrong, too large for a grammar, or cannot be enforced in this notation.
    """
    schema = resolved(function.parameters, function.parameters)
    check_parameters(schema)
    properties, required = dict(schema.get("properties", {})), schema.get("required", [])
    further = schema.get("additionalProperties")
    for key in required:
        properties.setdefault(key, further)
    parts = []
    for index, (key, each) in enumerate(properties.items()):
        rule = _parameter(style, grammar, f"{name}_{index}", grammar.literal(key), _Schema(each, function))
        parts.append(rule if key in required else f"{rule}?")
    if further is True or isinstance(further, Mapping):
        keys = grammar.terminal(f"/{_KEY}/", *(f"~/{pattern_of(key)}/" for key in properties))
        parts.append(f"{_parameter(style, grammar, f'{name}_further', keys, _Schema(further, function))}*")
    return grammar.add(name, *(parts or ['""']))


class _Schema:
    """The schema of one parameter, with that of all parameters, in which its references are found."""

    def __init__(self, schema: object, function: Function) -> None:
        self.root = function.parameters
        self.own: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        self.types = json_types(self.own, self.root)
        self._parts = 0  # schemas within the schema that have been read

    def values(self) -> Sequence[_Value]:
        """Return the kinds of values that the schema allows; texts make literals that are strings redundant.

        Raises:
            ValueError: If the schema has too many branches.
        """
        found = list(self._values(self.own, MAX_NESTED))
        if any(value.kind == "text" for value in found):
            found = [value for value in found if value.kind != "literal" or not value.is_string]
        return found

    def _values(self, schema: Mapping[str, Any], depth: int) -> Iterator[_Value]:
        """Yield the kinds of values that a schema allows."""
        self._parts += 1
        if self._parts > MAX_PARTS:  # branches can refer to the schema that has them
            raise ValueError(f"anyOf and oneOf of a parameter have more than {MAX_PARTS} branches: give fewer")
        whole, schema = schema, resolved(schema, self.root)
        types = json_types(schema, self.root)
        inner = list(branches(schema, "anyOf", "oneOf"))
        if types and "string" not in types:
            yield _Value("json", whole, is_string=False)
        elif isinstance(schema.get("enum"), list) or "const" in schema:
            for value in [schema["const"]] if "const" in schema else schema["enum"]:
                is_string = isinstance(value, str)
                yield _Value("literal", literal=value if is_string else json.dumps(value), is_string=is_string)
        elif not is_readable(schema):
            raise ValueError("a keyword of a parameter has a value of a wrong type: correct its schema")
        elif inner and depth:
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
            for branch in inner:
                yield from self._values({**rest, **branch}, depth - 1)
        else:
            yield _Value("text", schema)
            if others := sorted(types - {"string"}):
                yield _Value("json", {**schema, "type": others}, is_string=False)


def _parameter(style: TagStyle, grammar: CallGrammar, name: str, key: str, schema: _Schema) -> str:
    """Add the rule of one parameter, and return its name.

    Args:
        style: Literals of the format.
        grammar: The grammar to extend.
        name: The name of the rule.
        key: The key of the parameter in Lark syntax.
        schema: The schema of the parameter.
    """
    before = grammar.literal(style.parameter + style.quote)
    value_tag = style.separator + style.value if style.value else ""
    ways = []
    for value in schema.values():
        attribute = (AS_TEXT if value.is_string else AS_JSON) if style.typed else ""
        after = grammar.literal(style.quote + attribute + style.key_end + value_tag + style.margin)
        ways.append(" ".join(filter(None, (before, key, after, _written(style, grammar, value, schema)))))
    return grammar.add(name, f"({' | '.join(ways)})", grammar.literal(style.separator))


def _written(style: TagStyle, grammar: CallGrammar, value: _Value, schema: _Schema) -> str:
    """Return the expression for a value and its closing tag."""
    closing = style.margin + style.value_end
    if value.kind == "literal":
        return grammar.literal(value.literal + closing)
    if value.kind == "json":
        return f"{grammar.json_part(value.schema, schema.root)} {grammar.literal(closing)}"
    tags = (rf"(?s:.*){pattern_of(style.value_end)}", *_ends_unclosed(style))
    excluded = () if style.typed else _read_as_other(schema.types)
    if not style.cdata:
        return _text(grammar, closing, value.schema, tags, excluded)
    plain = _text(grammar, closing, value.schema, (*tags, r"(?s:.*)[<&\n](?s:.*)<"), excluded)
    end = CDATA[1] + style.value_end
    section = _text(grammar, end, value.schema, (f"(?s:.*){pattern_of(end)}",), excluded)
    return f"({plain} | {grammar.literal(CDATA[0])} {section})"


def _ends_unclosed(style: TagStyle) -> tuple[str, ...]:
    """Return expressions for the texts in which the reader would find the end of a parameter (`TagStyle.unclosed`)."""
    if style.section is None:
        return ()
    ends = rf"(?s:.*){pattern_of(style.call_end)}\s*{pattern_of(style.section[1])}"
    key = rf"((?s:.*)\n)?{pattern_of(style.parameter)}[^<>\n]+{pattern_of(style.key_end)}"
    return (ends, key) if style.margin else (ends,)


def _read_as_other(types: set[str]) -> tuple[str, ...]:
    """Return expressions for the texts that could be read as values of types other than strings."""
    if "string" not in types:
        return ()
    numbers, lists = types & {"integer", "number"}, types & {"array", "object"}
    return (*((_LIKE_NUMBERS,) if numbers else ()), *((_LIKE_LISTS,) if lists else ()))


def _text(
    grammar: CallGrammar, closing: str, schema: Mapping[str, Any], tags: Sequence[str], excluded: Sequence[str]
) -> str:
    """Return the expression for a text and its closing tag.

    Args:
        grammar: The grammar to extend.
        closing: The closing tag, after the line break before it if there is one.
        schema: The schema of the string, whose keywords have been checked (`is_readable`).
        tags: Regular expressions of beginnings with tags that the text cannot have before its closing tag.
        excluded: Regular expressions that the text does not match.
    """
    # One terminal has both the text and its end: the longest match could not stop before a tag of its own.
    before, rest = grammar.split(closing)
    end = pattern_of(before)
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    length = f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"
    # llguidance gives up on long texts from which several expressions are excluded, so these have no tags at all.
    is_long = max(least, most or 0) > _MAX_EXACT
    parts = [f"/{'[^<]' if is_long else '(?s:.)'}{length}{end}/"]
    if isinstance(schema.get("pattern"), str):
        parts.append(f"/{_unanchored(schema['pattern'])}{end}/")
    after = "(?s:.*)" if rest else "(?s:.+)"
    unfit = (*(() if is_long else (tag + (after if at == 0 else "(?s:.*)") for at, tag in enumerate(tags))), *excluded)
    return " ".join(filter(None, (grammar.terminal(*parts, *(f"~/{each}/" for each in unfit)), rest)))


def _unanchored(pattern: str) -> str:
    """Return a schema's pattern as an expression for the whole text, without the delimiter of Lark."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    body = pattern[begins : len(pattern) - ends]
    body = re.sub(r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), body, flags=re.DOTALL)
    return ("" if begins else "(?s:.*)") + f"(?:{body})" + ("" if ends else "(?s:.*)")
