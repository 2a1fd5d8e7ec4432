"""Kept sets, exactly: weights and p are multiples of 1/64, so that every sum and product is exact and ties abound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.engine.sampling.candidates import BLOCK, Candidates, block_sums
from ridgeline.engine.sampling.truncate import SAMPLE_STRIDE, SLICE, keep_min_p, keep_top_p, largest, ranked

Weights = NDArray[np.float32]


def make_weights(size: int, levels: int, seed: int, sharp: int) -> Weights:
    """Multiples of 1/64 up to exactly 1; `sharp` makes high ones rare."""
    rng = np.random.default_rng(seed)
    weights = np.floor(rng.random(size) ** sharp * levels + 1) * (64 // levels) / 64
    weights[rng.integers(size)] = 1.0
    return weights.astype(np.float32)


def nucleus(weights: Weights, p: float) -> set[int]:
    """The definition: walk down (weight descending, id ascending) until the mass is reached."""
    target, reached, kept = p * float(weights.sum(dtype=np.float64)), 0.0, set()
    for token in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        kept.add(token)
        reached += float(weights[token])
        if reached >= target:
            break
    return kept


def kept_tokens(candidates: Candidates) -> set[int]:
    mask = np.ones(len(candidates.weights_C), bool) if candidates.kept_C is None else candidates.kept_C
    return {candidates.token(int(i)) for i in np.flatnonzero(mask)}


def check_sums(candidates: Candidates) -> None:
    np.testing.assert_allclose(candidates.sums_B, block_sums(candidates.weights_C, candidates.kept_C), rtol=1e-6)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 127, 128, 129, 1000, 4095, 4096, 5000, 9001]),
    st.sampled_from([1, 2, 8, 64]), st.integers(0, 2**31), st.sampled_from([1, 4, 40]), st.integers(1, 63),
)  # fmt: skip
def test_top_p_keeps_the_smallest_set(size: int, levels: int, seed: int, sharp: int, p64: int) -> None:
    weights = make_weights(size, levels, seed, sharp)
    kept = keep_top_p(Candidates.of(None, weights.copy(), weights), p64 / 64)
    assert kept_tokens(kept) == nucleus(weights, p64 / 64)
    check_sums(kept)


def test_top_p_ways_peaked_flat_and_unguessable() -> None:
    """The three ways to find the cut all find the same one; which one ran shows in the result's form or is forced."""
    peaked = np.full(20_000, 2.0**-20, np.float32)
    peaked[5::100] = 1.0
    kept = keep_top_p(Candidates.of(None, peaked, peaked), 0.5)
    assert kept.kept_C is None
    assert len(kept.weights_C) < SLICE
    assert kept_tokens(kept) == nucleus(peaked, 0.5)

    flat = make_weights(20_000, 64, 1, 1)
    kept = keep_top_p(Candidates.of(None, flat, flat), 0.75)
    assert kept.kept_C is not None
    assert kept_tokens(kept) == nucleus(flat, 0.75)

    misled = make_weights(20_000, 64, 2, 1)
    misled[::SAMPLE_STRIDE] = 1 / 64  # what the sample sees says nothing about the rest
    kept = keep_top_p(Candidates.of(None, misled, misled), 0.75)
    assert kept_tokens(kept) == nucleus(misled, 0.75)
    check_sums(kept)


@pytest.mark.parametrize("p", [1e-300, 1e-9, 1 - 2**-53])
def test_top_p_extremes(p: float) -> None:
    weights = make_weights(6000, 64, 3, 1)
    kept = kept_tokens(keep_top_p(Candidates.of(None, weights, weights), p))
    assert kept == ({int(np.argmax(weights))} if p < 0.5 else set(range(6000)))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([1, 5, 300, 5000, 9001]), st.integers(1, 9001), st.sampled_from([2, 64]), st.integers(0, 2**31))
def test_largest_and_ranked_break_ties_by_lowest_id(size: int, k: int, levels: int, seed: int) -> None:
    values = make_weights(size, levels, seed, 1)
    values[:: size // 3 + 1] = -np.inf
    expected = sorted(range(size), key=lambda i: (-values[i], i))[:k]
    assert ranked(values, k).tolist() == expected
    assert largest(values, k).tolist() == sorted(expected)


def test_min_p_keeps_what_is_equal_to_the_bound_and_what_top_p_kept() -> None:
    weights = make_weights(5000, 64, 4, 1)
    kept = keep_min_p(Candidates.of(None, weights, weights), 0.25)
    assert kept_tokens(kept) == {i for i in range(5000) if weights[i] >= 0.25}
    both = keep_min_p(keep_top_p(Candidates.of(None, weights, weights), 0.5), 0.25)
    assert kept_tokens(both) == kept_tokens(kept) & nucleus(weights, 0.5)
    check_sums(both)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**31), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.booleans())
def test_draw_inverts_the_cumulative_sum(size: int, seed: int, point: float, holes: float, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    weights = make_weights(size, 64, seed, 1)
    mask = rng.random(size) >= holes
    mask[rng.integers(size)] = True
    given_weights = weights if masked else weights * mask
    drawn = Candidates.of(None, weights, given_weights, mask if masked else None).draw(point)
    ends = np.cumsum(weights * mask, dtype=np.float64)
    assert drawn == int(np.searchsorted(ends, point * ends[-1], side="right"))
    assert mask[drawn], "a removed token was drawn"


def test_draw_at_the_very_end_and_beside_removed_tokens() -> None:
    """u just under 1 lands on the last token with a weight, also when rounding puts the point on the total."""
    last = np.nextafter(1.0, 0.0)
    for size in (3, BLOCK, 10 * BLOCK + 5):
        weights = np.full(size, np.float32(0.1))
        weights[size // 2 :] = 0.0
        assert Candidates.of(None, weights, weights).draw(last) == size // 2 - 1
        weights[: size // 2 - 1] = 0.0
        assert Candidates.of(None, weights, weights).draw(0.0) == size // 2 - 1
