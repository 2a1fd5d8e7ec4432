"""The brute-force reference: one row's exact distribution in float64, by full sorts and Python loops.

It shares no code with the sampler and follows the order in sampler.py's docstring literally.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.engine.params import SamplingParams

Exact = Callable[..., NDArray[np.float64]]


def _adjusted(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    banned: Sequence[int],
) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        x[token] += bias
    for token in banned:
        x[token] = -math.inf
    for token in set(prompt) | set(output):
        x[token] = x[token] * params.repetition_penalty if x[token] < 0 else x[token] / params.repetition_penalty
    for token, count in Counter(output).items():
        x[token] -= params.frequency_penalty * count + params.presence_penalty
    return x


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e: NDArray[np.float64] = np.exp(x - x.max())
    e /= e.sum()
    return e


def _exact(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
) -> NDArray[np.float64]:
    x = _adjusted(logits, params, prompt, output, banned) / params.temperature
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    kept = order[: params.top_k] if params.top_k else order
    probabilities = _softmax(x[kept])
    needed, reached = 0, 0.0
    while needed < len(kept) and (needed == 0 or params.top_p >= 1 or reached < params.top_p):
        reached += probabilities[needed]
        needed += 1
    likely = [i for i in range(needed) if probabilities[i] >= params.min_p * probabilities[0]]
    result = np.zeros(len(x))
    result[[kept[i] for i in likely]] = probabilities[likely] / probabilities[likely].sum()
    return result


@pytest.fixture(scope="session")
def exact() -> Exact:
    """exact(logits float32[V], params, prompt, output, banned) -> the probability of each token, float64[V]."""
    return _exact
