"""transformers' logits processors as a second oracle, for kept sets and for probabilities."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, Sampled, SampleRow
from support.samplers import CPU_SAMPLER

PROMPT, OUTPUT = [3, 9, 9, 20], [20, 7]

CASES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"top_k": 12},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1},
]


def oracle(logits_1V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities after transformers' processors, in the order in which `generate` applies them."""
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        processors.append(MinPLogitsWarper(params.min_p))
    ids = torch.tensor([PROMPT + OUTPUT]).long()
    return processors(ids, logits_1V.double()).softmax(-1)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "std"), [(50, 2.0), (5000, 0.5), (5000, 3.0)])
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_same_kept_set_and_probabilities(fields: dict[str, Any], size: int, std: float) -> None:
    logits_1V = torch.from_numpy(np.random.default_rng(size).standard_normal((1, size)).astype(np.float32)) * std
    params = SamplingParams(logprobs=size, **fields)
    result = CPU_SAMPLER.sample(logits_1V, [SampleRow(params, seed=0, position=6, history=History(PROMPT, OUTPUT))])[0]
    assert isinstance(result, Sampled)
    expected = oracle(logits_1V, params)
    got = torch.zeros(size, dtype=torch.float64)
    for token, logprob in result.top:
        got[token] = math.exp(logprob)
    assert torch.equal(got > 0, expected > 0)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-12)
