"""Grammars of values in a notation of tool calls that is not JSON, from the JSON schemas of the values.

The walk over a schema is the same in every notation, which says how a string, a key or a word is written. What a
notation does not express of a schema (such as `allOf` or a pattern) is written as JSON, so the readers of these
notations must accept JSON values too.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ridgeline.core.text.tools.call_grammar import CallGrammar
from ridgeline.core.text.tools.json_schema import referred

Schema = Mapping[str, Any]

_NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(
        {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"}
        | {"maxContains", "unevaluatedItems"}
    ),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
        | {"maxProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"}
    ),
}
"""The types of JSON, with the keywords that restrict only values of that type."""
_KEYWORDS = frozenset().union(
    *_OF_TYPE.values(),
    {"type", "enum", "const", "$ref", "$dynamicRef", "anyOf", "allOf", "oneOf", "not", "if", "then", "else"},
)
"""All keywords that restrict values; the others describe them."""
_MAX_LEAST = 256  # the most characters that a string of the notation must have: llguidance refuses thousands
_PLAIN_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


class Notation(ABC):
    """The way in which a format writes the values of arguments."""

    separator: ClassVar[str]
    """The text between two items or members."""
    key_end: ClassVar[str]
    """The text between a key and its value."""
    words: ClassVar[Mapping[bool | None, str]]
    """The words for None, True and False."""
    sorts_keys: ClassVar[bool]
    """Whether members are written in the order of their keys instead of the schema's."""
    objects: ClassVar[tuple[str, str] | None]
    """The text before and after the members of an object, or None if objects are written as JSON."""

    @abstractmethod
    def string(self, grammar: CallGrammar, name: str, least: int, most: int | None) -> str:
        """Return the expression of any string of a length, for which it adds a rule of this name.

        Args:
            grammar: The grammar to extend.
            name: The name of the rule.
            least: The least number of characters.
            most: The most characters, or None for no bound.
        """

    @abstractmethod
    def constant(self, text: str) -> str | None:
        """Return how a string is written, or None if it must be JSON."""

    @abstractmethod
    def key(self, key: str) -> str | None:
        """Return how a key is written, or None if it cannot be written."""


