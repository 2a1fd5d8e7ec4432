"""Arrivals: endless moments, in nanoseconds from the start, at which requests are intended to come.

The first is drawn as the others are, and gaps are never rescaled to a wanted sum: either would make Poisson arrivals
something else. A schedule is one process however many clients share it, each taking a share of its arrivals.
"""

import math
import random
from collections.abc import Iterable, Iterator

SECOND = 1_000_000_000


def constant(rate: float) -> Iterator[int]:
    """`rate` a second, evenly."""
    return _summed(1 / _positive(rate, "the rate") for _ in _forever())


def poisson(rate: float, seed: int) -> Iterator[int]:
    """`rate` a second on average, each independent of all others: gaps are exponential."""
    draw = random.Random(f"arrivals/{seed}")
    return _summed(draw.expovariate(_positive(rate, "the rate")) for _ in _forever())


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[int]:
    """Gaps of a gamma distribution with mean 1 / rate and shape `burstiness`, as vLLM's tool has it: 1 is Poisson, less
    comes in bursts (the coefficient of variation is burstiness^-0.5), much more is nearly constant.
    """
    shape = _positive(burstiness, "the burstiness")
    scale = 1 / (_positive(rate, "the rate") * shape)
    draw = random.Random(f"arrivals/{seed}")
    return _summed(draw.gammavariate(shape, scale) for _ in _forever())


def _summed(gaps: Iterable[float]) -> Iterator[int]:
    """Moments from gaps in seconds; each is rounded by itself, so that rounding does not add up."""
    now = 0.0
    for gap in gaps:
        now += gap
        yield round(now * SECOND)


def _forever() -> Iterator[None]:
    while True:
        yield None


def _positive(value: float, what: str) -> float:
    """Raises ValueError for what is no number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} is {value}; it must be a number above 0")
    return value
