"""Tool calls over HTTP, with the official client: scripted models behind real templates, and forced calls."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch
from safetensors.torch import save_file

from engine.folders import write_tokenizer
from engine.small_models import LLAMA, poison_free_pages, small_model
from ridgeline.core.text.tools import FORMATS, ToolFormat
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.sampling import Sampled, SampleRow
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.step_plan import StepPlan
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running
from text.tiny_tokenizers import byte_level

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": WEATHER}},
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "Time.",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]
ASK: list[Any] = [{"role": "user", "content": "How is it?"}]
ARGS = '{"city": "Aé", "days": 3}'

# Small templates that write what the real ones do.
SMALL = {
    "hermes": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n'
    "{% endfor %}assistant:",
    "llama3_json": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content or '' }}{% if m.tool_calls | default([]) | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    '{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", '
    "{{ '\"parameters\": ' }}{{ c.function.arguments | tojson }}}{% endfor %}\n{% endfor %}assistant:",
}
REAL = {
    "hermes": ("Qwen-Qwen2.5-7B-Instruct", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
    "llama3_json": ("meta-llama-Llama-3.1-8B-Instruct",),
    "mistral": ("mistralai-Mistral-Nemo-Instruct-2407", "mistralai-Ministral-3-14B-Reasoning-2512"),
    "deepseek_v31": ("deepseek-ai-DeepSeek-V3.1",),
    "kimi_k2": ("moonshotai-Kimi-K2",),
    "solar_open": ("upstage-Solar-Open-100B",),
}


def written(tool_format: ToolFormat, *calls: tuple[str, str]) -> str:
    """Calls as a model of this format writes them."""
    layout = tool_format.layout
    each = [f"{layout.before}{function}{layout.middle}{arguments}{layout.after}" for function, arguments in calls]
    return layout.start + ("; " if layout.between is None else layout.between).join(each) + layout.end


class Says:
    """An executor that says one script, whatever the model would, and writes no KV memory."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        return [Sampled(self.script[min(row.generated, len(self.script) - 1)]) for row in rows]