class SchemaGrammar:
    """The rules of the values of one function's arguments."""

    def __init__(self, grammar: CallGrammar, name: str, root: Schema, notation: Notation) -> None:
        """Start without rules.

        Args:
            grammar: The grammar to extend.
            name: The beginning of the rules' names.
            root: The schema in which references are found.
            notation: The notation of the values.
        """
        self._grammar, self._name, self._root, self._notation = grammar, name, root, notation
        self._count = 0
        self._shared: dict[str, str] = {}  # rules by reference, and the rule of any value as ""

    def members(self, schema: Schema) -> str:
        """Add the rules of an object's members without the text around them, and return their expression.

        Raises:
            ValueError: If the notation cannot express the schema.
        """
        schema = self._resolved(schema)
        check_parameters(schema)
        if schema.get("additionalProperties") is False and not self._are_declared(schema):
            raise ValueError("a required parameter is not allowed: add it to properties")
        written = self._members(schema)
        if written is None:
            raise ValueError(
                "a parameter's name cannot be written in this model's calls: use letters, digits and underscores"
            )
        return written

    def value(self, schema: Any) -> str:
        """Add the rules of a value, and return the name of their rule.

        Raises:
            ValueError: If a part is no schema, or parts that are written as JSON repeat too many definitions.
        """
        if schema is True or (isinstance(schema, Mapping) and not _used(schema)):
            return self._rule_of("", {"type": [kind for kind in _OF_TYPE if kind != "integer"]})
        if not isinstance(schema, Mapping):
            return self._json({"not": {}} if schema is False else schema)
        if isinstance(schema.get("$ref"), str) and _used(schema) <= {"$ref", "type"}:
            found = referred(schema["$ref"], self._root)
            return self._json(schema) if found is None else self._rule_of(schema["$ref"], found)
        written = self._native(schema) if is_readable(schema) else None
        return self._json(schema) if written is None else self._grammar.add(self._new_name(), written)

    # -- kinds of schemas ---------------------------------------------------------------------------------------------

    def _native(self, schema: Schema) -> str | None:
        """Return the expression of a value in the notation, or None if it must be JSON."""
        used = _used(schema)
        if used & {"enum", "const"}:
            return self._constants(schema) if used <= {"enum", "const", "type"} else None
        if used == {"anyOf"}:
            return " | ".join(self.value(each) for each in schema["anyOf"])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            parts = [{key: schema[key] for key in used & (_OF_TYPE.get(kind, set()))} for kind in kinds]
            other = used - {"type"}.union(*(_OF_TYPE.get(kind, set()) for kind in kinds))
            typed = [{**part, "type": kind} for part, kind in zip(parts, kinds, strict=True)]
            return " | ".join(map(self.value, typed)) if typed and not other else None
        used -= {"type"}
        if kinds == "string":
            is_short = schema.get("minLength", 0) <= _MAX_LEAST
            return self._string(schema) if is_short and used <= {"minLength", "maxLength"} else None
        if kinds in ("integer", "number") and used <= _NUMERIC:
            return self._grammar.json({key: schema[key] for key in used | {"type"}})
        if kinds == "array":
            return self._array(schema) if used <= {"items", "minItems", "maxItems"} else None
        if kinds == "object" and self._notation.objects is not None:
            return self._object(schema) if used <= {"properties", "required", "additionalProperties"} else None
        if kinds in ("boolean", "null") and not used:
            words = [self._notation.words[value] for value in ((None,) if kinds == "null" else (True, False))]
            return " | ".join(map(self._grammar.literal, words))
        return None

    def _string(self, schema: Schema) -> str:
        """Return the rule of all strings of a length."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        bounds = f"{least} {most}"  # references begin with #
        if bounds not in self._shared:
            self._shared[bounds] = self._notation.string(self._grammar, self._new_name(), least, most)
        return self._shared[bounds]

    def _array(self, schema: Schema) -> str | None:
        """Return the expression of a list, or None if it must be JSON."""
        items, least, most = schema.get("items", True), schema.get("minItems", 0), schema.get("maxItems")
        if items is False or most == 0:
            return None
        item, separator = self.value(items), self._grammar.literal(self._notation.separator)
        bounds = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        some = f"{item} ({separator} {item}){{{bounds}}}"
        return f'"[" {some} "]"' if least else f'"[" ({some})? "]"'

    def _object(self, schema: Schema) -> str | None:
        """Return the expression of an object, or None if it must be JSON."""
        assert self._notation.objects is not None
        written, (opening, closing) = self._members(schema), map(self._grammar.literal, self._notation.objects)
        return None if written is None else f"{opening} {written} {closing}"

    def _members(self, schema: Schema) -> str | None:
        """Return the expression of an object's members, or None if a key cannot be written or is not allowed."""
        properties, required = dict(schema.get("properties", {})), dict.fromkeys(schema.get("required", []))
        others = schema.get("additionalProperties", True)
        if others is False and not self._are_declared(schema):
            return None
        for key in required:
            properties.setdefault(key, others)
        keys = sorted(properties, key=str.lower) if self._notation.sorts_keys else list(properties)
        written = {key: name for key in keys if (name := self._notation.key(key)) is not None}
        if len(written) < len(keys):
            return None
        separator, add = self._grammar.literal(self._notation.separator), self._grammar.add
        first = rest = ""
        if others is not False:
            more = f"{self._other_key(keys)} {self.value(others)}"
            first, rest = f"({more} ({separator} {more})*)?", f"({separator} {more})*"
        for key in reversed(keys):
            name = self._grammar.literal(written[key] + self._notation.key_end)
            pair = add(self._new_name(), name, self.value(properties[key]))
            if key in required:
                first, rest = f"{pair} {rest}", f"{separator} {pair} {rest}"
            else:
                first = f"{pair} {rest} | {first}" if first else f"({pair} {rest})?"
                rest = f"({separator} {pair})? {rest}"
            first, rest = add(self._new_name(), first), add(self._new_name(), rest)
        return first

    @staticmethod
    def _are_declared(schema: Schema) -> bool:
        """Return whether all required members of an object are among its properties."""
        return set(schema.get("properties", {})).issuperset(schema.get("required", []))

    def _other_key(self, but: Sequence[str]) -> str:
        """Return the expression of any key except some; it is a plain name, which every notation can write."""
        taken = "|".join(key for key in but if _PLAIN_KEY.fullmatch(key))
        name = self._grammar.add(
            self._new_name().upper(), f"/{_PLAIN_KEY.pattern}/", f"& ~/({taken})/" if taken else ""
        )
        return f"{name} {self._grammar.literal(self._notation.key_end)}"

    def _constants(self, schema: Schema) -> str | None:
        """Return the expression of the values that a schema lists; None if they may not fit the schema's type."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        kind = {"string": str, "integer": int, "boolean": bool}.get(str(schema.get("type")))
        fits = "type" not in schema or all(type(value) is kind for value in values)
        if not (fits and all(isinstance(value, str | int | None) for value in values) and values):
            return None
        written = [self._constant(value) for value in values]
        return None if None in written or {"enum", "const"} <= schema.keys() else " | ".join(map(str, written))

    def _constant(self, value: str | int | None) -> str | None:
        """Return the expression of one value, or None if it must be JSON."""
        if isinstance(value, str):
            text = self._notation.constant(value)
        elif value is None or isinstance(value, bool):
            text = self._notation.words[value]
        else:
            text = str(value)
        return None if text is None else self._grammar.literal(text)

    # -- rules --------------------------------------------------------------------------------------------------------

    def _new_name(self) -> str:
        """Return a name for a new rule."""
        self._count += 1
        return f"{self._name}_{self._count}"

    def _rule_of(self, reference: str, schema: Any) -> str:
        """Return the rule of a schema to which several parts refer, which may include itself."""
        if reference not in self._shared:
            self._shared[reference] = name = self._new_name()
            self._grammar.add(name, self.value(schema))
        return self._shared[reference]

    def _json(self, schema: Any) -> str:
        """Add the rule of a value that is written as JSON."""
        if not isinstance(schema, Mapping):
            raise ValueError(f"{str(schema)[:64]} is no JSON schema: give an object or a boolean")
        return self._grammar.add(self._new_name(), self._grammar.json_part(schema, self._root))

    def _resolved(self, schema: Schema) -> Schema:
        """Return a schema of parameters, or the schema to which it only refers."""
        if isinstance(schema.get("$ref"), str) and _used(schema) <= {"$ref", "type"}:
            found = referred(schema["$ref"], self._root)
            return found if isinstance(found, Mapping) else schema
        return schema


def check_parameters(schema: Schema) -> None:
    """Check that a schema of all parameters says nothing that a notation of separate parameters cannot express.

    Raises:
        ValueError: If it does.
    """
    refused = _used(schema) - {"type", "properties", "required", "additionalProperties"}
    if refused or not is_readable(schema):
        name = min(refused, default="a keyword")
        raise ValueError(f"{name} of all parameters cannot be enforced in this model's calls: leave it out")


def _used(schema: Schema) -> set[str]:
    """Return the keywords of a schema that restrict values."""
    return set(_KEYWORDS & schema.keys())


def is_readable(schema: Schema) -> bool:
    """Return whether the keywords that a notation can express have values of the right types."""
    return (
        all(type(schema.get(key, 0)) is int and schema.get(key, 0) >= 0 for key in _COUNTS)
        and all(isinstance(schema.get(key, True), bool | Mapping) for key in ("items", "additionalProperties"))
        and isinstance(schema.get("properties", {}), Mapping)
        and all(isinstance(schema.get(key, [""]), list) for key in ("required", "enum", "anyOf", "oneOf", "allOf"))
        and all(isinstance(key, str) for key in schema.get("required", []))
        and bool(schema.get("anyOf", [True]))
        and (not isinstance(kinds := schema.get("type"), list) or all(isinstance(kind, str) for kind in kinds))
    )
