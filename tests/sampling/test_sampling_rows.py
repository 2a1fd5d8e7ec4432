"""A row among others: its neighbours do not change it, its failure does not touch them; greedy, logprobs, history.

Each test runs with every sampler: that of the CPU, which are our kernels where there are some, the one in numpy, and
that of other devices.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import eq
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.ops.backend import REFERENCE
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, RowFailure, Sampled, SampleRow
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.on_device import DeviceSampler
from ridgeline.engine.sampling.sampler import Sampler
from support.samplers import CPU_SAMPLER

Sample = Callable[[torch.Tensor, Sequence[SampleRow]], list[Sampled | RowFailure]]

SAMPLERS = {"cpu": CPU_SAMPLER, "numpy": NumpySampler(), "device": DeviceSampler(REFERENCE)}

FIELDS: list[dict[str, Any]] = [
    {}, {"temperature": 0}, {"temperature": 0.3}, {"top_k": 5}, {"top_k": 4000}, {"top_p": 0.9}, {"top_p": 0.1},
    {"min_p": 0.2}, {"top_p": 0.97, "min_p": 0.01, "temperature": 1.4}, {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.5, "top_p": 0.5},
    {"logit_bias": {3: 5.0}, "top_k": 50, "top_p": 0.95}, {"min_tokens": 5},
    {"temperature": 0, "presence_penalty": 1.0},
]  # fmt: skip


@pytest.fixture(scope="module", params=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Any sampler; logits on the CPU can be given to all."""
    return SAMPLERS[request.param]


@pytest.fixture(scope="module")
def sample(sampler: Sampler) -> Sample:
    """Its choice of tokens."""
    return sampler.sample


def rows_of(logprobs: int | None = None) -> list[SampleRow]:
    return [
        SampleRow(
            SamplingParams(logprobs=logprobs, **fields), seed=i, position=40 + i, choice=i % 3, end_ids=(1,),
            history=History(range(0, 50, 3), range(0, 40, 2)),
        )
        for i, fields in enumerate(FIELDS)
    ]  # fmt: skip


def close(ours: Sequence[Sampled | RowFailure], others: Sequence[Sampled | RowFailure]) -> bool:
    """The same tokens, listed and chosen, with log-probabilities that differ by rounding at most."""

    def numbers(one: Sampled | RowFailure) -> list[float]:
        assert isinstance(one, Sampled)
        own = [one.token, *(id for top in (one.top_raw, one.top) for id, _ in top or ())]
        shares = [one.logprob_raw, one.logprob, *(share for top in (one.top_raw, one.top) for _, share in top or ())]
        return [*own, *(0.0 if share is None else share for share in shares)]

    return all(numbers(one) == pytest.approx(numbers(other), abs=1e-6) for one, other in zip(ours, others, strict=True))


@pytest.mark.parametrize("size", [300, 40_009])
@pytest.mark.parametrize("logprobs", [None, 3])
def test_a_row_is_the_same_bit_for_bit_in_any_batch(
    sampler: Sampler, sample: Sample, size: int, logprobs: int | None
) -> None:
    """Flat and peaked rows side by side, so that slices and guessed ranges mix; alone, reversed, repeated."""
    rng = np.random.default_rng(size)
    rows = rows_of(logprobs)
    std = np.where(np.arange(len(rows)) % 2, 0.4, 4.0)[:, None]
    logits = torch.from_numpy((rng.standard_normal((len(rows), size)) * std).astype(np.float32))
    before = logits.clone()
    together = sample(logits, rows)
    assert torch.equal(logits, before), "the caller's logits were written to"
    # Torch's exp has another last bit where a row's end falls on other lanes: on a device tokens are equal, and
    # log-probabilities to 1e-6.
    same = close if isinstance(sampler, DeviceSampler) else eq
    assert same(together, [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)])
    assert same(together, sample(logits.flip(0), rows[::-1])[::-1])
    assert same(together, sample(torch.cat((logits, logits)), rows + rows)[len(rows) :])
    assert same(together, sample(logits.T.contiguous().T, rows)), "the memory layout of the logits matters"
    tokens = [result.token for result in together if isinstance(result, Sampled)]
    assert tokens == [result.token for result in sample(logits, rows_of()) if isinstance(result, Sampled)]
    assert len(tokens) == len(rows)


def test_seed_position_and_choice_are_all_that_chance_depends_on(sample: Sample) -> None:
    logits = torch.zeros(1, 10_000)
    same = SampleRow(SamplingParams(), seed=4, position=9, choice=1)
    (first,) = sample(logits, [same])
    assert sample(logits, [same]) == [first]
    for other in (replace(same, seed=5), replace(same, position=10), replace(same, choice=2)):
        assert sample(logits, [other]) != [first]
    params = SamplingParams(seed=77, stop=("x",), n=3)
    unrelated = SampleRow(params, seed=4, position=9, choice=1, generated=3, end_ids=(5,))
    assert sample(logits, [unrelated]) == [first]


