"""SmolLM2-135M-Instruct, a GGUF file, against transformers in fp32: text, log-probabilities, perplexity; any batch."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from real.references import assert_greedy, logits_of, logprobs_of
from real.texts import ALICE, CONVERSATIONS, PROMPTS, QUESTION
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("exact_products")]

TOLERANCE = 5e-4  # nats
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(smollm2: Path, exact_products: None) -> LLM:
    return LLM(str(smollm2), EngineSettings(kv_bytes=1e9), threads=1)


def encoded(llm: LLM) -> list[list[int]]:
    """Return all prompts and conversations as ids."""
    return [*map(llm.encode, PROMPTS), *map(llm.encode_chat, CONVERSATIONS.values())]


def test_greedy_text_is_transformers(llm: LLM, theirs: PreTrainedModel) -> None:
    """Every prompt and conversation gets 256 tokens, with the log-probabilities of the three likeliest at each."""
    prompts = encoded(llm)
    completions = llm.generate(prompts, SamplingParams(**GREEDY, max_tokens=256, logprobs=3))
    for prompt, completion in zip(prompts, completions, strict=True):
        (choice,) = completion.choices
        assert len(choice.tokens) == 256
        logits_TV = logits_of(theirs, [*prompt, *choice.token_ids])
        assert_greedy(logits_TV, prompt, choice.token_ids)
        expected_TV = torch.log_softmax(logits_TV[len(prompt) - 1 : -1].double(), dim=1)
        for sampled, row_V in zip(choice.tokens, expected_TV, strict=True):
            assert sampled.logprob == pytest.approx(float(row_V[sampled.token]), abs=TOLERANCE)
            assert len(sampled.top) == 3
            for token, logprob in sampled.top:
                assert logprob == pytest.approx(float(row_V[token]), abs=TOLERANCE)
            assert sampled.top[2][1] >= float(row_V.topk(3).values[2]) - TOLERANCE


def test_a_response_ends_where_transformers_ends_it(llm: LLM, theirs: PreTrainedModel) -> None:
    """Transformers' own loop writes the same tokens up to the end token."""
    prompt = llm.encode_chat(QUESTION)
    with torch.inference_mode():
        whole = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)[0].tolist()
    (choice,) = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=40))[0].choices
    assert choice.token_ids == whole[len(prompt) :]
    assert choice.text == "The capital of France is Paris."
    assert llm.chat(QUESTION, SamplingParams(temperature=0.0, max_tokens=40)).text == choice.text


def test_log_probabilities_and_perplexity_of_a_passage(llm: LLM, theirs: PreTrainedModel) -> None:
    ids = llm.encode(ALICE)
    assert len(ids) > 500
    (completion,) = llm.generate([ids], SamplingParams(**GREEDY, max_tokens=1, prompt_logprobs=0))
    assert completion.prompt_logprobs is not None
    ours_T = torch.tensor([score.logprob for score in completion.prompt_logprobs[1:] if score is not None])
    theirs_T = logprobs_of(logits_of(theirs, ids), ids)
    assert float((ours_T - theirs_T).abs().max()) <= TOLERANCE
    ours, expected = (math.exp(-float(each_T.double().mean())) for each_T in (ours_T, theirs_T))
    assert ours == pytest.approx(expected, rel=1e-5)
    assert 5 < expected < 50


WAYS: dict[str, EngineSettings] = {
    "chunks of 7, no cache": EngineSettings(kv_bytes=1e9, limits=Limits(chunk=7), prefix_cache=False),
    "chunks of 64, pages of 4": EngineSettings(kv_bytes=1e9, limits=Limits(chunk=64, tokens=96), page_size=4),
    "one request at a time": EngineSettings(kv_bytes=1e9, limits=Limits(requests=1)),
    "so few pages that requests are preempted": EngineSettings(kv_bytes=12e6, limits=Limits(tokens=48, requests=8)),
    "guessed from the text": EngineSettings(kv_bytes=1e9, speculation=Speculation("ngram", 4)),
}


@pytest.fixture(scope="module")
def their_logits(theirs: PreTrainedModel) -> Callable[[tuple[int, ...]], Tensor]:
    """The logits of transformers, computed once for each sequence: all ways are to write the same ones."""
    return cache(lambda ids: logits_of(theirs, ids))


@pytest.mark.parametrize("way", WAYS)
def test_any_company_gives_the_same_text(
    llm: LLM, smollm2: Path, their_logits: Callable[[tuple[int, ...]], Tensor], way: str
) -> None:
    """Two prompts have a beginning in common, and come a second time: with the cache, their pages are found."""
    story = llm.encode(ALICE)[:70]
    prompts = [*encoded(llm), story, story[:64] + llm.encode(" Then the Queen said")]
    params = SamplingParams(**GREEDY, max_tokens=32)
    other = LLM(str(smollm2), WAYS[way], threads=1)
    completions = other.generate(prompts, params)
    again = other.generate(prompts[-2:], params)
    for completion in (*completions, *again):
        (choice,) = completion.choices
        assert choice.error is None
        logits_TV = their_logits((*completion.prompt_ids, *choice.token_ids))
        assert_greedy(logits_TV, completion.prompt_ids, choice.token_ids)
    assert all((completion.cached > 0) == WAYS[way].prefix_cache for completion in again)
    assert (other.engine.stats.preemptions > 0) == ("preempted" in way)
