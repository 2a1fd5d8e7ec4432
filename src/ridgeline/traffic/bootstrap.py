"""How sure a percentile is where neighbours in time are alike: a bootstrap that draws whole minutes, not requests."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MINUTE = 60_000_000_000
"""Nanoseconds: requests further apart than that are taken to know nothing of each other."""

_FEWEST = 5  # blocks below which nothing can be said of how they differ
_DRAWS, _BINS = 400, 2000
_95 = (2.5, 97.5)  # percent of the draws between which 95 of 100 lie


def block_intervals(
    samples: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    moments: NDArray[np.int64],
    percents: Sequence[int],
    seed: int = 0,
) -> dict[int, tuple[float, float]]:
    """For each percentile, between which values it lies in 95 of 100 draws of as many blocks of a minute as there are.

    samples: each with its weight (1 where None) and its moment in nanoseconds. Empty where there are fewer than five
    blocks. The values are those of 2,000 bins of about equal weight.
    """
    if len(samples) == 0:
        return {}
    blocks, block = np.unique(moments // MINUTE, return_inverse=True)
    if len(blocks) < _FEWEST:
        return {}
    each = np.ones(len(samples)) if weights is None else weights
    order = np.argsort(samples, kind="stable")
    ranks = np.cumsum(each[order])
    uppers = np.unique(samples[order][np.searchsorted(ranks, np.linspace(0, 1, _BINS + 1)[1:] * ranks[-1] - 1e-9)])
    bins = np.minimum(np.searchsorted(uppers, samples), len(uppers) - 1)
    counts = np.zeros((len(blocks), len(uppers)))
    np.add.at(counts, (block, bins), each)
    draw = np.random.default_rng(seed)
    picked = draw.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=_DRAWS)
    summed = np.cumsum(picked @ counts, axis=1)
    summed = summed[summed[:, -1] > 0]
    found = {}
    for percent in percents:
        reached = (summed < summed[:, -1:] * (percent / 100) - 1e-9).sum(axis=1)
        low, high = np.percentile(uppers[reached], _95)
        found[percent] = float(low), float(high)
    return found
