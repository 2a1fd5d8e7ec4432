"""JSON schemas whose objects are closed: they have no properties that the schema does not name.

JSON Schema allows further properties unless `additionalProperties` is false, so an unsure model can add properties
until its tokens run out. OpenAI's strict mode and xgrammar close objects, and so does the server (--open-objects
leaves schemas as they are).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.text.tools.json_schema import referred

_IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "$ref")
"""The keywords whose schemas describe the same value as the schema that has them."""
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPPINGS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "additionalProperties", "if", "then", "else", "not", "contains", "propertyNames"})
_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")
"""The keywords with which a schema says itself which further properties an object may have."""


def closed(schema: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """Return a schema whose objects with `properties` have no others, unless it allows them.

    An object stays open if the schema has `additionalProperties`, `unevaluatedProperties` or `patternProperties`, or if
    several schemas describe it (`allOf`, or `anyOf` and `$ref` next to `properties`), as does everything inside it.

    Args:
        schema: The JSON schema; its nesting must have been checked.
        strict: Whether objects without `properties` are closed too, as with `strict: true`.
    """
    return _closed(schema, "#", strict=strict, shared=frozenset(_shared_definitions(schema)))


def _closed(schema: Mapping[str, Any], pointer: str, *, strict: bool, shared: frozenset[str]) -> dict[str, Any]:
    """Return a schema with closed objects.

    Args:
        schema: The schema.
        pointer: Its JSON pointer in the whole schema.
        strict: Whether objects without `properties` are closed too.
        shared: The pointers of the definitions that are part of another schema.
    """
    if pointer in shared:
        return dict(schema)

    def inner(value: Any, *path: str) -> Any:
        at = "/".join([pointer, *(name.replace("~", "~0").replace("/", "~1") for name in path)])
        return _closed(value, at, strict=strict, shared=shared) if isinstance(value, Mapping) else value

    result = dict(schema)
    for key, value in schema.items():
        if _is_part(schema, key):
            continue
        if key in _LISTS and isinstance(value, list):
            result[key] = [inner(each, key, str(index)) for index, each in enumerate(value)]
        elif key in _MAPPINGS and isinstance(value, Mapping):
            result[key] = {name: inner(each, key, str(name)) for name, each in value.items()}
        elif key in _SCHEMAS:
            result[key] = inner(value, key)
    is_object = isinstance(schema.get("properties"), Mapping) or (strict and schema.get("type") == "object")
    if is_object and not any(key in schema for key in (*_OPEN, *_IN_PLACE)):
        result["additionalProperties"] = False
    return result


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each schema inside a schema with its keyword."""
    for key, value in schema.items():
        if key in _LISTS and isinstance(value, list):
            yield from ((key, each) for each in value)
        elif key in _MAPPINGS and isinstance(value, Mapping):
            yield from ((key, each) for each in value.values())
        elif key in _SCHEMAS:
            yield key, value


def _is_part(schema: Mapping[str, Any], key: str) -> bool:
    """Return whether the schemas under a keyword describe a value together with others."""
    return key in _IN_PLACE and (key not in ("anyOf", "oneOf") or "properties" in schema or "allOf" in schema)


def _shared_definitions(root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pointers of the definitions that describe a value together with other schemas."""
    left: list[tuple[Any, bool]] = [(root, False)]
    seen: set[str] = set()
    while left:
        schema, is_part = left.pop()
        if not isinstance(schema, Mapping):
            continue
        reference = schema.get("$ref")
        is_alone = not any(key in schema for key in ("properties", *_IN_PLACE[:-1]))
        if isinstance(reference, str) and (is_part or not is_alone) and reference not in seen:
            seen.add(reference)
            yield reference
            left.append((referred(reference, root), True))
        left += [(value, is_part or _is_part(schema, key)) for key, value in _inner_schemas(schema)]
