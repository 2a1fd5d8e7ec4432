"""/v1/completions through the official client, compared with LLM in one process under the same parameters."""

import asyncio
import json
import math
import threading
from dataclasses import replace
from typing import Any

import openai
import pytest
from msgspec import structs
from openai.types import Completion

from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.server.routes.completions import read_prompts
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running
from server.scripted import INFO

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=16)


def create(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Completion:
    """A completion that is not streamed."""
    answer = client.completions.create(model="tales", prompt=prompt, **fields)
    assert isinstance(answer, Completion)
    return answer


def streamed(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> list[Completion]:
    return list(client.completions.create(model="tales", prompt=prompt, stream=True, **fields))


def test_without_max_tokens_there_are_sixteen(client: openai.OpenAI, llm: LLM) -> None:
    answer = create(client, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == llm.generate(PROMPT, GREEDY)[0].text


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"seed": 7}, {"seed": 7}),  # the rest is what generation_config.json has
        ({"seed": 3, "temperature": 1.5, "top_p": 0.8}, {"seed": 3, "temperature": 1.5, "top_p": 0.8}),
        ({"seed": 3, "extra_body": {"top_k": 5, "min_p": 0.05}}, {"seed": 3, "top_k": 5, "min_p": 0.05}),
        (
            {"temperature": 0, "extra_body": {"repetition_penalty": 1.3}},
            {"temperature": 0.0, "repetition_penalty": 1.3},
        ),
        (
            {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": -0.5},
            {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": -0.5},
        ),
        ({"temperature": 0, "logit_bias": {"13": 100}}, {"temperature": 0.0, "logit_bias": {13: 100.0}}),
        ({"temperature": 0, "stop": "."}, {"temperature": 0.0, "stop": (".",)}),
        ({"temperature": 0, "stop": ["girl", "boy"]}, {"temperature": 0.0, "stop": ("girl", "boy")}),
        (
            {"temperature": 0, "stop": ".", "extra_body": {"include_stop_str_in_output": True}},
            {"temperature": 0.0, "stop": (".",), "include_stop": True},
        ),
        ({"temperature": 0, "extra_body": {"stop_token_ids": [13]}}, {"temperature": 0.0, "stop_token_ids": (13,)}),
        (
            {"temperature": 0, "extra_body": {"min_tokens": 3, "stop_token_ids": [13], "ignore_eos": True}},
            {"temperature": 0.0, "min_tokens": 3, "stop_token_ids": (13,), "ignore_eos": True},
        ),
        ({"seed": 5, "n": 3}, {"seed": 5, "n": 3}),
    ],
)
def test_fields_mean_what_they_mean_to_the_engine(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any], params: dict[str, Any]
) -> None:
    """Text, finish reason and usage, at once and streamed."""
    wanted = llm.generate(PROMPT, replace(llm.loaded.defaults, max_tokens=24, **params))[0]
    answer = create(client, max_tokens=24, **fields)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in wanted.choices]
    assert [choice.finish_reason for choice in answer.choices] == [choice.finish for choice in wanted.choices]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(choice.tokens) for choice in wanted.choices)
    assert answer.usage.prompt_tokens == len(wanted.prompt_ids)

    chunks = streamed(client, max_tokens=24, stream_options={"include_usage": True}, **fields)
    for choice in wanted.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.text for c in own) == choice.text
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + [choice.finish]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_a_prompt_may_be_a_text_texts_ids_or_lists_of_ids(client: openai.OpenAI, llm: LLM) -> None:
    other = "The dog"
    ids = [llm.encode(PROMPT), llm.encode(other)]
    texts = [done.text for done in llm.generate([PROMPT, other], GREEDY)]
    for prompt in (PROMPT, [PROMPT], ids[0], [ids[0]]):
        assert [c.text for c in create(client, prompt, temperature=0).choices] == texts[:1]
    for several in ([PROMPT, other], ids):
        answer = create(client, several, temperature=0, n=2)
        assert [c.index for c in answer.choices] == [0, 1, 2, 3]
        assert [c.text for c in answer.choices] == [texts[0], texts[0], texts[1], texts[1]]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids[0]) + len(ids[1])
        chunks = streamed(client, several, temperature=0, n=2)
        for index in range(4):
            own = [c.text for chunk in chunks for c in chunk.choices if c.index == index]
            assert "".join(own) == texts[index // 2]


def test_logprobs_have_the_tokens_as_they_read(client: openai.OpenAI, llm: LLM) -> None:
    """Token strings, raw log-probabilities, the likeliest tokens, and where in the text each begins."""
    wanted = llm.generate(PROMPT, replace(GREEDY, logprobs=3))[0].choices[0]
    choice = create(client, temperature=0, logprobs=3).choices[0]
    found = choice.logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert found.text_offset is not None
    assert "".join(found.tokens) == choice.text == wanted.text
    assert found.token_logprobs == [one.logprob_raw for one in wanted.tokens]
    for one, text, top in zip(wanted.tokens, found.tokens, found.top_logprobs, strict=True):
        likeliest = {llm.tokenizer.token_bytes(token).decode(): logprob for token, logprob in one.top_raw}
        assert top == likeliest | {text: one.logprob_raw}
    assert [choice.text[at:].startswith(text) for at, text in zip(found.text_offset, found.tokens, strict=True)]
    chunks = [c.logprobs for chunk in streamed(client, temperature=0, logprobs=3) for c in chunk.choices]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [v for part in chunks for v in getattr(part, name)] == getattr(found, name)


@pytest.mark.parametrize("most", [0, 1])
def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI, llm: LLM, most: int) -> None:
    """As lm-eval's local-completions asks for log-likelihoods: the prompt's own tokens, the first without a value."""
    ids = llm.encode(f"{PROMPT} there was a dog")
    wanted = llm.generate(ids, replace(GREEDY, max_tokens=1, prompt_logprobs=1))[0]
    assert wanted.prompt_logprobs is not None
    answer = create(client, ids, echo=True, max_tokens=most, logprobs=1, temperature=0)
    choice = answer.choices[0]
    assert choice.text == llm.tokenizer.decode(ids) + (wanted.text if most else "")
    found = choice.logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert len(found.token_logprobs) == len(ids) + most
    assert found.token_logprobs[: len(ids)] == [None if s is None else s.logprob for s in wanted.prompt_logprobs]
    for score, top in list(zip(wanted.prompt_logprobs, found.top_logprobs, strict=False))[1:]:
        assert score is not None
        assert top is not None
        assert max(top.values()) == score.top[0][1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == most
    chunks = [c for chunk in streamed(client, ids, echo=True, max_tokens=most, logprobs=1) for c in chunk.choices]
    assert [v for c in chunks for v in c.logprobs.token_logprobs][: len(ids)] == found.token_logprobs[: len(ids)]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_a_prompt_that_fills_the_context(server: Running, llm: LLM, stream: bool) -> None:
    """Alone and among shorter ones, with every choice; one token more is too long."""
    context = llm.engine.traits.context
    whole, short = [5 + at % 90 for at in range(context)], [7, 8, 9]
    scored = llm.generate([whole, short], SamplingParams(max_tokens=0, prompt_logprobs=1))
    body = {"prompt": [whole, short], "max_tokens": 0, "echo": True, "logprobs": 1, "n": 2, "stream": stream}
    reply = server.post("/v1/completions", body)
    assert reply.status == 200, reply.data
    if stream:
        lines = reply.data.decode().split("\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        choices = sorted((c for chunk in chunks for c in chunk["choices"]), key=lambda choice: choice["index"])
    else:
        choices = reply.json()["choices"]
        assert reply.json()["usage"]["completion_tokens"] == 0
        assert reply.json()["usage"]["prompt_tokens"] == context + 3
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice in choices:
        wanted = scored[choice["index"] // 2]
        assert (choice["text"], choice["finish_reason"]) == (llm.tokenizer.decode(wanted.prompt_ids), "length")
        assert wanted.prompt_logprobs is not None
        logprobs = [None if score is None else score.logprob for score in wanted.prompt_logprobs]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs)
    body["prompt"] = [*whole, 5]
    assert server.post("/v1/completions", body).json()["error"]["code"] == "context_length_exceeded"
    assert server.post("/v1/completions", {**body, "prompt": whole, "max_tokens": 1}).status == 400
    alone = server.post("/v1/completions", {"prompt": whole, "max_tokens": 0, "prompt_logprobs": 0}).json()["choices"][
        0
    ]
    assert (alone["text"], len(alone["prompt_logprobs"])) == ("", context)
    server.idle()


def test_ids_and_prompt_logprobs_come_back_where_asked_for(server: Running, llm: LLM) -> None:
    wanted = llm.generate(PROMPT, replace(GREEDY, max_tokens=4, prompt_logprobs=2))[0]
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4, "return_token_ids": True, "prompt_logprobs": 2}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    assert choice["token_ids"] == wanted.choices[0].token_ids
    assert choice["prompt_token_ids"] == wanted.prompt_ids
    assert wanted.prompt_logprobs is not None
    assert choice["prompt_logprobs"][0] is None
    for told, score in list(zip(choice["prompt_logprobs"], wanted.prompt_logprobs, strict=True))[1:]:
        assert score is not None
        assert told[str(score.token)]["logprob"] == score.logprob
        assert [told[str(i)]["rank"] for i, _ in score.top] == [1, 2]
        assert told[str(score.token)]["decoded_token"] == llm.tokenizer.token_bytes(score.token).decode()
    server.idle()


def test_long_scores_of_prompts_are_streamed_whole(server: Running) -> None:
    """More of them than a client may leave unread, and all there before it could read any."""
    prompts = [[5 + (i * step) % 1000 for i in range(400)] for step in (1, 3)]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 2, "n": 2, "prompt_logprobs": 20}
    whole = server.post("/v1/completions", body).json()["choices"]
    assert len(json.dumps(whole[0])) > ServerSettings().send_buffer_bytes
    frames = server.post("/v1/completions", {**body, "stream": True}).data.split(b"\n\n")
    assert frames[-2] == b"data: [DONE]"
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    told = {c["index"]: c["prompt_logprobs"] for chunk in chunks for c in chunk["choices"] if "prompt_logprobs" in c}
    assert told == {choice["index"]: choice["prompt_logprobs"] for choice in whole}
    server.idle()


