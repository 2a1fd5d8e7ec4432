"""Chi-square of drawn tokens against the exact distribution, for each stage and for combinations.

Seeds are fixed, so a case either always passes or always fails; p-values are held over 1e-4, where one of the cases
would fail by chance for 1 choice of seeds in 300.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, Sampled, SampleRow
from support.samplers import CPU_SAMPLER

Exact = Callable[..., NDArray[np.float64]]
PROMPT, OUTPUT = (1, 2, 3, 3, 7), (4, 5, 5, 5, 7)
BANNED = (0, 6)

STAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cool": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.8},
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": -1.5},
    "logit_bias": {"logit_bias": {3: 4.0, 9: -100.0, 11: 2.5}},
    "min_tokens": {"min_tokens": 20},
    "qwen": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "everything": {
        "temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 0.8,
        "frequency_penalty": 0.4, "presence_penalty": 0.3, "logit_bias": {3: 1.0, 12: 2.0}, "min_tokens": 20,
    },
}  # fmt: skip


def draw(logits: NDArray[np.float32], params: SamplingParams, count: int) -> NDArray[np.int64]:
    """`count` tokens, one for each position, in batches of at most 2M logits."""
    history = History(PROMPT, OUTPUT) if params.uses_history else None
    batch, tokens = max(1, 2_000_000 // len(logits)), []
    for start in range(0, count, batch):
        rows = [
            SampleRow(params, seed=11, position=position, generated=len(OUTPUT), end_ids=BANNED, history=history)
            for position in range(start, min(start + batch, count))
        ]
        for result in CPU_SAMPLER.sample(torch.from_numpy(logits).expand(len(rows), -1), rows):
            assert isinstance(result, Sampled)
            tokens.append(result.token)
    return np.array(tokens)


def chi_square(tokens: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """The p-value of the counts; likely tokens have a bin each, the others share bins of an expected count over 20."""
    assert (probabilities[tokens] > 0).all(), "a token of probability 0 was drawn"
    likely_first = np.argsort(-probabilities, kind="stable")
    ends = np.cumsum(probabilities[likely_first])
    # A token's bin is the slice of the distribution it ends in; slices hold at least 20 expected draws.
    bin_of = np.empty(len(probabilities), np.int64)
    bin_of[likely_first] = np.minimum(ends * len(tokens) / 20, len(tokens) // 20 - 1).astype(np.int64)
    _, bin_of = np.unique(bin_of, return_inverse=True)
    expected = np.bincount(bin_of, probabilities) * len(tokens)
    observed = np.bincount(bin_of[tokens], minlength=len(expected))
    used = expected > 0
    assert used.sum() >= 2, "one bin tests nothing"
    return float(stats.chisquare(observed[used], expected[used]).pvalue)


# 50: every token has a bin. 5,000 flat: top-p keeps thousands (guessed range); peaked: a few dozen (slice).
VOCABULARIES = [(50, 1.0, 3000), (5000, 0.5, 2000), (5000, 3.0, 2000)]


@pytest.mark.parametrize(("size", "std", "count"), VOCABULARIES, ids=["small", "flat", "peaked"])
@pytest.mark.parametrize("stage", STAGES)
def test_drawn_tokens_are_distributed_exactly(exact: Exact, stage: str, size: int, std: float, count: int) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * std).astype(np.float32)
    params = SamplingParams(**STAGES[stage])
    banned = BANNED if params.min_tokens else ()
    probabilities = exact(logits, params, PROMPT, OUTPUT, banned)
    assert chi_square(draw(logits, params, count), probabilities) > 1e-4


def test_chi_square_sees_a_stage_left_out(exact: Exact) -> None:
    """The test above has the power to fail: draws without a stage are not the distribution with it."""
    logits = np.random.default_rng(50).standard_normal(50).astype(np.float32)
    plain = draw(logits, SamplingParams(), 4000)
    for stage in ("cool", "hot", "repetition", "frequency", "presence"):
        params = SamplingParams(**STAGES[stage])
        assert chi_square(plain, exact(logits, params, PROMPT, OUTPUT)) < 1e-4, stage


def test_choices_and_seeds_are_independent_draws(exact: Exact) -> None:
    logits = np.random.default_rng(3).standard_normal(20).astype(np.float32)
    params = SamplingParams()
    by_choice = [SampleRow(params, seed=1, position=5, choice=c) for c in range(3000)]
    by_seed = [SampleRow(params, seed=s, position=5) for s in range(3000)]
    for rows in (by_choice, by_seed):
        results = CPU_SAMPLER.sample(torch.from_numpy(logits).expand(3000, -1), rows)
        tokens = np.array([result.token for result in results if isinstance(result, Sampled)])
        assert len(tokens) == 3000
        assert chi_square(tokens, exact(logits, params)) > 1e-4
