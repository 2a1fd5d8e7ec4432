"""Two hundred forced outputs of SmolLM2-135M-Instruct: JSON of a schema, and calls of functions.

The model is weak: it does not end an object that it may extend. The schemas leave additionalProperties out, as most
people write them, and every output must end by itself and be valid. Strings are bounded, because this model repeats
itself in one string of ten.
"""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from real.served_client import served_client
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine

pytestmark = [pytest.mark.real]

MOST = 400  # tokens of a response
SUBJECTS = (
    "a harbour",
    "the moon",
    "a recipe for soup",
    "my invoice 4711",
    "a train to Lyon",
    "two cats",
    "chess",
    "rain",
)
TASKS = ("Extract the facts about", "Describe", "Make a record of", "Plan something with", "Look up")
LEAVES: tuple[dict[str, Any], ...] = (
    {"type": "integer", "minimum": 0, "maximum": 9999},
    {"type": "boolean"},
    {"enum": ["low", "high", "unknown"]},
    {"type": "string", "maxLength": 60, "description": "A few words."},
    {"type": ["string", "null"], "maxLength": 40},
    {"type": "string", "format": "date"},
    {"anyOf": [{"type": "integer", "maximum": 99, "minimum": -99}, {"type": "null"}]},
)
NAMES = ("name", "count", "date", "status", "note", "price", "tags", "place", "owner", "parts")


def schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a random schema of an object in the form in which people write them, without additionalProperties."""
    names = chance.sample(NAMES, chance.randint(1, 4))
    properties: dict[str, Any] = {}
    for name in names:
        kind = chance.random()
        if kind < 0.15 and depth < 2:
            properties[name] = schema(chance, depth + 1)
        elif kind < 0.3 and depth < 2:
            items = schema(chance, 2) if chance.random() < 0.4 else chance.choice(LEAVES[:3])
            properties[name] = {"type": "array", "items": items, "maxItems": 3}
        else:
            properties[name] = chance.choice(LEAVES)
    return {"type": "object", "properties": properties, "required": chance.sample(names, chance.randint(0, len(names)))}


@pytest.fixture(scope="module")
def client(smollm2: Path) -> Iterator[openai.OpenAI]:
    with served_client(load_engine(str(smollm2), EngineSettings(kv_bytes=1e9))) as client:
        yield client


def fields(number: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the fields of one request, and the schemas of the functions that it may call ("" for its output)."""
    chance = random.Random(number)
    subject, task = chance.choice(SUBJECTS), chance.choice(TASKS)
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"{task} {subject}. ({number})"}],
        "temperature": chance.choice([0, 0.7]),
        "seed": number,
        "max_tokens": MOST,
    }
    if number % 2:
        given = schema(chance)
        form = {"name": "record", "schema": given, "strict": bool(number % 4 == 1)}
        return {**asked, "response_format": {"type": "json_schema", "json_schema": form}}, {"": given}
    functions = {f"{verb}_{number}": schema(chance) for verb in ("store", "find")}
    tools = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in functions.items()]
    forced: Any = {"type": "function", "function": {"name": next(iter(functions))}} if number % 4 else "required"
    return {**asked, "tools": tools, "tool_choice": forced, "parallel_tool_calls": False}, functions


def test_forced_outputs_end_and_are_valid(client: openai.OpenAI) -> None:
    def broken(number: int) -> str:
        """Return what is wrong with the response to a request; "" if nothing is."""
        asked, schemas = fields(number)
        (choice,) = client.chat.completions.create(**asked).choices
        name, text = "", choice.message.content or ""
        if choice.message.tool_calls:
            (call,) = choice.message.tool_calls
            name, text = call.function.name, call.function.arguments
        try:
            jsonschema.validate(json.loads(text), schemas[name])
        except (KeyError, ValueError, jsonschema.ValidationError) as error:
            return f"{number}: {choice.finish_reason}: {type(error).__name__}: {text[-200:]}"
        return "" if choice.finish_reason in ("stop", "tool_calls") else f"{number}: {choice.finish_reason}"

    with ThreadPoolExecutor(16) as pool:
        found = list(filter(None, pool.map(broken, range(200))))
    assert not found, "\n".join(found)