def load(folder: Path, template: str, markers: Sequence[str]) -> LoadedEngine:
    """A small random model whose tokenizer has these markers as special tokens. Pages of prompts are not kept: those
    that a script ran were never written, and what the model itself reads there must say so."""
    pipeline = byte_level()
    pipeline.add_special_tokens(list(markers))
    size = write_tokenizer(folder, pipeline, template)
    config = {
        **LLAMA,
        "vocab_size": size,
        "eos_token_id": pipeline.token_to_id("<eos>"),
        "max_position_embeddings": 8000,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = small_model(config)
    save_file({model.checkpoint_name(n): p for n, p in model.named_parameters()}, folder / "model.safetensors")
    torch.set_num_threads(1)
    loaded = load_engine(str(folder), EngineSettings(kv_bytes=16e6, prefix_cache=False))
    poison_free_pages(loaded.engine)
    return loaded


@contextmanager
def served(loaded: LoadedEngine, **settings: Any) -> Iterator[tuple[Running, openai.OpenAI]]:
    llm = AsyncLLM(loaded)
    try:
        with (
            running(Service(llm, Everybody()), ServerSettings(models=("m",), **settings)) as up,
            openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield up, client
    finally:
        llm.close()


def ids_of(loaded: LoadedEngine, text: str) -> list[int]:
    return loaded.tokenizer.encode(text, add_special=False)


def templates() -> list[Any]:
    """Formats, each with a small template, or with the name of a real one."""
    small = [pytest.param((name, None), id=f"small {name}") for name in SMALL]
    return small + [pytest.param((name, file), id=file) for name, files in REAL.items() for file in files]


@pytest.fixture(scope="module", params=templates())
def scripted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server behind a template, what it says being the test's to write."""
    name, file = request.param
    template = SMALL[name] if file is None else real_template(request, file)
    special = FORMATS[name].markers if name != "hermes" else ()
    loaded = load(tmp_path_factory.mktemp("tools"), template, special)
    own = loaded.engine.executor
    with served(loaded) as (up, client):

        def say(text: str | None) -> None:
            eos = list(loaded.tokenizer.eos_ids)
            loaded.engine.executor = own if text is None else Says([*ids_of(loaded, text), *eos])

        probed = loaded.text_processor.templates.pick(tools=True).probe.calls.tool_format
        assert probed.name == name
        yield Behind(probed, up, client, say)


def real_template(request: pytest.FixtureRequest, file: str) -> str:
    """A template of a release; skips where there is no real data."""
    data: Path = request.getfixturevalue("data_dir")
    return (data / "chat-templates" / f"{file}.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Behind:
    """A server behind a template of this format. say: makes its model say a text; None lets it say what it would."""

    format: ToolFormat
    up: Running
    client: openai.OpenAI
    say: Callable[[str | None], None]


def streamed(chunks: Any) -> tuple[str, list[list[str]], str | None]:
    """Content, calls as [id, name, arguments], and why it ended."""
    content, calls, finish = "", list[list[str]](), None
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.index == len(calls):
                    assert call.type == "function"
                    calls.append([call.id, call.function.name, ""])
                else:
                    assert call.id is None
                calls[call.index][2] += call.function.arguments or ""
    return content, calls, finish


def test_calls_are_told_whole_streamed_and_back_again(scripted: Behind) -> None:
    scripted.say(written(scripted.format, ("weather", ARGS)))
    reply = scripted.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=400)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", json.loads(ARGS))
    stream = scripted.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=400, stream=True)
    content, calls, finish = streamed(stream)
    assert (content, finish) == ("", "tool_calls")
    assert [(c[1], c[2]) for c in calls] == [("weather", ARGS)]
    # The next turn: the template takes what it wrote.
    scripted.say("It is sunny.")
    turn = [
        *ASK,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "1"},
    ]
    answer = scripted.client.chat.completions.create(model="m", messages=turn, tools=TOOLS, max_tokens=400)
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"
    # OpenAI's own clients send the content as null, others leave it out or send an empty text.
    prompts = set()
    for content in ({"content": None}, {}, {"content": ""}):
        turn[1] = {**{k: v for k, v in turn[1].items() if k != "content"}, **content}
        rendered = scripted.up.post("/v1/chat/completions/render", {"messages": turn, "tools": TOOLS})
        assert rendered.status == 200, rendered.data
        prompts.add(rendered.json()["prompt"])
    (prompt,) = prompts
    assert '"city": "A' in prompt
    items = [
        *ASK,
        {"type": "function_call", "call_id": call.id, "name": "weather", "arguments": call.function.arguments},
        {"type": "function_call_output", "call_id": call.id, "output": "1"},
    ]
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    response = scripted.client.responses.create(model="m", input=items, tools=tools, max_output_tokens=400)
    assert response.output_text == "It is sunny."
    scripted.up.idle()


def test_several_calls_in_one_answer(scripted: Behind) -> None:
    scripted.say(written(scripted.format, ("weather", ARGS), ("now", "{}")))
    stream = scripted.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=500, stream=True)
    assert [c[1:] for c in streamed(stream)[1]] == [["weather", ARGS], ["now", "{}"]]
    only = scripted.client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS, max_tokens=500, parallel_tool_calls=False
    )
    assert [c.function.name for c in only.choices[0].message.tool_calls or []] == ["weather"]


def test_a_malformed_call_is_text(scripted: Behind) -> None:
    text = written(scripted.format, ("rm_rf", ARGS))
    scripted.say(text)
    reply = scripted.client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=400)
    assert reply.choices[0].message.content == text
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"


def test_without_tools_a_call_is_text_without_its_control_tokens(scripted: Behind) -> None:
    scripted.say(written(scripted.format, ("now", "{}")))
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        reply = scripted.up.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 400, **options})
        if reply.status == 400:  # Hermes' template for tools cannot do without them
            assert "chat template" in reply.json()["error"]["message"]
            continue
        message = reply.json()["choices"][0]["message"]
        assert "tool_calls" not in message
        assert "now" in message["content"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_fit_their_schemas(scripted: Behind, choice: Any) -> None:
    """A random model, held to the format."""
    scripted.say(None)
    reply = scripted.client.chat.completions.create(
        model="m",
        messages=ASK,
        tools=TOOLS,
        tool_choice=choice,
        max_tokens=600,
        seed=4,
        parallel_tool_calls=False,
    )
    (answer,) = reply.choices
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or []
    assert call.function.name in ("weather", "now")[: 1 if isinstance(choice, dict) else 2]
    schema = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), schema)
    scripted.up.idle()


