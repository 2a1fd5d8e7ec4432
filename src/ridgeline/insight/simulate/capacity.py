"""The capacity of replicas: the highest arrival rate at which requests meet their objectives, by bisection.

Each rate has the same requests with the same lengths; only the gaps between arrivals are scaled. Two rates therefore
differ in nothing random.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.simulate.slo_classes import ATTAIN
from ridgeline.insight.traffic.percentiles import Interval
from ridgeline.util.json_data import json_shape

REQUESTS = 1500
"""The default number of requests per rate: enough for a p99, and to tell a failure rate of 1 % from none."""

_NEAR = 1.03  # the ratio of the bad to the good rate at which bisection stops
_STEP, _LEAST = 1.4, 100.0  # the ratio of successive rates while bracketing; the widest bracket
At = Callable[[float, float], SimulationMetrics]
"""A function that simulates an arrival rate, with step times multiplied by a factor, and returns the metrics."""


@json_shape("rate", "good", "verdict", "metrics")
@dataclass(frozen=True, slots=True)
class CapacityLevel:
    """The simulated result at one arrival rate, and whether that rate is good."""

    rate: float
    metrics: SimulationMetrics
    good: bool
    """Whether the replicas keep up at this rate and enough requests meet their objectives."""

    @property
    def verdict(self) -> str:
        """The verdict on the run at this rate in a word or two, such as `steady`."""
        return verdict(self.metrics, open_loop=True)


@json_shape("rate", "attain=min_good_share", "levels")
@dataclass(frozen=True, slots=True)
class SimulatedCapacity:
    """The highest rate that the replicas sustain within the objectives, and all rates that were tried."""

    rate: Interval
    """The highest good arrival rate at the predicted step times; 0 if no rate is good.

    Its range covers the interval of the predicted step times: the search is repeated at both of its ends.
    """
    levels: tuple[CapacityLevel, ...]
    """The results at all arrival rates that were tried with the predicted step times, lowest rate first."""
    min_good_share: float
    """The share of requests that had to meet their objectives for an arrival rate to count as good."""

    @property
    def above(self) -> CapacityLevel | None:
        """The lowest tried rate above the capacity, which is not good; None if no higher rate was tried."""
        return next((level for level in self.levels if level.rate > self.rate.mid), None)


def capacity(at: At, start: float, factors: tuple[float, float], attain: float = ATTAIN) -> SimulatedCapacity:
    """Search for the highest rate at which requests meet their objectives and the replicas keep up.

    Args:
        at: Simulates a rate at a multiple of the predicted price.
        start: The rate at which the search starts.
        factors: The lowest and highest factor on the price; the search is repeated at each that is not 1.
        attain: The share of requests that has to be good.
    """

    def tried(factor: float, start: float, step: float) -> list[CapacityLevel]:
        return _bisect(lambda rate: _level(rate, at(rate, factor), attain), start, step)

    levels = tried(1.0, start, _STEP)
    mid = _best(levels)
    rates = [mid]
    for factor in factors:
        if factor != 1 and mid:
            step = max(_NEAR, max(factor, 1 / factor) ** 0.5)
            rates.append(_best(tried(factor, mid / factor, step)))
    return SimulatedCapacity(Interval(min(rates), mid, max(rates)), tuple(levels), attain)


def _level(rate: float, metrics: SimulationMetrics, attain: float) -> CapacityLevel:
    """Return the result at an arrival rate, and whether the rate is good.

    It is good if the replicas keep up, and both all requests together and each class of them attain the required share.
    """
    keeps_up = verdict(metrics, open_loop=True) in ("steady", "backlogged", "too short to tell")
    classes = [each for each in metrics.classes.values() if each.requests]  # all requests of others came in warm-up
    shares = [metrics.good_share, *(each.good_share for each in classes)]
    return CapacityLevel(rate, metrics, keeps_up and min(shares) >= attain)


def _best(levels: list[CapacityLevel]) -> float:
    """Return the highest arrival rate that is good, or 0 if none is."""
    return max((level.rate for level in levels if level.good), default=0.0)


def _bisect(measure: Callable[[float], CapacityLevel], start: float, step: float) -> list[CapacityLevel]:
    """Search for a good and a bad rate that are within 3 % of each other; return all rates tried, ascending.

    All rates are good or all are bad if none of the other kind is found within about a factor of 100 of `start`.
    """
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
