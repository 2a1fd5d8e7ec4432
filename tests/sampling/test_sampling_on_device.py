"""The samplers on a device, run on CPU tensors, and on our kernels: against the one in numpy, their reference. And a
step on a device that is fake.

Tokens must be the same except where a decision lies so near to a boundary that fp32 sums made in another order decide
otherwise; how near is worked out in float64 by full sorts, and nearly all rows must be farther away than that.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.backends import backend_of
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, PromptLogprob, RowFailure, Sampled, SampleRow, groups
from ridgeline.engine.sampling.groups import groups_of
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.logits import adjust
from ridgeline.engine.sampling.native import NativeSampler
from ridgeline.engine.sampling.on_device import DeviceSampler, choose, shares_of
from ridgeline.engine.sampling.sampler import Sampler
from ridgeline.engine.sampling.uniform import uniform
from support.cards import needs_card
from support.samplers import CPU_SAMPLER


class CardSampler(DeviceSampler):
    """The sampler of a card, where there is one, for logits that are not there yet."""

    def __init__(self) -> None:
        super().__init__(backend_of(torch.device("cuda")))

    def sample(self, logits_RV: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled | RowFailure]:
        return super().sample(logits_RV.cuda(), rows)

    def score(self, logits_RV: torch.Tensor, *of_tokens: Any) -> list[PromptLogprob | RowFailure]:
        return super().score(logits_RV.cuda(), *of_tokens)


needs_kernels = pytest.mark.skipif(not isinstance(CPU_SAMPLER, NativeSampler), reason="no kernels of our own here")
NUMPY = NumpySampler()
BOTH = pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(DeviceSampler(REFERENCE), id="device"),
        pytest.param(CPU_SAMPLER, id="kernels", marks=needs_kernels),
        pytest.param(CardSampler(), id="card", marks=needs_card),
    ],
)

NEAR = 1e-6
"""Share of the mass by which sums in fp32 may move a boundary."""

FIELDS: list[dict[str, Any]] = [
    {}, {"temperature": 0}, {"temperature": 0.3}, {"temperature": 40.0}, {"top_k": 1}, {"top_k": 5}, {"top_k": 900},
    {"top_p": 0.91371}, {"top_p": 0.0517}, {"top_k": 20, "top_p": 0.957, "temperature": 0.6}, {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.817, "min_p": 0.1}, {"top_p": 0.9713, "min_p": 0.01, "temperature": 1.4},
    {"repetition_penalty": 1.4, "top_p": 0.91371}, {"frequency_penalty": 0.5, "presence_penalty": -0.7, "top_k": 7},
    {"logit_bias": {0: 5.0, 1: -100.0}, "min_tokens": 5}, {"temperature": 0, "presence_penalty": 1.0},
]  # fmt: skip


def rows_of(fields: dict[str, Any], count: int, vocabulary: int, **row: Any) -> list[SampleRow]:
    params = SamplingParams(**fields)
    history = History(range(0, vocabulary, 3), [i % vocabulary for i in range(0, 40, 2)])
    end_ids = (1, vocabulary - 1)
    return [
        SampleRow(params, 7, position, position % 3, end_ids=end_ids, history=history, **row)
        for position in range(count)
    ]


def margin(logits_V: NDArray[np.float32], row: SampleRow) -> float:
    """How far the row's decisions are from being others, as a share of the mass."""
    params = row.params
    if params.greedy:
        return math.inf
    ids = np.arange(len(logits_V))
    processed_V = adjust(logits_V, row, np.empty_like(logits_V))
    weights_V = np.exp((processed_V.astype(np.float64) - processed_V.max()) / params.temperature)
    kept = np.lexsort((ids, -processed_V))[: params.top_k or None]
    margins = [math.inf]
    if params.top_p < 1:
        reached = np.cumsum(weights_V[kept]) / weights_V[kept].sum()
        margins += [np.abs(reached - params.top_p).min()]
        last = int(np.searchsorted(reached, params.top_p))
        if last + 1 < len(kept) and processed_V[kept[last]] != processed_V[kept[last + 1]]:
            margins += [1 - weights_V[kept[last + 1]] / weights_V[kept[last]]]  # they may be one weight in fp32
        kept = kept[: last + 1]
    if params.min_p:
        margins += [np.abs(weights_V[kept] - params.min_p).min()]
        kept = kept[weights_V[kept] >= params.min_p]
    ends = np.cumsum(weights_V[np.sort(kept)])
    (point,) = uniform([row.seed], [row.position], [row.choice])
    return float(min(*margins, np.abs(ends / ends[-1] - point).min()))