def test_usage_may_come_with_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(client, temperature=0, max_tokens=6, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_what_was_found_in_the_prefix_cache_is_told_and_a_salt_separates(client: openai.OpenAI) -> None:
    prompt = "A long story about a cat and a dog and a bird, " * 4

    def cached(**extra: Any) -> int:
        usage = create(client, prompt, temperature=0, max_tokens=2, extra_body=extra).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert cached() == 0
    assert cached() > 32
    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") == cached()
    assert cached(cache_salt="yours") == 0


def test_timings_tell_what_a_request_took(server: Running) -> None:
    took = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True}).json()["timings"]
    assert took["predicted_n"] == 8
    assert took["cache_n"] + took["prompt_n"] == 5
    assert math.isclose(took["queued_ms"] + took["prompt_ms"] + took["predicted_ms"], took["total_ms"], abs_tol=0.01)
    assert took["first_token_ms"] <= took["total_ms"]
    server.idle()


@pytest.mark.parametrize("count", [1, 3])
def test_rates_follow_from_the_numbers_beside_them(server: Running, count: int) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "n": count}
    took = server.post("/v1/completions", body).json()["timings"]
    assert took["predicted_n"] == 8 * count
    for what, tokens in (("prompt", took["prompt_n"]), ("predicted", 7 * count)):
        assert math.isclose(took[f"{what}_per_second"], tokens / took[f"{what}_ms"] * 1000, rel_tol=1e-5)
    server.idle()