@pytest.mark.parametrize(
    ("bad", "reason"), [(math.nan, "contain NaN"), (math.inf, "contain +inf"), (-math.inf, "are all -inf")]
)
def test_a_broken_row_fails_alone(sample: Sample, bad: float, reason: str) -> None:
    rows = rows_of()
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((len(rows), 5000)).astype(np.float32))
    healthy = sample(logits, rows)
    for broken in range(len(rows)):
        damaged = logits.clone()
        damaged[broken, slice(None) if bad == -math.inf else 4321] = bad
        results = sample(damaged, rows)
        failure = results[broken]
        assert isinstance(failure, RowFailure)
        assert failure.reason.startswith("the model's logits")
        assert reason in failure.reason
        assert "\n" not in failure.reason
        assert results[:broken] + results[broken + 1 :] == healthy[:broken] + healthy[broken + 1 :]


def test_nan_is_seen_even_where_a_mask_would_hide_it(sample: Sample) -> None:
    logits = torch.zeros(1, 8)
    logits[0, 2] = math.nan
    row = SampleRow(SamplingParams(min_tokens=2, temperature=0), seed=0, position=0, end_ids=(2,))
    assert isinstance(sample(logits, [row])[0], RowFailure)


def test_nothing_left_after_processing_fails_and_says_after_what(sample: Sample) -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf]])
    for temperature in (0, 1):
        row = SampleRow(SamplingParams(min_tokens=2, temperature=temperature), seed=0, position=0, end_ids=(1,))
        failure = sample(logits, [row])[0]
        assert isinstance(failure, RowFailure)
        assert "min_tokens" in failure.reason


@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.001}, {"top_k": 3, "top_p": 0.9}])
def test_impossible_tokens_are_never_drawn(sample: Sample, fields: dict[str, Any]) -> None:
    logits = torch.full((300, 1000), -math.inf)
    logits[:, 500] = 1.0
    logits[:, 900] = 0.5
    rows = [SampleRow(SamplingParams(**fields), seed=1, position=i) for i in range(300)]
    tokens = {result.token for result in sample(logits, rows) if isinstance(result, Sampled)}
    assert tokens == {500, 900}


def test_greedy_takes_the_lowest_id_of_equals(sample: Sample) -> None:
    logits = torch.zeros(3, 100)
    logits[0, [70, 30, 99]] = 2.0
    logits[2] = -math.inf
    logits[2, [5, 4]] = -3.0
    greedy = SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.5)
    results = sample(logits, [SampleRow(greedy, seed=0, position=i) for i in range(3)])
    assert results == [Sampled(30), Sampled(0), Sampled(4)]


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e38])
def test_extreme_temperatures(sample: Sample, temperature: float) -> None:
    logits = torch.tensor([[1.0, 3.0, -3e38, 2.0]])
    rows = [SampleRow(SamplingParams(temperature=temperature), seed=0, position=i) for i in range(200)]
    tokens = {result.token for result in sample(logits.expand(200, -1), rows) if isinstance(result, Sampled)}
    assert tokens == ({0, 1, 2, 3} if temperature > 1 else {1})


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.5, 8.0, 60.0]), st.integers(0, 20), st.floats(0.2, 3))
def test_logprobs_raw_and_processed_against_torch(
    sample: Sample, seed: int, std: float, count: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 700, generator=generator) * std
    params = SamplingParams(temperature=temperature, logprobs=count, logit_bias={8: 3.0})
    result = sample(logits, [SampleRow(params, seed=seed, position=1)])[0]
    assert isinstance(result, Sampled)
    assert result.logprob_raw is not None
    assert result.logprob is not None
    raw = torch.log_softmax(logits[0].double(), -1)
    biased = logits[0].double()
    biased[8] += 3.0
    processed = torch.log_softmax(biased / temperature, -1)
    assert result.logprob_raw == pytest.approx(float(raw[result.token]), abs=2e-6 * max(std, 1))
    assert result.logprob == pytest.approx(float(processed[result.token]), abs=5e-6 * max(std, 1) / temperature)
    values, tokens = raw.topk(count)
    assert [token for token, _ in result.top_raw] == tokens.tolist()
    assert [logprob for _, logprob in result.top_raw] == pytest.approx(values.tolist(), abs=2e-6 * max(std, 1))