def assert_reports_agree(found: Sampled, expected: Sampled, tolerance: float) -> None:
    assert (found.logprob is None) == (expected.logprob is None)
    if expected.logprob is not None:
        assert found.logprob == pytest.approx(expected.logprob, abs=tolerance)
        assert found.logprob_raw == pytest.approx(expected.logprob_raw, abs=tolerance)
    for ours, theirs in ((found.top, expected.top), (found.top_raw, expected.top_raw)):
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert [share for _, share in ours] == pytest.approx([share for _, share in theirs], abs=tolerance)


def assert_as_in_numpy(sampler: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> int:
    """Compare all rows that are not near to a boundary; how many those are."""
    decided = 0
    ours, theirs = sampler.sample(logits, rows), NUMPY.sample(logits, rows)
    for found, expected, row, logits_V in zip(ours, theirs, rows, logits.numpy(), strict=True):
        if isinstance(expected, RowFailure):
            assert found == expected
        elif margin(logits_V, row) > NEAR:
            decided += 1
            assert isinstance(found, Sampled)
            assert found.token == expected.token
            assert_reports_agree(found, expected, 1e-5)
    return decided


@BOTH
@pytest.mark.parametrize("vocabulary", [2, 33, 127, 128, 129, 1000, 5003])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_tokens_and_log_probabilities_are_those_of_numpy(
    sampler: Sampler, vocabulary: int, fields: dict[str, Any]
) -> None:
    """Flat, peaked and tied logits; each row at a position of its own; some batches with log-probabilities."""
    rng = np.random.default_rng(vocabulary)
    decided = 0
    for std, logprobs in ((0.01, None), (0.4, 2), (4.0, None), (4.0, 0), (15.0, 1)):
        logits = torch.from_numpy((rng.standard_normal((12, vocabulary)) * std).astype(np.float32))
        logits[6:] = (logits[6:] * 4).round() / 4  # ties
        decided += assert_as_in_numpy(sampler, logits, rows_of(fields | {"logprobs": logprobs}, 12, vocabulary))
    assert decided >= 57, "of 60"


@BOTH
def test_a_vocabulary_of_many_blocks(sampler: Sampler) -> None:
    """So many tokens that boundaries are near more often; still, most rows decide."""
    rng = np.random.default_rng(1)
    decided = 0
    for fields in FIELDS:
        logits = torch.from_numpy((rng.standard_normal((6, 40_009)) * 3).astype(np.float32))
        decided += assert_as_in_numpy(sampler, logits, rows_of(fields, 6, 40_009))
    assert decided >= 0.75 * 6 * len(FIELDS)


@BOTH
@pytest.mark.parametrize("most_logits", [groups.MAX_LOGITS, 1500])
def test_mixed_rows_in_one_batch_get_what_each_gets_alone(
    sampler: Sampler, most_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of all settings in turn, with bitmasks and failures among them, in groups of any size."""
    monkeypatch.setattr(groups, "MAX_LOGITS", most_logits)
    vocabulary, rng = 700, np.random.default_rng(3)
    allowed = rng.integers(0, 2**32, (vocabulary + 31) // 32, np.uint32)
    rows = [
        row
        for index, fields in enumerate(FIELDS)
        for extra in ({}, {"allowed": allowed})
        for row in rows_of(fields | {"logprobs": (None, 2, 5)[index % 3]}, 3, vocabulary, **extra)
    ]
    logits = torch.from_numpy((rng.standard_normal((len(rows), vocabulary)) * 3).astype(np.float32))
    logits[5, 77], logits[20, 3], logits[40] = math.nan, math.inf, -math.inf
    together = sampler.sample(logits, rows)
    assert together == [sampler.sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert [index for index, result in enumerate(together) if isinstance(result, RowFailure)] == [5, 20, 40]
    assert assert_as_in_numpy(sampler, logits, rows) >= 0.95 * len(rows)


@BOTH
def test_scores_of_known_tokens_are_those_of_numpy(sampler: Sampler) -> None:
    """Also of a token that is all but impossible, of one that is impossible, and of rows that fail."""
    rng = np.random.default_rng(5)
    logits = torch.from_numpy((rng.standard_normal((40, 333)) * 6).astype(np.float32))
    logits[1, 2], logits[2, 2] = -300.0, -math.inf
    logits[3, 9], logits[4, 9], logits[5] = math.nan, math.inf, -math.inf
    logits[6:20] = logits[6:20].round()  # ties
    tokens = [2, 2, 2, *rng.integers(0, 333, 37).tolist()]
    alternatives = [index % 4 for index in range(40)]
    ours = sampler.score(logits, tokens, alternatives)
    theirs = NUMPY.score(logits, tokens, alternatives)
    assert ours[3:6] == theirs[3:6]
    assert all(isinstance(result, RowFailure) for result in ours[3:6])
    expected = torch.log_softmax(logits.double(), dim=1)
    for index in (*range(3), *range(6, 40)):
        found, other = ours[index], theirs[index]
        assert isinstance(found, PromptLogprob)
        assert isinstance(other, PromptLogprob)
        assert found.token == other.token == tokens[index]
        assert found.logprob == pytest.approx(float(expected[index, tokens[index]]), abs=1e-5)
        assert other.logprob == pytest.approx(float(expected[index, tokens[index]]), abs=1e-5)
        assert [token for token, _ in found.top] == [token for token, _ in other.top]
        assert [share for _, share in found.top] == pytest.approx([share for _, share in other.top], abs=1e-5)
        assert len(found.top) == alternatives[index]


class LargestResult(TorchDispatchMode):
    """Notes how much the largest tensor holds that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else (results,):
            self.elements = max(self.elements, result.numel())
        return results


def test_only_what_rows_ask_for_runs() -> None:
    """Greedy rows are one argmax: nothing as large as the logits is made."""
    rows = [row for fields in ({"temperature": 0}, {"temperature": 0, "top_p": 0.5}) for row in rows_of(fields, 4, 900)]
    logits = torch.randn(8, 900)
    groups = groups_of(rows, 900, logits.device)
    with LargestResult() as largest:
        choose(REFERENCE, logits, groups)
    assert largest.elements == 8 * 3, "token, and the largest logit twice"


def test_a_step_on_a_device_that_is_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything between the logits and the transfer runs where the logits are, and asks nothing of the host."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # no memory is pinned for numbers that are not there
    vocabulary = 300
    allowed = np.full((vocabulary + 31) // 32, 0xFFFF00FF, np.uint32)
    rows = [row for fields in FIELDS for row in rows_of(fields | {"logprobs": 3}, 2, vocabulary, allowed=allowed)]
    with FakeTensorMode():
        logits = torch.empty(len(rows), vocabulary, device="cuda:0")
        groups = groups_of(rows, vocabulary, logits.device)
        answers = choose(REFERENCE, logits, groups)
        shares = shares_of(logits, torch.zeros(len(rows), 1, dtype=torch.int64, device="cuda:0"), 3)
    assert isinstance(answers, FakeTensor)
    assert answers.device == shares.device == torch.device("cuda:0")
    assert shares.shape == (len(rows), 2 + 2 * 3)
    assert len(answers) == sum(3 + 2 * (1 + 2 * 3) for _ in rows)


@needs_card
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_card_is_not_waited_for(fields: dict[str, Any]) -> None:
    """From parameters to tokens on the card nothing asks it what it has found."""
    logits = torch.randn(3, 5000, device="cuda")
    backend = backend_of(logits.device)
    DeviceSampler(backend).sample(logits, rows_of(fields, 3, 5000))
    torch.cuda.set_sync_debug_mode("error")
    try:
        answers = choose(backend, logits, groups_of(rows_of(fields, 3, 5000), 5000, logits.device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(answers.isfinite().all())
