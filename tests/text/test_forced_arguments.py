"""Grammars of arguments in notations that are not JSON: what they allow is read back and fits the schema."""

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from typing_extensions import override

from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.tools import FORMATS, Function, ToolParser, forced_calls
from ridgeline.core.text.tools.parameter_values import json_of
from ridgeline.engine.structured_output.grammar import compiled
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.errors import ApiError
from ridgeline.server.routes.tool_use import ToolUse

NOTATIONS = ("gemma4", "lfm2", "olmo3", "pythonic")
CLOSED = {"type": "object", "additionalProperties": False}
TREE = {
    **CLOSED,
    "properties": {
        "v": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
    "required": ["v"],
}
SCHEMAS: Mapping[str, tuple[Mapping[str, Any], list[str]]] = {
    "atoms": (
        {"s": {"type": "string"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": "null"}},
        ["s", "b"],
    ),
    "bounds": (
        {
            "s": {"type": "string", "minLength": 2, "maxLength": 3},
            "empty": {"type": "string", "maxLength": 0},
            "i": {"type": "integer", "minimum": 3, "maximum": 17},
            "five": {"type": "integer", "multipleOf": 5},
            "r": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        },
        ["s", "i", "five", "r"],
    ),
    "patterns": ({"p": {"type": "string", "pattern": "^[a-c]{2}$"}, "d": {"type": "string", "format": "date"}}, ["p"]),
    "values": (
        {
            "e": {"type": "string", "enum": ["a", 'it\'s "q" \\ \n x', "é"]},
            "c": {"const": 4},
            "m": {"enum": [1, None, True, "x"]},
            "f": {"enum": [1.5, [1], {"a": 2}]},
            "q": {"enum": ['<|"|>', "<escape>"]},
        },
        ["e", "c", "m", "f", "q"],
    ),
    "nested": (
        {
            "o": {
                **CLOSED,
                "properties": {"z": {"type": "array", "items": {"type": "string"}, "minItems": 1}, "A": {}},
            },
            "l": {"type": "array", "items": {**CLOSED, "properties": {"k": {"type": "boolean"}}}, "maxItems": 2},
            "two": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        },
        ["o", "l", "two"],
    ),
    "reference": ({"t": {"$ref": "#/$defs/tree"}}, ["t"]),
    "references in JSON": (
        {
            "t": {"allOf": [{"$ref": "#/$defs/tree"}]},
            "x": {"allOf": [{"$ref": "#/properties/y"}]},
            "y": {"type": "string", "maxLength": 3},
            "z": {"allOf": [{"$ref": "#/$defs/a~1b"}]},
        },
        ["t", "x", "z"],
    ),
    "choices": (
        {
            "a": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "maximum": 9}, {"type": "null"}]},
            "q": {"allOf": [{"type": "string"}, {"maxLength": 2}]},
            "t": {"type": ["string", "integer"], "maxLength": 2, "minimum": 5},
        },
        ["a", "q", "t"],
    ),
    "nothing": ({}, []),
    "odd keys": ({"from": {"type": "integer"}, "$x-y.z": {"type": "integer"}, "été": {}}, ["from", "$x-y.z"]),
}
"""Properties and the required ones; objects are closed."""


class Marked(ByteTokenizer):
    """A vocabulary in which all markers are tokens."""

    def __init__(self) -> None:
        super().__init__()
        markers = sorted({marker for name in NOTATIONS for marker in FORMATS[name].markers})
        self._vocabulary.control.update({marker: 300 + at for at, marker in enumerate(markers)})  # type: ignore[attr-defined]
        self.names = {300 + at: marker.encode() for at, marker in enumerate(markers)}

    @override
    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        return self.names.get(token_id) or super().token_bytes(token_id, skip_special=skip_special)


@cache
def vocabulary() -> tuple[Marked, GrammarVocabulary]:
    tokenizer = Marked()
    return tokenizer, GrammarVocabulary(tokenizer, 320)


def parameters(properties: Mapping[str, Any], required: list[str], **others: Any) -> dict[str, Any]:
    return {
        **CLOSED,
        "properties": properties,
        "required": required,
        "$defs": {"tree": TREE, "a/b": {"type": "boolean"}},
        **others,
    }


def walk(start: llguidance.LLMatcher, chance: random.Random) -> str:
    """Return a text that a grammar allows, chosen token by token with a preference for what closes."""
    tokenizer, tables = vocabulary()
    matcher, said, count = start.deep_copy(), b"", 0
    while not matcher.is_stopped():
        mask, done = tables.next_of(matcher)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if done and (not len(bits) or chance.random() < 0.3):
            break
        closing = [bit for bit in bits if bit >= 300 or chr(bit) in "}]\",)'"]
        token = int(chance.choice(closing if closing and (chance.random() < 0.6 or count > 400) else bits))
        said += tokenizer.names.get(token, bytes([token & 255]))
        count += 1
        assert count < 5_000
        assert matcher.consume_token(token), matcher.get_error()
    return said.decode()


