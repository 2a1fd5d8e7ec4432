"""Closed objects in schemas: what they accept is what the schema accepts, without properties that it does not name."""

import random
from typing import Any

import jsonschema
import pytest

from ridgeline.server.routes.closed_schema import closed

NAMED = {"properties": {"a": {"type": "integer"}}}
SHUT = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, SHUT),
        ({"type": "object"}, {"type": "object"}),
        ({**NAMED, "additionalProperties": True}, {**NAMED, "additionalProperties": True}),
        ({**NAMED, "additionalProperties": {"type": "string"}}, {**NAMED, "additionalProperties": {"type": "string"}}),
        ({**NAMED, "patternProperties": {"x": {}}}, {**NAMED, "patternProperties": {"x": {}}}),
        ({"items": NAMED}, {"items": SHUT}),
        ({"prefixItems": [NAMED, True]}, {"prefixItems": [SHUT, True]}),
        ({"additionalProperties": NAMED}, {"additionalProperties": SHUT}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"anyOf": [NAMED], **NAMED}, {"anyOf": [NAMED], **NAMED}),
        ({"allOf": [NAMED, {"items": NAMED}]}, {"allOf": [NAMED, {"items": NAMED}]}),
        ({"not": NAMED}, {"not": NAMED}),
        ({"if": NAMED, "then": NAMED}, {"if": NAMED, "then": NAMED}),
        ({"$ref": "#/$defs/x", "$defs": {"x": NAMED}}, {"$ref": "#/$defs/x", "$defs": {"x": SHUT}}),
        (
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": NAMED, "y": NAMED}},
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": NAMED, "y": SHUT}},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"$ref": "#/$defs/y"}, "y": NAMED}},
            {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"$ref": "#/$defs/y"}, "y": NAMED}},
        ),
        (
            {**NAMED, "$ref": "#/definitions/a~1b", "definitions": {"a/b": NAMED}},
            {**NAMED, "$ref": "#/definitions/a~1b", "definitions": {"a/b": NAMED}},
        ),
        ({"const": NAMED, "enum": [NAMED]}, {"const": NAMED, "enum": [NAMED]}),
        ({"properties": {"properties": NAMED}}, {"properties": {"properties": SHUT}, "additionalProperties": False}),
    ],
)
def test_objects_are_closed_where_one_schema_describes_them(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected


def test_strict_closes_objects_without_properties() -> None:
    schema = {"properties": {"a": {"type": "object"}}}
    inner = {"type": "object", "additionalProperties": False}
    assert closed(schema, strict=True) == {"properties": {"a": inner}, "additionalProperties": False}


@pytest.mark.parametrize("seed", range(200))
def test_a_closed_schema_accepts_what_is_left_of_a_value_without_unnamed_properties(seed: int) -> None:
    """Compare random schemas and values by jsonschema: nothing new is accepted, and no schema is emptied."""
    chance = random.Random(seed)

    def schema(depth: int) -> dict[str, Any]:
        kind = chance.randrange(7 if depth < 3 else 2)
        if kind < 2:
            return chance.choice(
                [{"type": "integer"}, {"type": "string"}, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]
            )
        if kind == 2:
            return {"type": "array", "items": schema(depth + 1)}
        if kind == 3:
            return {chance.choice(["anyOf", "allOf"]): [schema(depth + 1) for _ in range(2)]}
        names = chance.sample("abcd", 2)
        result: dict[str, Any] = {"type": "object", "properties": {name: schema(depth + 1) for name in names}}
        if chance.random() < 0.3:
            result[chance.choice(["anyOf", "allOf"])] = [schema(depth + 1) for _ in range(2)]
        return result

    def value(depth: int) -> Any:
        kind = chance.randrange(5 if depth < 4 else 2)
        if kind < 2:
            return chance.choice([1, "s"])
        if kind == 2:
            return [value(depth + 1) for _ in range(chance.randrange(3))]
        return {name: value(depth + 1) for name in chance.sample("abcd", chance.randrange(4))}

    for _ in range(10):
        original = {**schema(0), "$defs": {"x": {"type": "integer"}, "y": {"properties": {"a": {"type": "string"}}}}}
        shut = closed(original)
        for _ in range(30):
            given = value(0)
            if valid(given, shut):
                assert valid(given, original)
            elif valid(given, original):
                # Only properties that no schema names can be at fault: without objects there is nothing to close.
                assert has_object(given)


def valid(value: Any, schema: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(has_object, value)))


@pytest.mark.parametrize("seed", range(100))
def test_a_value_whose_properties_are_named_stays_valid(seed: int) -> None:
    """Split the properties of a value between two schemas, which closing must not break."""
    chance = random.Random(seed)
    names = chance.sample("abcdef", 4)
    given = {name: chance.choice([1, {"k": 1}]) for name in names}

    def part(some: list[str]) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"k": {"type": "integer"}}}
        return {"properties": {name: inner if isinstance(given[name], dict) else {} for name in some}}

    first, second = part(names[:2]), part(names[2:])
    schemas: list[dict[str, Any]] = [
        {"allOf": [first, second]},
        {**first, "allOf": [second]},
        {**first, "anyOf": [second, {"type": "string"}]},
        {**first, "$ref": "#/$defs/x", "$defs": {"x": second}},
        {"$ref": "#/$defs/x", "$defs": {"x": {"allOf": [first, {"$ref": "#/$defs/y"}]}, "y": second}},
        {"if": first, "then": second},
        part(names),
    ]
    for schema in schemas:
        assert valid(given, closed(schema))
        assert not valid({**given, "z": 1}, closed(part(names)))
