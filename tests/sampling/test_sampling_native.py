"""Our kernels' sampler where it could go wrong: guesses that miss, ties, instruction sets, threads, scores."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.backends.cpu.library import Library
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, PromptLogprob, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.native import NativeSampler
from ridgeline.engine.sampling.uniform import uniform

FIELDS: list[dict[str, Any]] = [
    {}, {"top_p": 0.95}, {"top_p": 0.3, "temperature": 0.7}, {"top_k": 50}, {"top_k": 9000, "top_p": 0.99},
    {"min_p": 0.02, "top_p": 0.9}, {"temperature": 0}, {"top_p": 0.95, "logprobs": 3},
]  # fmt: skip


NUMPY = NumpySampler()


@pytest.fixture
def native(kernels: Library) -> NativeSampler:
    """The sampler on the kernels of each instruction set."""
    return NativeSampler(kernels.sample)


def rows_of(fields: dict[str, Any], count: int) -> list[SampleRow]:
    return [SampleRow(SamplingParams(**fields), 3, position) for position in range(count)]


def tokens_of(results: Any) -> list[int]:
    return [result.token for result in results if isinstance(result, Sampled)]


def misleading(kind: str, size: int) -> Tensor:
    """Rows whose strided sample says nothing of the rest: likely tokens stand where it looks, or nowhere there; all are
    equal; few are possible."""
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((6, size)).astype(np.float32)
    stride = size // 4096
    match kind:
        case "sampled ones likely":
            logits[:, ::stride] += 12
        case "sampled ones unlikely":
            logits[:, ::stride] -= 12
        case "equal":
            logits[:] = 1.5
        case "two values":
            logits[:] = np.where(logits > 0.3, 1.0, 0.5)
        case "few possible":
            logits[:, np.arange(size) % 1000 != 7] = -np.inf
    return torch.from_numpy(logits)


@pytest.mark.parametrize("size", [40_009, 151_936])
@pytest.mark.parametrize(
    "kind", ["sampled ones likely", "sampled ones unlikely", "equal", "two values", "few possible"]
)
def test_guesses_that_miss(native: NativeSampler, kind: str, size: int) -> None:
    """What is kept does not depend on a guess, only how long it takes to find."""
    logits = misleading(kind, size)
    for fields in FIELDS:
        rows = rows_of(fields, len(logits))
        ours, theirs = native.sample(logits, rows), NUMPY.sample(logits, rows)
        same = sum(one == other for one, other in zip(tokens_of(ours), tokens_of(theirs), strict=True))
        assert same >= len(rows) - 1, f"{fields}: one number may lie within rounding of a boundary"


def test_instruction_sets_and_threads_agree(kernels: Library, native: NativeSampler) -> None:
    """On two threads as on one, bit for bit; between instruction sets but for rounding."""
    logits = torch.from_numpy(np.random.default_rng(2).standard_normal((24, 40_009)).astype(np.float32) * 3)
    for fields in FIELDS:
        rows = rows_of(fields, len(logits))
        kernels.threads(1)
        alone = native.sample(logits, rows)
        kernels.threads(2)
        assert native.sample(logits, rows) == alone
        assert sum(a == b for a, b in zip(tokens_of(alone), tokens_of(NUMPY.sample(logits, rows)), strict=True)) >= 23


def test_the_uniform_number_is_the_same(native: NativeSampler) -> None:
    """Of equal tokens the one is drawn whose place among them is the uniform number."""
    seeds, positions = [0, 1, -1, 2**64 - 1, 2**63 + 5], [0, 7, 2**32, 2**40 + 1, 2**31]
    rows = [
        SampleRow(SamplingParams(), seed, position, choice)
        for seed, position, choice in zip(seeds, positions, range(5), strict=True)
    ]
    logits = torch.zeros(5, 1 << 20)
    expected = (uniform(seeds, positions, range(5)) * (1 << 20)).astype(int)
    assert tokens_of(native.sample(logits, rows)) == expected.tolist()


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 1.0, 1e4, 3e38])
def test_any_temperature(native: NativeSampler, temperature: float) -> None:
    """What is impossible stays so, however hot; what is likeliest is drawn, however cold."""
    logits = torch.tensor([[-torch.inf, 3.0, -3e38, 2.0, -torch.inf]] * 50)
    drawn = set(tokens_of(native.sample(logits, rows_of({"temperature": temperature}, 50))))
    assert drawn <= {1, 2, 3}
    assert temperature > 0.01 or drawn == {1}


@pytest.mark.parametrize("fields", [{"logit_bias": {10: 1.0}}, {"repetition_penalty": 1.5}])
def test_a_token_past_the_last_is_refused(native: NativeSampler, fields: dict[str, Any]) -> None:
    """Before it is written to."""
    row = SampleRow(SamplingParams(**fields), 3, 0, history=History([3, 10]))
    with pytest.raises(AssertionError, match="a token id is out of vocabulary"):
        native.sample(torch.zeros(1, 10), [row])


@pytest.mark.parametrize("token", [-1, 10])
def test_a_known_token_past_the_last_is_refused(native: NativeSampler, token: int) -> None:
    """Before what is beside the logits is read for its own; -1 would ask for a token to be drawn."""
    with pytest.raises(AssertionError, match="a token id is out of vocabulary"):
        native.score(torch.zeros(2, 10), [3, token], [0, 0])


def test_scores_are_numpys(native: NativeSampler) -> None:
    """Of known tokens, likely and impossible ones, each beside as many alternatives as it asks for; a row that fails
    fails alone."""
    logits = np.random.default_rng(0).normal(0, 4, (7, 1003)).astype(np.float32)
    logits[:, 500:] -= 200.0
    logits[3, ::2], logits[4], logits[5, 9] = -np.inf, -np.inf, np.nan
    tokens, alternatives = [0, 1002, 7, 2, 1, 1, 3], [0, 3, 1003, 600, 2, 2, 5]
    ours = native.score(torch.from_numpy(logits), tokens, alternatives)
    theirs = NUMPY.score(torch.from_numpy(logits), tokens, alternatives)
    assert [isinstance(one, RowFailure) for one in ours] == [row in (4, 5) for row in range(7)]
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(one, PromptLogprob) or not isinstance(other, PromptLogprob):
            assert one == other
            continue
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [share for _, share in one.top] == pytest.approx([share for _, share in other.top], abs=1e-5)


def test_no_rows(native: NativeSampler) -> None:
    """Nothing is asked, nothing is answered."""
    assert native.sample(torch.empty(0, 10), []) == []
    assert native.score(torch.empty(0, 10), [], []) == []
