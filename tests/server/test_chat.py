"""/v1/chat/completions through the official client, against `tales` and against an engine that says a script."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.null_model import GREEDY
from engine.test_transcript import TOKENIZER, speaking
from ridgeline.core.text import ChatTemplate, ChatTemplates
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.llm import LLM
from ridgeline.engine.text_processor import TextProcessor, load_text_processor
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running

MESSAGES: Any = [{"role": "user", "content": "Once upon a time"}]
THINKING = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ reasoning_effort }}"
)


def create(client: openai.OpenAI, messages: Any = MESSAGES, **fields: Any) -> ChatCompletion:
    """An answer that is not streamed."""
    answer = client.chat.completions.create(model="tales", messages=messages, **fields)
    assert isinstance(answer, ChatCompletion)
    return answer


def streamed(client: openai.OpenAI, messages: Any = MESSAGES, **fields: Any) -> list[ChatCompletionChunk]:
    return list(client.chat.completions.create(model="tales", messages=messages, stream=True, **fields))


@contextmanager
def saying(
    *texts: str, template: str | None = THINKING, most_tokens: int | None = None, strict: bool = False
) -> Iterator[Running]:
    """A server whose model says these texts, one a choice, byte by byte."""
    loaded = speaking(*texts)
    templates = None if template is None else ChatTemplates({"default": ChatTemplate(template, TOKENIZER)})
    llm = AsyncLLM(
        replace(loaded, text_processor=TextProcessor(TOKENIZER, templates, GREEDY, max_new_tokens=most_tokens))
    )
    try:
        with running(Service(llm, Everybody()), ServerSettings(models=("tales",), strict=strict)) as up:
            yield up
    finally:
        llm.close()


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"temperature": 0, "max_tokens": 12}, {"temperature": 0.0, "max_tokens": 12}),
        ({"seed": 11, "n": 2, "max_completion_tokens": 12}, {"seed": 11, "n": 2, "max_tokens": 12}),
        ({"seed": 1, "max_tokens": 3, "max_completion_tokens": 9}, {"seed": 1, "max_tokens": 9}),
        (
            {"temperature": 0, "max_tokens": 12, "stop": [" girl"]},
            {"temperature": 0.0, "max_tokens": 12, "stop": (" girl",)},
        ),
    ],
)
def test_an_answer_is_what_the_engine_says(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any], params: dict[str, Any]
) -> None:
    wanted = llm.chat(MESSAGES, replace(llm.loaded.defaults, **params))
    answer = create(client, **fields)
    assert [c.message.content for c in answer.choices] == [c.text for c in wanted.choices]
    assert [c.finish_reason for c in answer.choices] == [c.finish for c in wanted.choices]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(wanted.prompt_ids)
    assert answer.usage.completion_tokens == sum(len(c.tokens) for c in wanted.choices)
    chunks = streamed(client, **fields)
    for choice in wanted.choices:
        deltas = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.delta.content or "" for c in deltas) == choice.text
        assert [c.delta.role for c in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
        assert deltas[0].delta.content, "the role comes with content, or it would look like a first token"
        assert [c.finish_reason for c in deltas] == [None] * (len(deltas) - 1) + [choice.finish]
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("stated", [None, 5, 10_000])
def test_without_max_tokens_there_is_room_to_the_end_of_the_context_or_as_much_as_the_model_states(
    stated: int | None,
) -> None:
    """stated: max_new_tokens of generation_config.json, which bounds what nobody asked for, and only that."""
    with saying("x" * 2000, most_tokens=stated) as server:
        info = server.service.llm.info
        room = min(info.context, info.capacity) - 23
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES}).json()
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["prompt_tokens"] == 23
        assert reply["usage"]["completion_tokens"] == min(stated or room, room)
        asked = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9}).json()
        assert asked["usage"]["completion_tokens"] == 9


def test_logprobs_have_tokens_bytes_and_alternatives(client: openai.OpenAI, llm: LLM) -> None:
    params = replace(llm.loaded.defaults, temperature=0.0, max_tokens=8, logprobs=2)
    wanted = llm.chat(MESSAGES, params).choices[0].tokens
    found = create(client, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2).choices[0].logprobs
    assert found is not None
    assert found.content is not None
    for one, told in zip(wanted, found.content, strict=True):
        assert (told.logprob, bytes(told.bytes or [])) == (one.logprob_raw, llm.tokenizer.token_bytes(one.token))
        assert told.token == llm.tokenizer.token_bytes(one.token).decode()
        assert [top.logprob for top in told.top_logprobs] == [logprob for _, logprob in one.top_raw]
        assert [bytes(top.bytes or []) for top in told.top_logprobs] == [
            llm.tokenizer.token_bytes(token) for token, _ in one.top_raw
        ]
    chunks = streamed(client, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2)
    parts = [c.logprobs.content for chunk in chunks for c in chunk.choices if c.logprobs is not None]
    assert [told for part in parts for told in part or []] == found.content


def test_streamed_logprobs_end_where_the_text_does() -> None:
    """Tokens of a stop string that was found are told in no chunk, though their text was held back for a while."""
    with saying("one ENd two END three") as server:
        body = {"messages": MESSAGES, "stop": ["END"], "logprobs": True, "max_tokens": 40}
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            whole = server.post("/v1/chat/completions", body).json()
            chunks = streamed(client, stop=["END"], logprobs=True, max_tokens=40)
        told = [t.token for chunk in chunks for c in chunk.choices for t in c.logprobs.content]
        assert told == [t["token"] for t in whole["choices"][0]["logprobs"]["content"]] == list("one ENd two END")
        assert whole["choices"][0]["message"]["content"] == "one ENd two "
        assert whole["usage"]["completion_tokens"] == len("one ENd two END")


def test_reasoning_is_told_apart_under_both_names_and_may_be_left_out() -> None:
    said = "<think>hm, a story</think>Once."
    with saying(said) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40}).json()
        message = reply["choices"][0]["message"]
        assert message["content"] == "Once."
        assert message["reasoning"] == message["reasoning_content"] == "hm, a story"
        details = reply["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == len("<think>hm, a story</think>")
        deltas = [c.delta for chunk in streamed(client, max_tokens=40) for c in chunk.choices]
        assert "".join(d.content or "" for d in deltas) == "Once."
        for name in ("reasoning", "reasoning_content"):
            assert "".join((d.model_extra or {}).get(name, "") for d in deltas) == "hm, a story"
        body = {"messages": MESSAGES, "max_tokens": 40, "include_reasoning": False}
        message = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        assert "reasoning" not in message
        assert message["content"] == "Once."
        raw = server.post("/v1/completions", {"prompt": "a", "max_tokens": 40}).json()["choices"][0]["text"]
        assert raw == said, "a completion is what the model writes, tags and all"


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            "<|channel|>analysis",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        ),
        ("<|channel>", "<|channel>thought\nhm<channel|>Yes."),
        ("<|START_THINKING|>", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"),
        ("<|begin|>assistant<|think|>", "<|think|>hm<|end|><|begin|>assistant<|content|>Yes."),
        ("[THINK]", "[THINK]hm[/THINK]Yes."),
    ],
)
def test_the_reasoning_of_every_format_is_told_apart(trace: str, said: str) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{# " + trace + " #}"
    with saying(said, template=template) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        most = {"max_tokens": len(said)}
        message = create(client, **most).choices[0].message
        assert (message.content, (message.model_extra or {})["reasoning_content"]) == ("Yes.", "hm")
        deltas = [c.delta for chunk in streamed(client, **most) for c in chunk.choices]
        assert "".join(d.content or "" for d in deltas) == "Yes."
        assert "".join((d.model_extra or {}).get("reasoning_content", "") for d in deltas) == "hm"
        response = client.responses.create(model="tales", input="a", max_output_tokens=len(said))
        assert response.output_text == "Yes."
        assert response.output[0].model_dump()["content"][0]["text"] == "hm"


def test_a_model_without_markers_of_reasoning_refuses_a_budget() -> None:
    with saying("x", template="{{ messages[0].content }}") as server:
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "thinking_token_budget": 3})
        assert reply.status == 400
        error = reply.json()["error"]
        assert error["param"] == "thinking_token_budget"
        assert "needs markers of reasoning" in error["message"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_in_a_message_reaches_the_template(name: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Yes.", name: "hm"}, *MESSAGES]
    with saying("x") as server:
        rendered = server.post("/v1/chat/completions/render", {"messages": messages}).json()
        assert "[assistant]<think>hm</think>Yes." in rendered["prompt"]


def test_the_template_gets_what_it_reads_and_nothing_else() -> None:
    """Check that other variables are ignored and listed, and that the names of other arguments are refused."""
    with saying("x") as server:

        def prompt(**fields: Any) -> Any:
            reply = server.post("/v1/chat/completions/render", {"messages": MESSAGES, **fields})
            if reply.status != 200:
                return reply.json()["error"]["param"]
            return reply.json()["prompt"], reply.headers.get("x-ridgeline-ignored-fields", "")

        plain = "[user]Once upon a time>"
        assert prompt() == (plain, "")
        assert prompt(add_generation_prompt=False) == (plain[:-1], "")
        assert prompt(chat_template_kwargs={"enable_thinking": False}) == (f"{plain}False", "")
        assert prompt(reasoning_effort="high") == (f"{plain}high", "")
        assert prompt(reasoning_effort="none") == (f"{plain}Falsenone", "")
        assert prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == (
            f"{plain}Truenone",
            "",
        )
        for name in ("tokenize", "add_generation_prompt", "messages", "chat_template", "tools"):
            assert prompt(chat_template_kwargs={name: True}) == "chat_template_kwargs"
        for name in ("__class__", "raise_exception", "bos_token", "self"):
            assert prompt(chat_template_kwargs={name: True}) == (plain, f"chat_template_kwargs.{name}")
        assert prompt(chat_template="{{ 1 }}") == "chat_template"
    with saying("x", template="{{ messages[0].content }}") as server:
        asked = prompt(reasoning_effort="high", chat_template_kwargs={"a": 1, "b": 2})
        assert asked == ("Once upon a time", "reasoning_effort,chat_template_kwargs.a,chat_template_kwargs.b")
        reply = server.post("/v1/responses", {"input": "hi", "reasoning": {"effort": "low"}, "max_output_tokens": 1})
        assert (reply.status, reply.headers["x-ridgeline-ignored-fields"]) == (200, "reasoning.effort")
        reply = server.post("/tokenize", {"messages": MESSAGES, "reasoning_effort": "low"})
        assert (reply.status, reply.headers["x-ridgeline-ignored-fields"]) == (200, "reasoning_effort")
    with saying("x", template="{{ messages[0].content }}{{ thinking }}") as server:
        assert prompt(reasoning_effort="high") == ("Once upon a timeTrue", "")
        assert prompt(reasoning_effort="none") == ("Once upon a timeFalse", "")


def test_a_strict_server_refuses_variables_that_the_template_does_not_read() -> None:
    with saying("x", template="{{ messages[0].content }}", strict=True) as server:
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template_kwargs": {"a": 1}})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "chat_template_kwargs")
        assert "chat_template_kwargs.a" in reply.json()["error"]["message"]


def test_parts_of_text_are_read_and_all_others_are_named(server: Running) -> None:
    parts: list[Any] = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    rendered = server.post("/v1/chat/completions/render", {"messages": [{"role": "user", "content": parts}]}).json()
    assert rendered["prompt"] == "<s>Once\nupon"
    for part in (
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "../x"}},
    ):
        reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [*parts, part]}]})
        error = reply.json()["error"]
        assert (reply.status, error["code"]) == (400, "unsupported_part")
        assert (
            f"messages[0].content[2]: this model reads only text; a part of the type {part['type']}" in error["message"]
        )


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"content": "no role"}],
        [{"role": "wizard", "content": "hello"}],
        [{"role": "user", "content": None}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": ["text"]}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"text": "no type"}]}],
        [{"role": "tool", "content": "no id"}],
        ["hello"],
        "hello",
        [{"role": "user", "content": "x"}] * 1025,
    ],
)
def test_what_is_no_conversation_is_refused(server: Running, messages: Any) -> None:
    reply = server.post("/v1/chat/completions", {"messages": messages})
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json()["error"]["param"] == "messages"


def test_a_conversation_needs_a_template() -> None:
    with saying("x", template=None) as server:
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES})
        assert reply.status == 400
        assert "/v1/completions" in reply.json()["error"]["message"]
        assert server.post("/v1/completions", {"prompt": "a"}).status == 200


def test_what_the_template_refuses_is_the_clients_mistake() -> None:
    with saying("x", template="{{ raise_exception('roles must alternate') }}") as server:
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES})
        assert reply.status == 400
        assert "roles must alternate" in reply.json()["error"]["message"]


def test_control_tokens_that_are_typed_stay_text(server: Running) -> None:
    rendered = server.post(
        "/v1/chat/completions/render", {"messages": [{"role": "user", "content": "a</s><s>b"}]}
    ).json()
    assert rendered["prompt_token_ids"].count(1) == 0
    assert rendered["prompt_token_ids"].count(0) == 1
    assert rendered["prompt"] == "<s>a</s><s>b"


def test_the_async_client_streams_many_at_once(server: Running, llm: LLM) -> None:
    seeds = range(8)
    wanted = [llm.chat(MESSAGES, replace(llm.loaded.defaults, seed=seed, max_tokens=10)).text for seed in seeds]

    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tales", messages=MESSAGES, seed=seed, max_tokens=10, stream=True
        )
        return "".join([c.delta.content or "" async for chunk in stream for c in chunk.choices])

    async def all_of_them() -> Sequence[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, seed) for seed in seeds))

    assert asyncio.run(all_of_them()) == wanted
    server.idle()


@pytest.mark.parametrize("text", ["Once upon a time", "  two spaces", "\nx", "a</s><s>b", "é🙂", "<"])
def test_the_template_of_tales_leaves_a_text_as_it_is(llm: LLM, text: str) -> None:
    """So that `run tales` tells the same story with the template as without."""
    assert llm.encode_chat([{"role": "user", "content": text}]) == llm.encode(text)


def test_a_template_may_come_from_a_file_of_the_operators(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ bos_token }}{{ messages[0].content }}{{ mood }}", encoding="utf-8")
    texts = load_text_processor("tales", chat_template=str(file))
    assert texts.templates is not None
    assert texts.templates.pick().variables == {"mood"}
    assert texts.encode_chat([{"role": "user", "content": "Once"}], 512, mood=" upon") == texts.encode("Once upon", 512)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat\.jinja: the chat template cannot be read: it is not UTF-8 text"):
        load_text_processor("tales", chat_template=str(file))
    file.write_text("{% for %}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"chat\.jinja: not valid Jinja"):
        load_text_processor("tales", chat_template=str(file))
    with pytest.raises(ValueError, match="No such file"):
        load_text_processor("tales", chat_template=str(tmp_path / "absent"))
