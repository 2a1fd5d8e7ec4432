"""The cuts of top-k, top-p and min-p, without sorting the vocabulary.

Each of them keeps a prefix of the tokens in the order (weight descending, id ascending), so it only needs the end of
that prefix: the weight of its last token, and how many of the tokens with exactly that weight belong to it. Such a cut
is found by sorting a small range of weights that has to contain it. The range is checked, not trusted:

- peaked distributions: the few hundred largest weights (a slice), if they hold the mass that top-p asks for;
- flat distributions: a range around the cut guessed from every 32nd weight, right if the exact mass above the range
  falls short of the target and the mass with the range does not;
- anything else: all of them.

On one core of a 2.5 GHz Cascade Lake a sort of 152k weights takes 0.7 to 1.2 ms and an argsort 4 ms; a slice takes 0.2
and a guessed range 0.6 ms, everything included.

Legend: C candidates, K kept of them, S some of them that are looked at more closely.
"""

import math
from typing import NamedTuple

import numpy as np

from ridgeline.engine.sampling.candidates import BLOCK, Candidates, FloatsC, IdsC, block_sums

SLICE = 256
SAMPLE_STRIDE = 32
SAMPLE_ERRORS = 3.0
"""The half width, in standard errors, of the range in which the weight of a top-p cut is guessed from a sample."""


class Cut(NamedTuple):
    """The threshold that divides tokens that top-k or top-p keeps from those that it removes."""

    floor: np.float32
    """The weight above which every token is kept."""
    ties: int
    """The number of tokens with a weight equal to `floor` to keep, the first ones in order of id."""


def largest(values_C: FloatsC, k: int) -> IdsC:
    """Return the indices of the k largest values, increasing; all if there are fewer.

    Lower indices win among equals.
    """
    index_K = np.flatnonzero(values_C >= _floor_of_top(values_C, k))
    surplus = len(index_K) - k
    if surplus <= 0:
        return index_K
    values_K = values_C[index_K]
    floor = np.partition(values_K, surplus)[surplus]
    return index_K[_kept(values_K, Cut(floor, k - int(np.count_nonzero(values_K > floor))))]


def ranked(values_C: FloatsC, k: int) -> IdsC:
    """Return the indices of the k largest values, largest first, lowest index first among equals; k may be 0."""
    if k == 0:
        return np.empty(0, np.int64)
    index_K = largest(values_C, k)
    return index_K[np.argsort(-values_C[index_K], kind="stable")]


def keep_min_p(candidates: Candidates, min_p: float) -> Candidates:
    """Keep the tokens that are at least min_p times as likely as the likeliest, whose weight is 1."""
    kept_C = candidates.weights_C >= np.float32(min_p)
    if candidates.kept_C is not None:
        kept_C &= candidates.kept_C
    return Candidates.of(candidates.ids_C, candidates.logits_C, candidates.weights_C, kept_C)


def keep_top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the smallest set of the likeliest tokens with at least p of the total weight; never empty."""
    assert candidates.kept_C is None, "top-p must run before the filters that mask tokens"
    weights_C, total = candidates.weights_C, candidates.total
    target = p * total
    # No weight is over 1, so the weights of a slice cannot add up to more than its length.
    if target < SLICE:
        index_S = np.flatnonzero(weights_C >= _floor_of_top(weights_C, SLICE))
        cut = _cut_at(weights_C[index_S], 0.0, target)
        if cut is not None:
            return candidates.subset(index_S[_kept(weights_C[index_S], cut)])
    everything = (np.float32(0.0), np.float32(np.inf))
    for low, high in (_guess_range(weights_C, total - target), everything):
        kept = _cut_between(candidates, low, high, target)
        if kept is not None:
            return kept
    # p is so close to 1 that rounding puts the target above the sum.
    return candidates


def _cut_between(candidates: Candidates, low: np.float32, high: np.float32, target: float) -> Candidates | None:
    """Keep the likeliest tokens that together reach a target weight, if the cut lies in a given range of weights.

    Returns None if the weight to cut at is not between `low` and `high` (inclusive).
    """
    weights_C = candidates.weights_C
    kept_C = weights_C > high
    sums_B = block_sums(weights_C, kept_C)
    index_S = np.flatnonzero((weights_C >= low) ^ kept_C)
    weights_S = weights_C[index_S]
    cut = _cut_at(weights_S, float(sums_B.sum()), target)
    if cut is None:
        return None
    chosen = _kept(weights_S, cut)
    index_K = index_S[chosen]
    kept_C[index_K] = True
    # Adding what the range contributes to each block is cheaper than summing all blocks again.
    sums_B += np.bincount(index_K // BLOCK, weights_S[chosen], len(sums_B))
    return Candidates(candidates.ids_C, candidates.logits_C, weights_C, kept_C, sums_B)


def _cut_at(weights_S: FloatsC, above: float, target: float) -> Cut | None:
    """Return the threshold at which `above` plus these weights, from the largest down, first reaches `target`.

    None if `above` has reached it already, or if all of them do not reach it.
    """
    if above >= target:
        return None
    falling_S = np.sort(weights_S)[::-1]
    last = int(np.searchsorted(np.cumsum(falling_S, dtype=np.float64), target - above, side="left"))
    if last == len(falling_S):
        return None
    floor = falling_S[last]
    return Cut(floor, int(np.count_nonzero(falling_S[: last + 1] == floor)))


def _kept(values_C: FloatsC, cut: Cut) -> IdsC:
    """Return the indices, increasing, of the values that a cut keeps."""
    index_K = np.flatnonzero(values_C >= cut.floor)
    equal = np.flatnonzero(values_C[index_K] == cut.floor)
    return index_K if len(equal) <= cut.ties else np.delete(index_K, equal[cut.ties :])


def _floor_of_top(values_C: FloatsC, k: int) -> np.float32:
    """Return a value with at least k values at or above it, and not many more; -inf if this would not pay.

    It is the k-th largest of the maxima of many disjoint groups: k groups have an element that high. Groups are
    strided, so that likely tokens with neighbouring ids fall into different ones. With too few values, this is not
    faster than a full sort.
    """
    groups = max(1024, 4 * k)
    depth = len(values_C) // groups
    if depth < 4:
        return np.float32(-np.inf)
    maxima = values_C[: depth * groups].reshape(depth, groups).max(axis=0)
    return np.float32(np.partition(maxima, groups - k)[groups - k])


def _guess_range(weights_C: FloatsC, tail: float) -> tuple[np.float32, np.float32]:
    """Return a range of weights that probably holds the one below which the mass `tail` lies.

    The mass under a weight is estimated from a strided sample; the variance of that estimate is about the sum of the
    squared weights. The tail is estimated, not the head: no weight in it is larger than the cut, so that a few likely
    tokens cannot spoil it.
    """
    weights_S = np.sort(weights_C[::SAMPLE_STRIDE])
    share = tail * len(weights_S) / len(weights_C)
    below_S = np.cumsum(weights_S, dtype=np.float64)
    at = int(np.searchsorted(below_S, share))
    error = SAMPLE_ERRORS * math.sqrt(float(np.square(weights_S[: at + 1], dtype=np.float64).sum()))
    first = int(np.searchsorted(below_S, share - error)) - 1
    last = int(np.searchsorted(below_S, share + error))
    low = weights_S[first] if first >= 0 else np.float32(0.0)
    high = weights_S[last] if last < len(weights_S) else np.float32(np.inf)
    return low, high