def test_a_single_token_has_no_rate(server: Running) -> None:
    """Check the rate of the tokens after the first, of which there are none."""
    took = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json()["timings"]
    assert (took["predicted_n"], took["predicted_per_second"]) == (1, 0)
    server.idle()


def test_timings_begin_when_the_server_has_the_request(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server does before the engine hears of it is waited for too."""
    encode = ServedModel.encode

    async def slowly(model: ServedModel, text: str, **more: Any) -> list[int]:
        await asyncio.sleep(0.2)
        return await encode(model, text, **more)

    monkeypatch.setattr(ServedModel, "encode", slowly)
    took = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json()["timings"]
    assert took["queued_ms"] >= 200
    assert took["first_token_ms"] >= 200
    server.idle()


def test_how_far_a_long_prompt_has_been_read_is_told_before_its_first_token(client: openai.OpenAI) -> None:
    """Chunks without choices, which no client takes for a token."""
    chunks = streamed(client, "One day " * 100, max_tokens=2, extra_body={"return_progress": True, "cache_salt": "p"})
    told = [chunk.model_extra["prompt_progress"] for chunk in chunks if "prompt_progress" in (chunk.model_extra or {})]
    assert told[-1]["processed"] == told[-1]["total"] > 100
    assert all(not chunk.choices for chunk in chunks[: len(told)])
    assert all(chunk.choices for chunk in chunks[len(told) :])


def test_many_short_prompts_do_not_hold_up_the_event_loop() -> None:
    """They are encoded beside it as a long one is; few are not worth a thread."""
    where: set[int] = set()

    class Watched(ByteTokenizer):
        def encode(self, text: str, **more: bool) -> list[int]:
            where.add(threading.get_ident())
            return super().encode(text, **more)

    texts = TextProcessor(Watched(), None, SamplingParams())
    model = ServedModel(("m",), texts, structs.replace(INFO, context=1 << 20, capacity=1 << 20, vocabulary=257))

    async def run(prompts: list[str]) -> bool:
        where.clear()
        assert await read_prompts(prompts, model, ServerSettings()) == [list(text.encode()) for text in prompts]
        return threading.get_ident() in where

    assert not asyncio.run(run([letter * 2000 for letter in "abcdefghijkl"]))
    assert asyncio.run(run(["a" * 2000, "b"]))
