"""The order of operations: cases in which any other order gives another kept set or another token."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, Sampled, SampleRow
from support.samplers import CPU_SAMPLER

Exact = Callable[..., NDArray[np.float64]]


def run(logits: list[float], params: SamplingParams, row: dict[str, Any] | None = None) -> Sampled:
    result = CPU_SAMPLER.sample(torch.tensor([logits]), [SampleRow(params, seed=0, position=0, **(row or {}))])[0]
    assert isinstance(result, Sampled)
    return result


def kept(probabilities: list[float], params: SamplingParams) -> dict[int, float]:
    logits = [math.log(p) for p in probabilities]
    return {token: math.exp(logprob) for token, logprob in run(logits, params).top}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """0.4 is 0.57 of the two that are left, so p = 0.55 needs one; of all four it would need two."""
    assert kept([0.4, 0.3, 0.2, 0.1], SamplingParams(top_k=2, top_p=0.55, logprobs=4)).keys() == {0}
    assert kept([0.4, 0.3, 0.2, 0.1], SamplingParams(top_p=0.55, logprobs=4)).keys() == {0, 1}


def test_truncation_sees_the_distribution_after_temperature() -> None:
    """At temperature 2, [0.64, 0.16, 0.16, 0.04] is [0.4, 0.2, 0.2, 0.1] / 0.9."""
    probabilities = [0.64, 0.16, 0.16, 0.04]
    assert kept(probabilities, SamplingParams(top_p=0.62, logprobs=4)).keys() == {0}
    assert kept(probabilities, SamplingParams(top_p=0.62, temperature=2, logprobs=4)).keys() == {0, 1}
    assert kept(probabilities, SamplingParams(min_p=0.3, logprobs=4)).keys() == {0}
    assert kept(probabilities, SamplingParams(min_p=0.3, temperature=2, logprobs=4)).keys() == {0, 1, 2}


def test_bias_comes_before_penalties_and_penalties_before_the_argmax() -> None:
    """Token 0: (2 + 4) / 3 = 2 loses to 2.5; penalised before the bias it would be 2 / 3 + 4 and win."""
    params = SamplingParams(temperature=0, logit_bias={0: 4.0}, repetition_penalty=3.0)
    assert run([2.0, 2.5], params, {"history": History([0])}).token == 1


def test_repetition_comes_before_frequency_and_presence() -> None:
    """Token 0: 3 / 2 - 2 x 0.5 - 0.25 = 0.25 under 0.5; subtracting first gives (3 - 1.25) / 2 = 0.875."""
    params = SamplingParams(temperature=0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert run([3.0, 0.5], params, {"history": History([], [0, 0])}).token == 1


def test_frequency_and_presence_ignore_the_prompt_and_repetition_does_not() -> None:
    history = History([0, 0, 0], [1])
    flat = [1.0, 1.0, 0.9]
    assert run(flat, SamplingParams(temperature=0, frequency_penalty=1), {"history": history}).token == 0
    assert run(flat, SamplingParams(temperature=0, presence_penalty=1), {"history": history}).token == 0
    assert run(flat, SamplingParams(temperature=0, repetition_penalty=2), {"history": history}).token == 2


def test_min_tokens_wins_over_bias_and_ends_when_enough_are_generated() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, logit_bias={2: 100.0})
    for generated, token in ((0, 1), (2, 1), (3, 2), (4, 2)):
        assert run([0.0, 1.0, 5.0], params, {"generated": generated, "end_ids": (2,)}).token == token
    drawn = SamplingParams(min_tokens=1, logit_bias={2: 50.0})
    assert run([0.0, 1.0, 5.0], drawn, {"end_ids": (2, 1)}).token == 0


@pytest.mark.parametrize("std", [0.3, 3.0])
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(2, 60), st.floats(0.1, 3), st.integers(0, 70), st.floats(0.01, 1),
    st.floats(0, 0.5), st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2),
)  # fmt: skip
def test_probabilities_are_the_brute_force_ones(
    exact: Exact, std: float, seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float,
    repetition: float, frequency: float, presence: float,
) -> None:  # fmt: skip
    """Any combination, whole distribution, by asking for all alternatives."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(size) * std).astype(np.float32)
    prompt, output = rng.integers(size, size=4).tolist(), rng.integers(size, size=5).tolist()
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition,
        frequency_penalty=frequency, presence_penalty=presence, logit_bias={0: 1.5}, logprobs=size,
    )  # fmt: skip
    result = run(logits.tolist(), params, {"history": History(prompt, output)})
    probabilities = exact(logits, params, prompt, output)
    got = np.zeros(size)
    for token, logprob in result.top:
        got[token] = math.exp(logprob)
    # A probability within rounding of a bound may fall on either side of it: then one token more or less is right.
    if (got > 0).sum() != (probabilities > 0).sum():
        strict = replace(params, top_p=top_p - 1e-5, min_p=min_p * 1.00001)
        loose = replace(params, top_p=min(top_p + 1e-5, 1.0), min_p=min_p * 0.99999)
        fewest, most = ((exact(logits, either, prompt, output) > 0).sum() for either in (strict, loose))
        assert fewest <= (got > 0).sum() <= most
    else:
        np.testing.assert_allclose(got, probabilities, rtol=2e-5, atol=1e-9)
    assert dict(result.top)[result.token] == result.logprob