def test_a_function_that_is_named_is_called_once(scripted: Behind) -> None:
    """Though several calls in one answer are allowed, as they are where nothing else is said. Whole or streamed, or cut
    anywhere: half a call is no content."""
    scripted.say(None)
    named: Any = {"type": "function", "function": {"name": "now"}}
    asked: Any = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": named, "seed": 4}
    reply = scripted.client.chat.completions.create(**asked, max_tokens=900, n=3)
    for answer in reply.choices:
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        assert [(c.function.name, c.function.arguments) for c in answer.message.tool_calls or []] == [("now", "{}")]
    content, calls, finish = streamed(scripted.client.chat.completions.create(**asked, max_tokens=900, stream=True))
    assert (content, [call[1:] for call in calls], finish) == ("", [["now", "{}"]], "tool_calls")
    for most in (21, 50, 75):
        body = {**asked, "tool_choice": "required", "max_tokens": most, "stream": True}
        assert streamed(scripted.client.chat.completions.create(**body))[0] == ""
    scripted.up.idle()


def test_a_named_call_that_max_tokens_cuts_is_in_the_response(scripted: Behind) -> None:
    """Expect the call as far as it is written, and `length`; in /v1/responses an incomplete item."""
    scripted.say(None)
    named: Any = {"type": "function", "function": {"name": "weather"}}
    asked: Any = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": named, "seed": 4}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for most in (1, 5, 20):
        reply = scripted.client.chat.completions.create(**asked, max_tokens=most, n=2)
        for answer in reply.choices:
            (call,) = answer.message.tool_calls or []
            assert (answer.finish_reason, answer.message.content, call.function.name) == ("length", None, "weather")
            first = '{"city": "'
            assert first.startswith(call.function.arguments[: len(first)])
        stream = scripted.client.chat.completions.create(**asked, max_tokens=most, n=2, stream=True)
        deltas = [c for chunk in stream for c in chunk.choices if c.index == 0]
        told = [call.function for c in deltas for call in c.delta.tool_calls or []]
        whole = (reply.choices[0].message.tool_calls or [])[0].function
        assert [each.name for each in told if each.name] == [whole.name]
        assert "".join(each.arguments or "" for each in told) == whole.arguments
        assert (deltas[-1].finish_reason, "".join(c.delta.content or "" for c in deltas)) == ("length", "")
        response = scripted.client.responses.create(
            model="m",
            input=ASK,
            tools=tools,
            tool_choice={"type": "function", "name": "weather"},
            max_output_tokens=most,
        )
        (item,) = response.output
        assert (response.status, item.type, item.status) == ("incomplete", "function_call", "incomplete")
    scripted.up.idle()


