"""Capacity: the highest rate at which requests are good and the replica keeps up, by bisection on the same requests.

Each rate has the same requests, as many and as long, in gaps that are scaled alone, so that two rates differ in nothing
that chance has drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.simulate.slo_classes import ATTAIN
from ridgeline.insight.traffic.percentiles import Interval

REQUESTS = 1500
"""Of a rate, where nothing else is asked: enough for a p99, and for one in a hundred to be told from none."""

_NEAR = 1.03  # times: how far apart the rate that is good and the one that is not are in the end
_STEP, _LEAST = 1.4, 100.0  # times from one rate to the next while both ends are looked for; how far down one looks
At = Callable[[float, float], SimulationMetrics]
"""The metrics at a rate, and at so many times the price."""


@dataclass(frozen=True, slots=True)
class CapacityLevel:
    """What a rate came to. good: whether it is one that the replica can be held to."""

    rate: float
    metrics: SimulationMetrics
    good: bool


@dataclass(frozen=True, slots=True)
class SimulatedCapacity:
    """rate: at the price, and at more and less of it by its error: the highest that is good, 0 where none is. levels:
    those that were tried at the price, in the order of their rates. attain: as of `capacity`.
    """

    rate: Interval
    levels: tuple[CapacityLevel, ...]
    attain: float

    @property
    def above(self) -> CapacityLevel | None:
        """The lowest rate above it, which is not good."""
        return next((level for level in self.levels if level.rate > self.rate.mid), None)


def capacity(at: At, start: float, error: float, attain: float = ATTAIN) -> SimulatedCapacity:
    """Look for it from a rate. error: of the price, as a share. attain: the share of requests that has to be good."""
    levels = _bisect(lambda rate: _level(rate, at(rate, 1.0), attain), start, _STEP)
    mid = _best(levels)
    low = high = mid
    if error and mid:
        step = max(_NEAR, 1 + error / 2)
        low = _best(_bisect(lambda rate: _level(rate, at(rate, 1 + error), attain), mid * (1 - error), step))
        high = _best(_bisect(lambda rate: _level(rate, at(rate, 1 - error), attain), mid * (1 + error), step))
    rates = sorted((low, mid, high))
    return SimulatedCapacity(Interval(rates[0], mid, rates[2]), tuple(levels), attain)


def _level(rate: float, metrics: SimulationMetrics, attain: float) -> CapacityLevel:
    keeps_up = verdict(metrics, open_loop=True) in ("steady", "backlogged", "too short to tell")
    classes = [each for each in metrics.classes.values() if each.requests]  # others came while the replica filled up
    shares = [metrics.good_share, *(each.good_share for each in classes)]
    return CapacityLevel(rate, metrics, keeps_up and min(shares) >= attain)


def _best(levels: list[CapacityLevel]) -> float:
    return max((level.rate for level in levels if level.good), default=0.0)


def _bisect(measure: Callable[[float], CapacityLevel], start: float, step: float) -> list[CapacityLevel]:
    """Rates until one that is good and one that is not are near each other; in their order."""
    levels = [measure(start)]
    good = levels[0].good
    while levels[-1].good == good and start / _LEAST < levels[-1].rate < start * _LEAST:
        levels.append(measure(levels[-1].rate * step if good else levels[-1].rate / step))
    if levels[-1].good != good:
        low, high = sorted(level.rate for level in levels[-2:])
        while high > low * _NEAR:
            middle = measure((low * high) ** 0.5)
            levels.append(middle)
            low, high = (middle.rate, high) if middle.good else (low, middle.rate)
    return sorted(levels, key=lambda level: level.rate)
