"""Arrival processes: endless intended arrival times of requests, in nanoseconds from the start.

The first gap is drawn like the others, and gaps are never rescaled to a target sum: either would make Poisson arrivals
something else. A schedule is one process however many clients share it, each of which takes a part of its arrivals.
"""

import math
import random
from collections.abc import Iterable, Iterator

SECOND = 1_000_000_000


def constant(rate: float) -> Iterator[int]:
    """Yield arrivals at constant intervals, `rate` per second."""
    return _summed(1 / _positive(rate, "the rate") for _ in _forever())


def poisson(rate: float, seed: int) -> Iterator[int]:
    """Yield Poisson arrivals, `rate` per second on average: independent, with exponential gaps."""
    draw = random.Random(f"arrivals/{seed}")
    return _summed(draw.expovariate(_positive(rate, "the rate")) for _ in _forever())


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[int]:
    """Yield arrivals with gamma-distributed gaps of mean 1 / rate and shape `burstiness`, as in vLLM's benchmark.

    A shape of 1 is Poisson, less comes in bursts (the coefficient of variation is burstiness^-0.5), and much more is
    nearly constant.
    """
    shape = _positive(burstiness, "the burstiness")
    scale = 1 / (_positive(rate, "the rate") * shape)
    draw = random.Random(f"arrivals/{seed}")
    return _summed(draw.gammavariate(shape, scale) for _ in _forever())


def _summed(gaps: Iterable[float]) -> Iterator[int]:
    """Yield the cumulative sums of gaps in seconds, each rounded separately so that rounding errors do not add up."""
    now = 0.0
    for gap in gaps:
        now += gap
        yield round(now * SECOND)


def _forever() -> Iterator[None]:
    while True:
        yield None


def _positive(value: float, what: str) -> float:
    """Return the value if it is a finite number above 0.

    Raises:
        ValueError: If it is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} is {value}; it must be a number above 0")
    return value
