"""The JSON values of parameters that a model writes as plain text, as in `<parameter=days>3</parameter>`.

The schema of the function decides the type: `3` is a number for an integer and text for a string. A value that fits no
type of its schema stays text, so that nothing is lost; the caller then sees what the model wrote.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_NESTED = 8
"""The number of schemas within schemas that are followed."""
_PLAIN = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""The Python types of the JSON types other than string."""


def json_of(text: str, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> str:
    """Return the JSON text of the value that a parameter's text stands for.

    Args:
        text: The text that the model wrote.
        schema: The JSON schema of the parameter; {} if it has none.
        root: The schema of all parameters, in which references (`#/$defs/...`) are found.
    """
    types = set(json_types(schema, root or schema))
    value = _value(text)
    if isinstance(value, str) or (types and not any(_is(value, name) for name in types)):
        value = text
    return _written(value)


def json_of_json(text: str) -> str:
    """Return the JSON text of a value that a model marks as JSON; text that is not JSON becomes a string."""
    try:
        return _written(_json(text))
    except (ValueError, RecursionError):
        return _written(_value(text))


def _written(value: Any) -> str:
    """Return the JSON text of a value."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # JSON's escapes can be halves of characters, which no encoding writes.
    return written if _is_encodable(written) else json.dumps(value)


def _is_encodable(text: str) -> bool:
    """Return whether a text has only whole characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def excludes_strings(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema names one type, and not string; a string that a model writes then stands for a value."""
    return isinstance(schema.get("type"), str) and schema["type"] in _TYPES


def _is(value: object, json_type: str) -> bool:
    """Return whether a value read from text has this JSON type; a float without a fraction is also an integer."""
    if isinstance(value, bool):
        return json_type == "boolean"
    if json_type == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(json_type, ()))


def _value(text: str) -> Any:
    """Return the value that a text is in JSON or in Python's notation, or the text itself if it is neither.

    A quoted string is returned with its quotes, because models write strings without them.
    """
    stripped = text.strip()
    if stripped in _PLAIN:
        return _PLAIN[stripped]
    for read in (_json, ast.literal_eval) if stripped[:1] in ("[", "{") else (_json,):
        try:
            value = read(stripped)
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return text if isinstance(value, str) else value
    return text


def _json(text: str) -> Any:
    """Read JSON; raise ValueError for NaN and infinities, which JSON lacks."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def json_types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = MAX_NESTED) -> Iterator[str]:
    """Yield the JSON types that a schema allows; none if it does not say.

    Args:
        schema: The schema.
        root: The schema in which references are found.
        depth: The number of schemas within the schema that are followed.
    """
    if depth == 0:
        return
    schema = resolved(schema, root)
    named = schema.get("type")
    yield from (each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str))
    if named is None:
        values = [*(schema["enum"] if isinstance(schema.get("enum"), list) else ()), *_const(schema)]
        yield from (_type_of(value) for value in values)
        if isinstance(schema.get("properties"), Mapping):
            yield "object"
    for key in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(key) or ():
            if isinstance(each, Mapping):
                yield from json_types(each, root, depth - 1)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema in which its own reference, or its only `allOf`, is replaced by what it refers to."""
    for _ in range(MAX_NESTED):
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            found = _referred(reference, root)
            rest = {key: value for key, value in schema.items() if key != "$ref"}
        elif isinstance(parts, list) and len(parts) == 1:
            found = parts[0]
            rest = {key: value for key, value in schema.items() if key != "allOf"}
        else:
            break
        schema = {**found, **rest} if isinstance(found, Mapping) else rest
    return schema


def _const(schema: Mapping[str, Any]) -> list[Any]:
    """Return the constant of a schema, if it has one."""
    return [schema["const"]] if "const" in schema else []


def _type_of(value: object) -> str:
    """Return the JSON type of a value."""
    if isinstance(value, str):
        return "string"
    return next(name for name in ("boolean", "integer", "number", "array", "object", "null") if _is(value, name))


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema to which a local reference refers, or None."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
