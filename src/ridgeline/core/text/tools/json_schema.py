"""The parts of a JSON schema to which its references refer, and the types of the values that it allows."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

MAX_NESTED = 8
"""The number of references and schemas within schemas that are followed."""
MAX_PARTS = 256
"""The number of schemas within a schema that are read for its types."""
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""The Python types of the JSON types other than string."""
_TYPE_NAMES: Mapping[str, str] = {
    "bool": "boolean",
    "dict": "object",
    "float": "number",
    "int": "integer",
    "list": "array",
    "str": "string",
}
"""Names of Python's types that clients write in schemas, with the JSON types that they mean."""


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema to which a local reference (RFC 6901) refers, or None."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def with_references(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a schema with everything to which it refers as definitions of its own.

    References that lead nowhere stay as they are.

    Args:
        schema: The part.
        root: The schema in which its references are found.
    """
    references: list[str] = []

    def copied(part: Any) -> Any:
        if isinstance(part, list):
            return [copied(each) for each in part]
        if not isinstance(part, Mapping):
            return part
        return {key: renamed(value) if key == "$ref" else copied(value) for key, value in part.items()}

    def renamed(reference: Any) -> Any:
        if not isinstance(reference, str) or referred(reference, root) is None:
            return copied(reference)
        if reference not in references:
            references.append(reference)
        return f"#/$defs/{references.index(reference)}"

    whole = copied(schema)
    # The list grows while definitions that refer to others are copied.
    definitions = {str(at): copied(referred(reference, root)) for at, reference in enumerate(references)}
    return {**whole, "$defs": definitions} if definitions else whole


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema in which its own reference, or its only `allOf`, is replaced by what it refers to."""
    for _ in range(MAX_NESTED):
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            found = referred(reference, root)
            rest = {key: value for key, value in schema.items() if key != "$ref"}
        elif isinstance(parts, list) and len(parts) == 1:
            found = parts[0]
            rest = {key: value for key, value in schema.items() if key != "allOf"}
        else:
            break
        schema = {**found, **rest} if isinstance(found, Mapping) else rest
    return schema


def json_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows; none if it does not say.

    Args:
        schema: The schema.
        root: The schema in which references are found.
    """
    types, parts = set[str](), [schema]
    for part in parts:
        described = resolved(part, root)
        named = described.get("type")
        names = named if isinstance(named, list) else [named]
        types.update(_TYPE_NAMES.get(each, each) for each in names if isinstance(each, str))
        if named is None:
            types.update(_types_of_values(described))
        # Branches can refer to the schema that has them, so their number is limited.
        parts += islice(branches(described, "anyOf", "oneOf", "allOf"), MAX_PARTS - len(parts))
    return types


def branches(schema: Mapping[str, Any], *keywords: str) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that a schema lists under some keywords, such as `anyOf`."""
    for keyword in keywords:
        listed = schema.get(keyword)
        yield from (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, Mapping))


def excludes_strings(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Return whether a schema allows no string; a string that a model writes then stands for another value."""
    types = json_types(schema, root)
    return bool(types) and "string" not in types


def is_of_type(value: object, json_type: str) -> bool:
    """Return whether a value has this JSON type; a float without a fraction is also an integer."""
    if isinstance(value, bool):
        return json_type == "boolean"
    if json_type == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES.get(json_type, ()))


def _types_of_values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON types of the values that a schema without `type` describes."""
    listed = schema.get("enum")
    yield from map(_type_of, listed if isinstance(listed, list) else ())
    if "const" in schema:
        yield _type_of(schema["const"])
    if isinstance(schema.get("properties"), Mapping):
        yield "object"


def _type_of(value: object) -> str:
    """Return the JSON type of a value."""
    if isinstance(value, str):
        return "string"
    return next(name for name in ("boolean", "integer", "number", "array", "object", "null") if is_of_type(value, name))
