"""Percentiles as order statistics, each with an interval, and none from too few samples.

The intervals of `block_intervals` allow for neighbours in time being alike: its bootstrap draws whole minutes, not
requests.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN = (50, 90, 95, 99)
BEYOND = 10  # samples that must lie beyond a percentile for it to be one: 1,000 in all for p99
DEVIATIONS_95 = 1.96
"""Standard deviations either side that hold 95 %."""

MINUTE = 60_000_000_000
"""Nanoseconds: requests further apart than that are taken to know nothing of each other."""

_FEWEST = 5  # blocks below which nothing can be said of how they differ
_DRAWS, _BINS = 400, 2000
_95 = (2.5, 97.5)  # percent of the draws between which 95 of 100 lie


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, with the low and the high between which the true one lies. Of a percentile these are the samples
    between which it does in 95 of 100 cases, were they independent: requests near in time are alike, so that it is the
    least to expect.
    """

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is said of many samples. percentiles: None where there are too few of them for it."""

    count: int
    mean: float
    least: float
    most: float
    percentiles: dict[int, Interval | None]


def interval_json(found: Interval | None) -> dict[str, float | None] | None:
    """An end that is infinite is null: JSON has no such number."""
    if found is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(found).items()}


def distribution_json(found: Distribution | None) -> dict[str, Any] | None:
    """As results under load have it; null where there are no samples, and a percentile of too few."""
    if found is None:
        return None
    percentiles = {f"p{percent}": interval_json(at) for percent, at in found.percentiles.items()}
    return {"count": found.count, "mean": found.mean, "min": found.least, "max": found.most, **percentiles}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Between which shares the true one lies in 95 of 100 cases where `share` of so many were (Wilson 1927): of none
    and of all, too, it has a width.
    """
    if not count:
        return 0.0, 1.0
    square = DEVIATIONS_95**2 / count
    middle, off = share + square / 2, DEVIATIONS_95 * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (middle - off) / (1 + square)), min(1.0, (middle + off) / (1 + square))


def needed(percent: int) -> int:
    """Samples that a percentile takes: 20 for p50, 100 for p90, 1,000 for p99."""
    return math.ceil(BEYOND * 100 / (100 - percent))


def distribution(samples: Sequence[float], percents: Sequence[int] = SHOWN) -> Distribution | None:
    """Samples that weigh the same; None where there are none."""
    return weighted(np.asarray(samples, dtype=np.float64), None, percents)


def weighted(
    samples: NDArray[np.float64], weights: NDArray[np.float64] | None, percents: Sequence[int] = SHOWN
) -> Distribution | None:
    """Samples of which each stands for `weights` (1 where None) equal ones. Their number is the sum of the weights; the
    width of intervals goes by the effective one, (sum w)^2 / sum w^2 (Kish 1965), because equal ones are no samples of
    their own.
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
    """The smallest sample that `percent` of 100 do not exceed, and those 1.96 sqrt(p (1 - p) / n) of all ranks around
    it. worth: n, the effective number of samples.
    """
    count, share = float(ranks[-1]), percent / 100
    spread = count * DEVIATIONS_95 * math.sqrt(share * (1 - share) / worth)

    def ranked(rank: float) -> float:
        place = int(np.searchsorted(ranks, rank - 1e-9, side="left"))  # the sum of weights may miss a whole by a bit
        return float(values[min(max(place, 0), len(values) - 1)])

    return Interval(ranked(count * share - spread), ranked(count * share), ranked(count * share + spread))


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
