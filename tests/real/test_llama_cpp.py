"""SmolLM2-135M-Instruct next to llama.cpp: the same tokens and prompts; text and likelihoods within its own noise.

llama.cpp rounds the rows of every product to 8 bits, so its log-probabilities differ from those of exact products. How
much they do is measured against transformers in fp32; ours, with our own kernels, may be no further away from it.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from real.llama_cpp import LlamaCpp
from real.references import logits_of, logprobs_of
from real.texts import ALICE, AWKWARD, CONVERSATIONS, PROMPTS
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.sampling import PromptLogprob

pytestmark = pytest.mark.real

SCORED = 160
"""Tokens of the passage that llama.cpp is asked for, one request each."""


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    """The engine as a user runs it, on whatever kernels this processor has."""
    return LLM(str(smollm2), EngineSettings(kv_bytes=1e9), threads=1)


def scored(llm: LLM, ids: list[int]) -> list[PromptLogprob]:
    """Return our log-probability of each token but the first, with the two likeliest there."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    found = llm.generate([ids], params)[0].prompt_logprobs
    assert found is not None
    return [each for each in found if each is not None]


def spread(first_T: Tensor, second_T: Tensor) -> float:
    """Return the root of the mean square difference."""
    return float((first_T - second_T).square().mean().sqrt())


def test_awkward_texts_are_the_same_tokens(llm: LLM, llama_cpp: LlamaCpp) -> None:
    """Control tokens written in a text are text there, and tokens where they are asked for."""
    for text in AWKWARD:
        plain = llm.tokenizer.encode(text, add_special=False, parse_special=False)
        assert plain == llama_cpp.tokenize(text), text
        assert llm.tokenizer.encode(text, add_special=False, parse_special=True) == llama_cpp.tokenize(
            text, special=True
        ), text
        assert llm.tokenizer.decode(plain) == text


def test_published_texts_are_the_same_tokens(llm: LLM, llama_cpp: LlamaCpp, data_dir: Path) -> None:
    """The inputs of llama.cpp's own tests, and the first lines of templates, prose and code."""
    vectors = (data_dir / "tokenizers/vectors/gpt-2.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    files = [*sorted((data_dir / "chat-templates").iterdir()), data_dir / "text/tinyshakespeare.txt"]
    texts = [*vectors, *(path.read_text(encoding="utf-8")[:2000] for path in files if path.is_file())]
    assert len(texts) > 60
    for text in texts:
        assert llm.tokenizer.encode(text, add_special=False, parse_special=False) == llama_cpp.tokenize(text), text


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_are_the_same_prompt(llm: LLM, llama_cpp: LlamaCpp, name: str) -> None:
    prompt = llama_cpp.render(CONVERSATIONS[name])
    assert prompt.endswith("<|im_start|>assistant\n")
    assert llm.encode_chat(CONVERSATIONS[name]) == llama_cpp.tokenize(prompt, special=True)


def test_a_passage_is_as_likely(llm: LLM, llama_cpp: LlamaCpp, theirs: PreTrainedModel) -> None:
    """Log-probabilities are compared token by token, then the perplexity."""
    ids = llm.encode(ALICE)[:SCORED]
    exact_T = logprobs_of(logits_of(theirs, ids), ids)
    llama_T = torch.tensor(llama_cpp.logprobs(ids), dtype=torch.float64)
    ours_T = torch.tensor([each.logprob for each in scored(llm, ids)], dtype=torch.float64)
    noise = spread(llama_T, exact_T)
    assert 0.01 < noise < 0.3, "llama.cpp has kernels that round rows"
    assert spread(ours_T, exact_T) <= 1.1 * noise
    assert spread(ours_T, llama_T) <= 1.5 * noise
    ours, expected = math.exp(-float(ours_T.mean())), math.exp(-float(llama_T.mean()))
    assert ours == pytest.approx(expected, rel=3 * noise / math.sqrt(SCORED - 1))


@pytest.mark.parametrize("place", range(len(PROMPTS)))
def test_greedy_texts_are_the_same_where_the_choice_is_clear(
    llm: LLM, llama_cpp: LlamaCpp, theirs: PreTrainedModel, place: int
) -> None:
    """The text of llama.cpp is as likely to ours. Ours writes it too, but for places of two likely tokens."""
    prompt = llm.encode(PROMPTS[place])
    written, logprobs = llama_cpp.greedy(prompt, 96)
    whole = [*prompt, *written]
    exact_T = logprobs_of(logits_of(theirs, whole), whole)[len(prompt) - 1 :]
    llama_T = torch.tensor(logprobs, dtype=torch.float64)
    ours = scored(llm, whole)[len(prompt) - 1 :]
    noise = spread(llama_T, exact_T)
    assert spread(torch.tensor([each.logprob for each in ours]), llama_T) <= 2 * noise
    clear = [each for each in ours if each.top[0][1] - each.top[1][1] > 8 * noise]
    assert len(clear) >= 0.6 * len(written)
    assert [each.top[0][0] for each in clear] == [each.token for each in clear]
    assert sum(each.top[0][0] == each.token for each in ours) >= 0.9 * len(written)
