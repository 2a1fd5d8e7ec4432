"""Steadiness: whether a server keeps up with what comes, or falls further behind for as long as one looks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FALLING_BEHIND = 0.05  # of the arrivals: growth of what is under way from which a server does not keep up
SURE = 3.0  # standard errors of the slope, with ten blocks about 1 in 100 by chance; and of a count, for the rise
_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Stationarity:
    """growth: requests under way more each second, over the last two thirds; ttft_growth: seconds of TTFT more each
    second. overloaded: both grow, surely, and the first by more than 5 % of the rate of arrivals and by more than what
    is under way varies by itself, were it Poisson.
    """

    growth: float
    ttft_growth: float
    overloaded: bool


def judge_stationarity(
    under_way: Sequence[tuple[float, float]], ttfts: Sequence[tuple[float, float]], rate: float
) -> Stationarity | None:
    """Judge (moment, requests under way) and (moment of arrival, TTFT), all in seconds, at `rate` arrivals a second.

    None where there is too little to see: ten blocks of two samples each, of either, in the last two thirds.
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
    """Those of the last two thirds of the time: the first third is the way up."""
    if not samples:
        return []
    start, end = min(at for at, _ in samples), max(at for at, _ in samples)
    return sorted(sample for sample in samples if sample[0] >= start + (end - start) / 3)


def _slope(samples: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The slope and its standard error, by least squares over the means of ten blocks: neighbours are alike, and a
    regression over all of them would be far too sure.
    """
    if len(samples) < 2 * _BLOCKS:
        return None
    blocks = [block.mean(axis=0) for block in np.array_split(np.array(samples), _BLOCKS)]
    x, y = np.array(blocks).T
    spread = float(((x - x.mean()) ** 2).sum())
    if spread == 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    left = y - y.mean() - slope * (x - x.mean())
    return slope, math.sqrt(float((left**2).sum()) / (_BLOCKS - 2) / spread)
