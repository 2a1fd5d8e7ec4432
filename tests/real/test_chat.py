"""Chat over HTTP with SmolLM2-135M-Instruct: text, JSON schemas, choices and forced calls.

At temperature 0 each response is what transformers writes under the same grammar.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from real.guided import call_grammar, guided, schema_grammar
from real.served_client import served_client
from real.texts import CONVERSATIONS, QUESTION
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import LoadedEngine, load_engine

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("exact_products")]

MOST = 96  # tokens of a response
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"enum": ["English", "French", "Español"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
NUMBERS = {
    "type": "object",
    "properties": {
        "primes": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5},
        "mean": {"type": "number"},
        "sorted": {"type": "boolean"},
        "comment": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 20}]},
    },
    "required": ["primes", "mean", "sorted", "comment"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("Describe a person as JSON.", PERSON),
    "numbers": ("List some prime numbers as JSON, with their mean.", NUMBERS),
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"type": "string", "pattern": "^UTC[+-][0-9]{1,2}$"}},
    "required": ["zone"],
    "additionalProperties": False,
}
FUNCTIONS = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}
    for name, parameters in FUNCTIONS.items()
]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris this week?"}]


@pytest.fixture(scope="module")
def loaded(smollm2: Path, exact_products: None) -> LoadedEngine:
    return load_engine(str(smollm2), EngineSettings(kv_bytes=1e9))


@pytest.fixture(scope="module")
def client(loaded: LoadedEngine) -> Iterator[openai.OpenAI]:
    with served_client(loaded) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that transformers reads from the file."""
    return AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


def reference(theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, messages: list[Any], grammar: str) -> str:
    """Return what transformers writes in response. It renders the template by itself."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return guided(theirs, tokenizer, prompt, grammar, MOST)


def ask(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    """Return the only choice of a response."""
    response = client.chat.completions.create(
        model="smollm2", messages=messages, temperature=0, max_tokens=MOST, **fields
    )
    (choice,) = response.choices
    return choice


def test_conversations(client: openai.OpenAI, theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whole and streamed responses are the same text."""
    for messages in CONVERSATIONS.values():
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        expected = theirs.generate(**prompt, do_sample=False, max_new_tokens=48)[0, prompt["input_ids"].shape[1] :]
        asked: Any = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 48}
        whole = client.chat.completions.create(**asked)
        assert whole.choices[0].message.content == tokenizer.decode(expected, skip_special_tokens=True)
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
            prompt["input_ids"].shape[1],
            len(expected),
        )
        stream = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_schemas(
    client: openai.OpenAI, theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    text, schema = SCHEMAS[name]
    messages = [{"role": "user", "content": text}]
    choice = ask(
        client, messages,
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    )  # fmt: skip
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), schema)
    assert choice.message.content == reference(theirs, tokenizer, messages, schema_grammar(schema))


def test_a_choice_of_texts(client: openai.OpenAI, theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """One choice may begin as another does."""
    choices = ["Paris", "Paris, Texas", "Lyon", "Pa"]
    choice = ask(client, QUESTION, extra_body={"structured_outputs": {"choice": choices}})
    assert choice.message.content in choices
    pattern = "|".join(choices)
    assert choice.message.content == reference(theirs, tokenizer, QUESTION, f"start: /{pattern}/")


@pytest.mark.parametrize("name", [*FUNCTIONS, "required"])
def test_forced_calls(
    client: openai.OpenAI, theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """A call is valid and what transformers writes, whether the request or the model chooses the function."""
    named = {name: FUNCTIONS[name]} if name in FUNCTIONS else FUNCTIONS
    forced: Any = {"type": "function", "function": {"name": name}} if name in FUNCTIONS else "required"
    choice = ask(client, ASKED, tools=TOOLS, tool_choice=forced, parallel_tool_calls=False)
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, named[call.function.name])
    written = reference(theirs, tokenizer, ASKED, call_grammar(named))
    expected = json.loads(written.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert {"name": call.function.name, "arguments": arguments} == expected