def called(name: str, function: Function, text: str) -> Any:
    """Return the arguments of the only call in a text."""
    parser = ToolParser(FORMATS[name], [function])
    deltas = (parser.push(text), parser.finish())
    calls = [call for delta in deltas for call in delta.calls]
    assert "".join(delta.content for delta in deltas) == "", text
    assert [call.name for call in calls if call.id] == ["f"], text
    return json.loads("".join(call.arguments for call in calls))


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", NOTATIONS)
def test_what_a_grammar_allows_is_read_back_and_fits_the_schema(name: str, schema: str) -> None:
    properties, required = SCHEMAS[schema]
    for open_objects in (False, True):
        function = Function("f", parameters(properties, required, additionalProperties=open_objects))
        tokenizer, tables = vocabulary()
        grammar = forced_calls(FORMATS[name], [function], tokenizer, several=False)
        start = compiled(StructuredOutputs(grammar=grammar), tables.library)
        for seed in range(8):
            text = walk(start, random.Random(seed))
            jsonschema.validate(called(name, function, text), function.parameters)


def grammar_of(name: str, schema: Mapping[str, Any]) -> str:
    return forced_calls(FORMATS[name], [Function("f", schema)], ByteTokenizer(), several=False)


@pytest.mark.parametrize(
    ("name", "schema", "reason"),
    [
        ("lfm2", parameters({"x": {}}, [], minProperties=1), "function f: minProperties of all parameters"),
        ("lfm2", parameters({"two words": {}}, []), "function f: a parameter's name cannot be written"),
        ("lfm2", parameters({}, ["x"]), "function f: a required parameter is not allowed"),
        ("gemma4", parameters({"x": 5}, []), "function f: 5 is no JSON schema"),
        ("qwen3_coder", parameters({"x": {"minLength": "2"}}, []), "function f: a keyword of a parameter has"),
        ("pythonic", parameters({"x": {}}, "x"), "function f: a keyword of all parameters"),  # type: ignore[arg-type]
        ("qwen3_coder", parameters({"x": {}}, 5), "function f: a keyword of all parameters"),  # type: ignore[arg-type]
        ("glm45", parameters({"x": {}}, [], minProperties=1), "function f: minProperties of all parameters"),
        ("qwen3_coder", parameters({"x": {"maxLength": "5"}}, []), "function f: a keyword of a parameter has"),
        ("deepseek_v4", parameters({"x": {"oneOf": 5}}, []), "function f: a keyword of a parameter has"),
    ],
)
def test_what_a_notation_cannot_enforce_is_refused_in_one_line(
    name: str, schema: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")) as error:
        grammar_of(name, schema)
    assert "\n" not in str(error.value)
    function = Function("f", schema)
    with pytest.raises(ApiError, match="function f") as refusal:
        ToolUse(FORMATS[name], (function,), (function,), several=False).outputs(ByteTokenizer(), None)
    assert refusal.value.status == 400


def test_gemma_writes_keys_and_keywords_that_are_no_notation_of_its_own_as_json() -> None:
    schema = parameters({"two words": {}, "a:b": {"const": 1}}, ["a:b"], minProperties=1)
    assert "%json" in grammar_of("gemma4", schema)
    assert r'"\"a:b\":"' in grammar_of("gemma4", parameters({"a:b": {"const": 1}}, ["a:b"]))


@pytest.mark.parametrize("seed", range(10))
def test_no_schema_however_wrong_raises_anything_but_one_line(seed: int) -> None:
    chance = random.Random(seed)
    words = ("type", "enum", "const", "$ref", "anyOf", "properties", "required", "items", "minItems", "maxLength")
    values = (None, True, -1, 2.5, "string", "array", "object", "#", "#/$defs/tree", "#/x", [], ["null", "object"], {})

    def junk(depth: int) -> Any:
        if depth > 3 or chance.random() < 0.3:
            return chance.choice(values)
        if chance.random() < 0.2:
            return [junk(depth + 1)]
        return {chance.choice(words): junk(depth + 1) for _ in range(chance.randint(0, 4))}

    refusals = list[str]()
    for _ in range(100):
        for name in ("deepseek_v4", "gemma4", "lfm2", "qwen3_coder"):
            properties, more = {"x": junk(0), "y": junk(0)}, chance.choice([{}, {"required": junk(0)}])
            schema = {"type": "object", "properties": properties, "$defs": {"tree": junk(1)}, **more}
            try:
                grammar_of(name, schema)
            except ValueError as error:
                refusals.append(str(error))
            for value in properties.values():  # without a grammar, a schema is not checked before it reads values
                json.loads(json_of("[4", value if isinstance(value, dict) else {}, schema))
    assert refusals
    assert not any("\n" in refusal for refusal in refusals)


@pytest.mark.parametrize("name", NOTATIONS)
def test_long_strings_compile(name: str) -> None:
    long = {"s": {"type": "string", "minLength": 5_000, "maxLength": 10_000}, "t": {"type": "string", "minLength": 256}}
    grammar = grammar_of(name, parameters(long, ["s", "t"]))
    compiled(StructuredOutputs(grammar=grammar), GrammarVocabulary(ByteTokenizer(), 257).library)


@pytest.mark.parametrize("name", ["gemma4", "qwen3_coder"])
def test_definitions_are_not_repeated_without_bound(name: str) -> None:
    many = {f"p{at}": {"type": "array", "contains": {"$ref": "#/$defs/long"}} for at in range(200)}
    schema = {**parameters(many, []), "$defs": {"long": {"description": "x" * 50_000}}}
    with pytest.raises(ValueError, match="repeated too often"):
        grammar_of(name, schema)