def allowed(mode: str, *names: str) -> Any:
    """A tool_choice of chat that allows some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_restrict_which_calls_there_may_or_must_be(scripted: Behind) -> None:
    """Expect calls of these tools alone, in both interfaces, and a prompt with all tools, which the cache has."""
    asked: Any = {"model": "m", "messages": ASK, "tools": TOOLS, "max_tokens": 600, "seed": 4}
    create = scripted.client.chat.completions.create
    scripted.say(None)
    once = create(**asked, tool_choice=allowed("required", "now"), parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in once.message.tool_calls or []] == ["now"]
    assert once.finish_reason == "tool_calls"
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    said: Any = {"model": "m", "input": ASK, "tools": tools, "max_output_tokens": 600, "parallel_tool_calls": False}
    response = scripted.client.responses.create(**said, tool_choice=flat)
    assert [(item.type, item.name) for item in response.output] == [("function_call", "now")]
    assert response.tool_choice.to_dict() == flat

    text = written(scripted.format, ("weather", ARGS))
    scripted.say(text)
    reply = create(**asked, tool_choice=allowed("auto", "now")).choices[0]
    assert (reply.message.content, reply.message.tool_calls, reply.finish_reason) == (text, None, "stop")
    for names in (("weather",), ("now", "weather", "weather")):
        reply = create(**asked, tool_choice=allowed("auto", *names)).choices[0]
        assert [call.function.name for call in reply.message.tool_calls or []] == ["weather"]
    flat = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    assert scripted.client.responses.create(**said, tool_choice=flat).output_text == text
    scripted.say("It is sunny.")
    assert create(**asked, tool_choice=allowed("auto", "now")).choices[0].message.content == "It is sunny."
    prompts = {
        scripted.up.post("/v1/chat/completions/render", {"messages": ASK, "tools": TOOLS, **more}).json()["prompt"]
        for more in ({}, {"tool_choice": allowed("auto", "now")}, {"tool_choice": allowed("required", "now")})
    }
    assert len(prompts) == 1
    scripted.up.idle()


def test_allowed_tools_may_be_called_more_than_once_and_beside_a_schema(hermes: Running) -> None:
    asked = {"messages": ASK, "tools": TOOLS, "max_tokens": 700, "seed": 4, "n": 4}
    reply = hermes.post("/v1/chat/completions", {**asked, "tool_choice": allowed("required", "now")}).json()
    calls = [choice["message"]["tool_calls"] for choice in reply["choices"]]
    assert {call["function"]["name"] for each in calls for call in each} == {"now"}
    assert max(map(len, calls)) > 1
    form = {"type": "json_schema", "json_schema": {"name": "ok", "schema": {"enum": [7]}}}
    shaped = {**asked, "response_format": form, "tool_choice": allowed("auto", "now"), "n": 8}
    for choice in hermes.post("/v1/chat/completions", shaped).json()["choices"]:
        called = [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]
        assert set(called) == {"now"} or choice["message"]["content"] == "7"
    hermes.idle()


def test_a_schema_and_tools_together_give_either(scripted: Behind) -> None:
    scripted.say(None)
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = scripted.client.chat.completions.create(
        model="m",
        messages=ASK,
        tools=TOOLS,
        max_tokens=700,
        seed=5,
        response_format={"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}},
    )
    (answer,) = reply.choices
    if answer.message.tool_calls:
        assert {call.function.name for call in answer.message.tool_calls} <= {"weather", "now"}
    elif answer.finish_reason == "stop":
        jsonschema.validate(json.loads(answer.message.content or ""), schema)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tools": ({"tool_choice": "required"}, "no tools"),
    "unknown function": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tools has no function 'x': add it",
    ),
    "allowed and no tools": ({"tool_choice": allowed("auto", "now")}, "no tools"),
    "allowed and unknown": ({"tools": TOOLS, "tool_choice": allowed("auto", "now", "x" * 500)}, f"'{'x' * 64}'"),
    "required and unknown": ({"tools": TOOLS, "tool_choice": allowed("required", "nowhere")}, "'nowhere'"),
    "allowed and empty": ({"tools": TOOLS, "tool_choice": allowed("auto")}, "a list of tools"),
    "allowed as none": ({"tools": TOOLS, "tool_choice": allowed("none", "now")}, "auto or required"),
    "allowed in no list": (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "now"}}},
        "a list of tools",
    ),
    "allowed of another type": (
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp", "server_label": "now"}]},
            },
        },
        "a name for each tool",
    ),
    "allowed and flat": (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "now"}]}},
        "tool_choice: give allowed_tools",
    ),
    "a name that is no text": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": ["now"]}}},
        "a name for each tool",
    ),
    "unknown choice": ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    "bad name": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    "twice": ({"tools": [TOOLS[0], TOOLS[0]]}, "the same name"),
    "no function": ({"tools": [{"type": "web_search"}]}, "tools[0].type is 'web_search'; give 'function'"),
    "missing function": ({"tools": [{"type": "function"}]}, "tools[0].function is missing: give an object with a name"),
    "regex too": ({"tools": TOOLS, "guided_regex": "a"}, "can only be a JSON schema"),
    "forced and shaped": (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "give only one of them",
    ),
    "bad schema": (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
        "not",
    ),
    "no object": (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "tool_choice": "required",
        },
        "type object",
    ),
    "bad call": ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "tool_calls"),
    "bad arguments": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        "not a JSON object",
    ),
}


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(load(tmp_path_factory.mktemp("hermes"), SMALL["hermes"], ())) as (up, _):
        yield up


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_a_400(hermes: Running, name: str) -> None:
    fields, why = WRONG[name]
    reply = hermes.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 5, **fields})
    assert reply.status == 400, reply.data
    assert why in reply.json()["error"]["message"]


def test_a_model_without_a_known_format_says_so_and_the_server_may_be_told_one(server: Running, tmp_path: Path) -> None:
    reply = server.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 5, "tools": TOOLS})
    assert reply.status == 400
    assert "--tool-call-parser" in reply.json()["error"]["message"]
    loaded = load(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}", ())
    loaded.engine.executor = Says(
        [*ids_of(loaded, written(FORMATS["hermes"], ("now", "{}"))), *loaded.tokenizer.eos_ids]
    )
    with served(loaded, tool_parser="hermes") as (_, client):
        reply = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=200)
        assert reply.choices[0].finish_reason == "tool_calls"
    with pytest.raises(ValueError, match=r"give one of .*hermes"):
        ServerSettings(tool_parser="kimi")


@pytest.mark.parametrize("file", ["Kimi-K2-Instruct", "Kimi-K2-Thinking"])
def test_calls_behind_a_template_that_writes_none_are_read_in_a_named_format(
    request: pytest.FixtureRequest, tmp_path: Path, file: str
) -> None:
    """Serve templates that offer tools, but whose writing of calls is refused, so that the probe finds no format."""
    loaded = load(tmp_path, real_template(request, file), FORMATS["kimi_k2"].markers)
    text = written(FORMATS["kimi_k2"], ("weather", ARGS))
    loaded.engine.executor = Says([*ids_of(loaded, text), *loaded.tokenizer.eos_ids])
    with served(loaded, tool_parser="kimi_k2") as (_, client):
        reply = client.chat.completions.create(model="m", messages=ASK, tools=TOOLS, max_tokens=400)
        (call,) = reply.choices[0].message.tool_calls or []
        assert (call.id, call.function.name, call.function.arguments) == ("functions.weather:0", "weather", ARGS)
        assert reply.choices[0].message.content is None


# Calls that none of the formats reads: a tag that another format has too, with something else in it.
OTHER = {
    "arguments in tags": "<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
    "<argument>{{ k }}: {{ v }}</argument>{% endfor %}</tool_call>",
    "parameters in tags": "<tool_call><run:{{ c.function.name }}>{% for k, v in c.function.arguments | items %}"
    "<with:{{ k }}>{{ v }}</with>{% endfor %}</run></tool_call>",
    "an arrow": "{{ c.function.name }} <- {{ c.function.arguments | tojson }};",
    "nothing": "",
}


@pytest.mark.parametrize("name", OTHER)
def test_calls_that_no_parser_reads_are_a_400_and_never_text(tmp_path: Path, name: str) -> None:
    template = (
        "{# <tool_call> arguments #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
        "{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        + OTHER[name]
        + "{% endfor %}{% endfor %}"
    )
    with served(load(tmp_path, template, ())) as (up, _):
        reply = up.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 5, "tools": TOOLS})
        assert (reply.status, reply.json()["error"]["code"]) == (400, "no_tool_format")
        turn = [*ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
        reply = up.post("/v1/chat/completions/render", {"messages": turn})
        if name == "nothing":
            assert reply.status == 400
            assert "messages[1].tool_calls" in reply.json()["error"]["message"]
        else:
            assert "weather" in reply.json()["prompt"]


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGS}}


def test_older_names_of_roles_and_calls_reach_the_prompt(hermes: Running) -> None:
    """`developer`, `function` and `function_call`, which few templates know."""
    turn = [
        {"role": "system", "content": "RULE1"},
        {"role": "developer", "content": "RULE2"},
        *ASK,
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "weather", "content": "RESULT"},
    ]
    reply = hermes.post("/v1/chat/completions/render", {"messages": turn})
    assert reply.status == 200, reply.data
    prompt = reply.json()["prompt"]
    assert "system: RULE1\n\nRULE2" in prompt
    assert '"name": "weather"' in prompt
    assert "tool: RESULT" in prompt
    for wrong in ({"name": "x"}, {"role": "user", "function_call": CALL["function"]}, {"function_call": {"name": 3}}):
        reply = hermes.post(
            "/v1/chat/completions/render",
            {"messages": [*ASK, {"role": "assistant", "content": "a", "function_call": "x", **wrong}]},
        )
        assert reply.status == 400
        assert "messages[1].function_call" in reply.json()["error"]["message"]


def test_a_failing_template_says_in_which_line_and_on_which_message(tmp_path: Path) -> None:
    template = "{% for m in messages %}\n{{ m.role }}:\n{{ m.content + m.signature }}\n{% endfor %}"
    with served(load(tmp_path, template, ())) as (up, _):
        reply = up.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 5})
    assert (reply.status, reply.json()["error"]["code"]) == (400, "template")
    assert "line 3 on messages[0]: 'dict object' has no attribute 'signature'" in reply.json()["error"]["message"]


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}])
def test_a_function_without_parameters_is_called_without_arguments(hermes: Running, parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "now", **parameters}}
    asked = {"messages": ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    choice = hermes.post("/v1/chat/completions", {**asked, "max_tokens": 200}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