def test_logprobs_of_truncated_and_greedy_rows(sample: Sample) -> None:
    logits = torch.tensor([[1.0, 0.0, 3.0, 3.0, -math.inf]])
    row = SampleRow(SamplingParams(top_k=2, logprobs=5), seed=0, position=0)
    result = sample(logits, [row])[0]
    assert isinstance(result, Sampled)
    assert [token for token, _ in result.top] == [2, 3]
    assert [logprob for _, logprob in result.top] == pytest.approx([-math.log(2)] * 2)
    assert [token for token, _ in result.top_raw] == [2, 3, 0, 1], "ties by id, nothing impossible"
    history = History([2])
    greedy = SamplingParams(temperature=0, repetition_penalty=3.0, top_k=1, logprobs=1)
    result = sample(logits, [SampleRow(greedy, seed=0, position=0, history=history)])[0]
    assert isinstance(result, Sampled)
    processed = torch.log_softmax(torch.tensor([1.0, 0.0, 1.0, 3.0, -math.inf]), -1)
    assert result.token == 3
    assert result.top == ((3, result.logprob),)
    assert result.logprob == pytest.approx(float(processed[3]), abs=1e-6)
    assert result.top_raw[0][0] == 2


def test_logprobs_only_when_asked_for(sample: Sample) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(), SamplingParams(logprobs=0), SamplingParams(logprobs=2)]
    none, chosen, two = sample(logits, [SampleRow(p, seed=0, position=0) for p in params])
    assert isinstance(none, Sampled)
    assert isinstance(chosen, Sampled)
    assert isinstance(two, Sampled)
    assert none == Sampled(none.token)
    assert chosen.logprob is not None
    assert chosen.logprob_raw is not None
    assert chosen.top == chosen.top_raw == ()
    assert len(two.top) == len(two.top_raw) == 2


def test_no_rows(sample: Sample) -> None:
    assert sample(torch.empty(0, 50), []) == []


class MadeAsRead(Sequence[SampleRow]):
    """Rows as the engine gives them: each is made when it is read."""

    def __init__(self, rows: list[SampleRow]) -> None:
        self.rows, self.made = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        self.made += 1
        return self.rows[index]


def test_each_row_is_made_once(sample: Sample) -> None:
    """Rows that were made again for every reading took a device's sampler 130 times as long, at 256 rows."""
    rows, logits = rows_of(2), torch.randn(len(FIELDS), 300)
    made = MadeAsRead(rows)
    assert sample(logits, made) == sample(logits, rows)
    assert made.made == len(rows) + 1, "the last reading finds the end"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300)), st.lists(st.integers(0, 300), max_size=200))
def test_history_appended_is_history_rebuilt(prompt: list[int], output: list[int]) -> None:
    history = History(prompt)
    for token in output:
        history.append(token)
    rebuilt = History(prompt, output)
    counts = dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True))
    assert counts == {token: output.count(token) for token in prompt + output}
    assert counts == dict(zip(rebuilt.ids.tolist(), rebuilt.counts.tolist(), strict=True))
    assert len(history.ids) == len(set(prompt + output))


@pytest.mark.parametrize("size", [33, 300, 40_009])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_bitmask_leaves_what_forbidding_every_other_token_leaves(
    sample: Sample, size: int, fields: dict[str, Any]
) -> None:
    """The same token and the same log-probabilities, bit for bit, as with all other tokens forbidden one by one."""
    rng = np.random.default_rng(size)
    logits = torch.from_numpy((rng.standard_normal((20, size)) * 4).astype(np.float32))
    bits = rng.random(size) < 0.2
    bits[[0, 31, 32, size - 1]] = True, False, True, True  # ends of words
    words = np.zeros((size + 31) // 32, np.uint32)
    for token in np.flatnonzero(bits):
        words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    fields = {name: value for name, value in fields.items() if name not in ("logit_bias", "min_tokens")}
    history = History(range(0, 30, 3), range(0, 20, 2))
    masked = SamplingParams(logprobs=2, **fields)
    forbidding = replace(masked, min_tokens=9)
    others = tuple(int(token) for token in np.flatnonzero(~bits))
    with_mask = sample(logits, [SampleRow(masked, 5, p, history=history, allowed=words) for p in range(20)])
    one_by_one = sample(logits, [SampleRow(forbidding, 5, p, end_ids=others, history=history) for p in range(20)])
    assert with_mask == one_by_one
    tokens = {result.token for result in with_mask if isinstance(result, Sampled)}
    assert len(tokens) > 1
    assert all(bits[token] for token in tokens)
    without = sample(logits, [SampleRow(masked, 5, p, history=history) for p in range(20)])
    assert with_mask != without


def test_a_bitmask_that_allows_nothing_fails_its_row_alone(sample: Sample) -> None:
    logits, greedy = torch.zeros(2, 40), SamplingParams(temperature=0)
    nothing = SampleRow(greedy, 0, 0, allowed=np.zeros(2, np.uint32))
    failed, fine = sample(logits, [nothing, SampleRow(greedy, 0, 0)])
    assert isinstance(failed, RowFailure)
    assert "mask" in failed.reason
    assert fine == Sampled(0)
    only_the_end = SampleRow(replace(greedy, min_tokens=1), 0, 0, end_ids=(2,), allowed=np.array([4, 0], np.uint32))
    assert isinstance(sample(logits[:1], [only_the_end])[0], RowFailure)
