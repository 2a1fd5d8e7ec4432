"""Percentiles as order statistics with confidence intervals, omitted if there are too few samples.

The intervals of `block_intervals` allow for correlation between neighbours in time: their bootstrap resamples whole
minutes rather than requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.util.json_data import json_shape

SHOWN = (50, 90, 95, 99)
BEYOND = 10  # the number of samples that must lie beyond a percentile: p99 needs 1,000 in all
DEVIATIONS_95 = 1.96
"""The standard deviations on either side of the mean that contain 95 % of a normal distribution."""

MINUTE = 60_000_000_000
"""Nanoseconds of a bootstrap block; requests of different blocks are assumed to be independent."""

_FEWEST = 5  # the minimum number of blocks for an estimate of their variation
_DRAWS, _BINS = 400, 2000
_95 = (2.5, 97.5)  # the percentiles of the bootstrap draws that bound 95 % of them


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the bounds of its true value.

    For a percentile, these are the samples between which the true one lies in 95 % of cases if samples are independent.
    Requests close in time are correlated, so the real interval is at least this wide.
    """

    low: float
    mid: float
    high: float


@json_shape("count", "mean", "min=least", "max=most", "*by_name")
@dataclass(frozen=True, slots=True)
class Distribution:
    """The count, mean, extremes and percentiles of a sample."""

    count: int
    mean: float
    least: float
    most: float
    percentiles: dict[int, Interval | None]
    """The percentiles with intervals; None for those with too few samples."""

    @property
    def by_name(self) -> dict[str, Interval | None]:
        """The percentiles by their names in JSON, such as `p99`."""
        return {f"p{percent}": at for percent, at in self.percentiles.items()}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the Wilson interval (1927) in which the true share lies in 95 % of cases, given a sample share.

    Its width is positive even for shares of 0 and 1.
    """
    if not count:
        return 0.0, 1.0
    square = DEVIATIONS_95**2 / count
    middle, off = share + square / 2, DEVIATIONS_95 * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - off) / (1 + square)), min(1.0, (middle + off) / (1 + square))


def needed(percent: int) -> int:
    """Return the number of samples that a percentile needs: 20 for p50, 100 for p90, 1,000 for p99."""
    return math.ceil(BEYOND * 100 / (100 - percent))


def distribution(samples: Sequence[float], percents: Sequence[int] = SHOWN) -> Distribution | None:
    """Return the distribution of equally weighted samples; None if there are none."""
    return weighted(np.asarray(samples, dtype=np.float64), None, percents)


def weighted(
    samples: NDArray[np.float64], weights: NDArray[np.float64] | None, percents: Sequence[int] = SHOWN
) -> Distribution | None:
    """Return the distribution of samples that each stand for `weights` equal ones (1 if None).

    The count is the sum of the weights. The width of intervals uses the effective sample size (sum w)^2 / sum w^2 (Kish
    1965), because equal samples are not independent.
    """
    if len(samples) == 0:
        return None
    order = np.argsort(samples, kind="stable")
    values = samples[order]
    ranks = np.arange(1.0, len(values) + 1) if weights is None else np.cumsum(weights[order])
    count = float(ranks[-1])
    mean = float(values.mean() if weights is None else (values * weights[order]).sum() / count)
    worth = count if weights is None else count**2 / float((weights**2).sum())
    at = {p: _percentile(values, ranks, worth, p) if round(count) >= needed(p) else None for p in percents}
    return Distribution(round(count), mean, float(values[0]), float(values[-1]), at)


def _percentile(values: NDArray[np.float64], ranks: NDArray[np.float64], worth: float, percent: int) -> Interval:
    """Return the smallest sample that `percent` % of samples do not exceed, with its interval.

    The bounds are the samples 1.96 sqrt(p (1 - p) / n) of all ranks away, for the effective sample size n (`worth`).
    """
    count, share = float(ranks[-1]), percent / 100
    spread = count * DEVIATIONS_95 * math.sqrt(share * (1 - share) / worth)

    def ranked(rank: float) -> float:
        place = int(np.searchsorted(ranks, rank - 1e-9, side="left"))  # a sum of weights may be slightly off
        return float(values[min(max(place, 0), len(values) - 1)])

    return Interval(ranked(count * share - spread), ranked(count * share), ranked(count * share + spread))


def block_intervals(
    samples: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    moments: NDArray[np.int64],
    percents: Sequence[int],
    seed: int = 0,
) -> dict[int, tuple[float, float]]:
    """Return a 95 % bootstrap interval for each percentile, resampling blocks of one minute.

    The values are the upper ends of up to 2,000 bins of about equal weight.

    Args:
        samples: The samples.
        weights: The weight of each sample; 1 if None.
        moments: The time of each sample in nanoseconds.
        percents: The percentiles.
        seed: The seed of the bootstrap.

    Returns:
        The interval by percentile; empty if there are fewer than five blocks.
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
