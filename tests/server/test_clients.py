"""Other people's clients: LangChain's ChatOpenAI, and lm-eval's way to ask for log-likelihoods."""

import asyncio
from dataclasses import replace
from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from ridgeline.engine.llm import LLM
from server.conftest import Running

PROMPT = "Once upon a time"


@pytest.fixture
def chat(server: Running) -> ChatOpenAI:
    options: Any = {"base_url": f"{server.url}/v1", "api_key": "none", "model": "tales", "max_retries": 0}
    return ChatOpenAI(**options, temperature=0, max_completion_tokens=12)


def test_langchain_asks_and_streams(server: Running, chat: ChatOpenAI, llm: LLM) -> None:
    params = replace(llm.loaded.defaults, temperature=0.0, max_tokens=12)
    wanted = llm.chat([{"role": "user", "content": PROMPT}], params)
    answer = chat.invoke(PROMPT)
    assert answer.content == wanted.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 12
    assert answer.response_metadata["finish_reason"] == "length"

    async def streamed() -> list[Any]:
        return [chunk async for chunk in chat.astream(PROMPT, stream_usage=True)]

    chunks = asyncio.run(streamed())
    assert "".join(str(chunk.content) for chunk in chunks) == wanted.text
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 12
    server.idle()


class Weather(BaseModel):
    """What the sky does."""

    rain: bool


def test_langchain_gets_an_object_of_its_schema(server: Running, chat: ChatOpenAI) -> None:
    structured = chat.with_structured_output(Weather, method="json_schema")
    assert isinstance(structured.invoke(PROMPT, max_completion_tokens=100), Weather)
    server.idle()


class Trip(BaseModel):
    """A trip to somewhere."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def test_langchain_has_a_function_called_streamed_or_not(server: Running, chat: ChatOpenAI) -> None:
    """The built-in model knows no functions: it calls one because nothing else is let through."""
    bound = chat.bind_tools([Trip], tool_choice="Trip", strict=True, max_completion_tokens=60)
    (call,) = bound.invoke(PROMPT).tool_calls
    assert call["name"] == "Trip"
    assert 1 <= Trip.model_validate(call["args"]).days <= 9
    whole: Any = None
    for part in bound.stream(PROMPT):
        whole = part if whole is None else whole + part
    assert [(again["name"], again["args"]) for again in whole.tool_calls] == [(call["name"], call["args"])]
    structured = chat.with_structured_output(Trip, method="function_calling", strict=True)
    assert structured.invoke(PROMPT, max_completion_tokens=60) == Trip.model_validate(call["args"])
    server.idle()


def test_loglikelihoods_as_lm_eval_reads_them(server: Running, llm: LLM) -> None:
    """The payload and the reading of its local-completions (models/openai_completions.py): token ids, echo, one token
    more, sums between the context's end and the last token, and whether each was the likeliest."""
    pairs = [(PROMPT, " there was a little girl"), ("The dog", " was very happy"), ("A", "zzz")]
    ids = [(llm.encode(context), llm.encode(context + more)) for context, more in pairs]
    payload = {"model": "tales", "prompt": [both for _, both in ids], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    choices = server.post("/v1/completions", {**payload, "seed": 1234, "echo": True}).json()["choices"]
    for choice, (context, both) in zip(sorted(choices, key=lambda choice: choice["index"]), ids, strict=True):
        told = choice["logprobs"]
        found = sum(told["token_logprobs"][len(context) : -1])
        tops = zip(told["token_logprobs"], told["top_logprobs"], strict=True)
        greedy = all(own == max(top.values()) for own, top in list(tops)[len(context) : -1])
        (done,) = llm.generate(both, replace(llm.loaded.defaults, max_tokens=1, prompt_logprobs=1))
        assert done.prompt_logprobs is not None
        scores = [score for score in done.prompt_logprobs[len(context) :] if score is not None]
        assert len(scores) == len(both) - len(context) > 0
        assert found == pytest.approx(sum(score.logprob for score in scores), abs=1e-4)
        assert greedy == all(score.token == score.top[0][0] for score in scores)
    server.idle()
