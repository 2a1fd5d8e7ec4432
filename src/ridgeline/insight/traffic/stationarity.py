"""A test for overload: whether a server keeps up with arrivals, or falls further behind as long as they continue."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FALLING_BEHIND = 0.05  # backlog growth relative to the arrival rate, above which a server does not keep up
SURE = 3.0  # standard errors of a slope (with ten blocks, chance exceeds it in about 1 of 100 cases) and of a count
_BLOCKS = 10
MIN_SAMPLES = 2 * _BLOCKS
"""The samples that a slope needs in the last two thirds of the time, so about two thirds of all."""


@dataclass(frozen=True, slots=True)
class Stationarity:
    """The measured growth of a server's backlog, and whether it indicates overload."""

    growth: float
    """The increase of active requests per second, over the last two thirds of the time."""
    ttft_growth: float
    """The increase of TTFT in seconds per second."""
    overloaded: bool
    """Whether both the active requests and TTFT grow significantly.

    Active requests must also grow by more than 5 % of the arrival rate, and by more than their Poisson fluctuation.
    """


def judge_stationarity(
    under_way: Sequence[tuple[float, float]], ttfts: Sequence[tuple[float, float]], rate: float
) -> Stationarity | None:
    """Measure whether the backlog of a server grows.

    Args:
        under_way: Pairs of time and active requests, in seconds.
        ttfts: Pairs of arrival time and TTFT, in seconds.
        rate: Arrivals per second.

    Returns:
        The growth, or None if either series has fewer than 20 samples in the last two thirds of its time, or all of
        them at one time.
    """
    grown, waited = _slope(_late(under_way)), _slope(_late(ttfts))
    if grown is None or waited is None:
        return None
    (growth, growth_error), (ttft_growth, ttft_error) = grown, waited
    sure = growth > SURE * growth_error and ttft_growth > SURE * ttft_error
    late = _late(under_way)
    rise = growth * (late[-1][0] - late[0][0])
    by_more = rise > SURE * math.sqrt(1 + sum(count for _, count in late) / len(late))
    return Stationarity(growth, ttft_growth, sure and by_more and growth > FALLING_BEHIND * rate)


def _late(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the samples in the last two thirds of the time; the first third is warm-up."""
    if not samples:
        return []
    start, end = min(at for at, _ in samples), max(at for at, _ in samples)
    return sorted(sample for sample in samples if sample[0] >= start + (end - start) / 3)


def _slope(samples: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the slope and its standard error, by least squares over the means of ten blocks.

    Neighbouring samples are correlated, so a regression over all of them would underestimate the error. The result is
    None for fewer than 20 samples, or if all are at one time.
    """
    if len(samples) < MIN_SAMPLES:
        return None
    blocks = [block.mean(axis=0) for block in np.array_split(np.array(samples), _BLOCKS)]
    x, y = np.array(blocks).T
    spread = float(((x - x.mean()) ** 2).sum())
    if spread == 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    left = y - y.mean() - slope * (x - x.mean())
    return slope, math.sqrt(float((left**2).sum()) / (_BLOCKS - 2) / spread)
