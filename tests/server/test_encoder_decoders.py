"""An encoder-decoder behind OpenAI's routes of text: the prompt is what its encoder reads, and the answer is its own
text. Compared with LLM under the same parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.folders import CHAT, write_model
from models.configs import ENCODER_DECODERS
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running, running

TEXT = "The cat is black"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


@contextmanager
def served(llm: LLM) -> Iterator[tuple[Running, openai.OpenAI]]:
    """A server of a model that is loaded, called `m`, and a client. It is left idle."""
    behind, settings = AsyncLLM(llm.loaded), ServerSettings(models=("m",))
    try:
        with running(build_service(behind, RequestQueue(behind.info, settings), settings), settings) as up:
            with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client:
                yield up, client
            up.idle()
    finally:
        behind.close()


def test_completions_of_translate() -> None:
    """Whole, several prompts, several choices with log-probabilities, streamed."""
    llm = LLM("translate", threads=1)
    texts = [TEXT, "I have two brothers."]
    wanted = llm.generate(texts, replace(llm.loaded.defaults, max_tokens=16, temperature=0.0, logprobs=2))
    drawn = llm.generate(TEXT, replace(llm.loaded.defaults, max_tokens=16, seed=5, n=3))[0]
    lengths = [len(llm.encode(text)) for text in texts]
    with served(llm) as (_, client):
        answer = client.completions.create(model="m", prompt=texts, temperature=0, logprobs=2)
        assert [choice.text for choice in answer.choices] == [each.text for each in wanted]
        assert all(each.text for each in wanted)
        for choice, each in zip(answer.choices, wanted, strict=True):
            tokens = each.choices[0].tokens
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs == pytest.approx([one.logprob_raw for one in tokens])
            assert choice.logprobs.text_offset is not None
            assert choice.logprobs.text_offset[0] == 0, "the prompt is no part of the text"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(lengths)
        assert answer.usage.completion_tokens == sum(len(each.choices[0].tokens) for each in wanted)
        several = client.completions.create(model="m", prompt=TEXT, seed=5, n=3)
        assert [choice.text for choice in several.choices] == [choice.text for choice in drawn.choices]
        pieces = list(client.completions.create(model="m", prompt=TEXT, temperature=0, stream=True))
        assert len(pieces) > 2
        assert "".join(piece.choices[0].text for piece in pieces) == wanted[0].text


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_conversations_and_what_an_encoder_cannot_do(kind: str, tmp_path: Path) -> None:
    """With a chat template the encoder reads what it writes. The room for an answer is the decoder's, whatever the
    prompt has; the encoder's is 64."""
    llm = LLM(str(write_model(tmp_path, config=ENCODER_DECODERS[kind], template=CHAT)))
    messages = [{"role": "user", "content": "hi"}]
    params = replace(GREEDY, ignore_eos=True)
    wanted, long = llm.chat(messages, params), llm.generate([[7] * 64], replace(params, max_tokens=63))[0]
    with served(llm) as (up, client):
        body: dict[str, Any] = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 16}
        told = client.chat.completions.create(**body, extra_body={"ignore_eos": True})
        assert told.choices[0].message.content == wanted.text
        assert told.usage is not None
        assert told.usage.prompt_tokens == len(wanted.prompt_ids) > 1
        asked = {"prompt": [7] * 64, "temperature": 0, "max_tokens": 63, "ignore_eos": True, "return_token_ids": True}
        (choice,) = up.post("/v1/completions", asked).json()["choices"]
        assert choice["token_ids"] == long.choices[0].token_ids
        for changes, param, words in (
            (
                {"prompt": [7] * 65},
                None,
                "the prompt has 65 tokens, but the model's encoder reads at most 64: shorten",
            ),
            (
                {"max_tokens": 64},
                "max_tokens",
                "64 tokens are requested, but the model's decoder has room for 63: give",
            ),
            ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; give at least 1"),
            ({"echo": True}, "echo", "echo: the output of an encoder-decoder model does not continue its prompt"),
            ({"echo": True, "logprobs": 1, "max_tokens": 0}, "echo", "leave echo out"),
            ({"prompt_logprobs": 1}, "prompt_logprobs", "prompt_logprobs does not work with encoder-decoder models"),
        ):
            reply = up.post("/v1/completions", asked | changes)
            error = reply.json()["error"]
            assert (reply.status, error["param"]) == (400, param)
            assert words in error["message"]
            assert "\n" not in error["message"]
    for ask in (llm.generate, lambda *asked: list(llm.stream(*asked))):
        with pytest.raises(ValueError, match="prompt_logprobs does not work with encoder-decoder models"):
            ask("abc", replace(params, prompt_logprobs=0))
    assert not llm.engine.has_work
