"""The requests of a run log as NumPy arrays, and statistics of subsets of them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.insight.simulate.run_log import OUTCOMES, RunLog
from ridgeline.insight.traffic.percentiles import SHOWN, Distribution, Interval, block_intervals, weighted
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.summary import Goodput

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
"""A boolean array that selects requests of a log."""


class Columns:
    """The columns of a log's requests as arrays.

    Besides columns of `RequestLog`, `ok` masks the completed requests, `is_disaggregated` masks those whose prefill and
    decode ran on two replicas, `ended` is the time at which each request ended (the end of the run for unfinished
    ones), and `classes` names the classes that `slo_class` indexes.
    """

    def __init__(self, log: RunLog) -> None:
        requests = log.requests
        self.arrived, self.scheduled = ints(requests.arrived), ints(requests.scheduled)
        self.first, self.last = ints(requests.first), ints(requests.last)
        self.input, self.made, self.cached = ints(requests.input), ints(requests.made), ints(requests.cached)
        self.worst_gap, self.outcome = ints(requests.worst_gap), ints(requests.outcome)
        self.slo_class, self.classes = ints(requests.slo_class), tuple(requests.classes)
        self.is_disaggregated = ints(requests.prompted) != ints(requests.replica)
        self.ok = self.outcome == OUTCOMES.index("ok")
        over = np.where(self.ok, self.last, log.end)
        self.ended = np.where(self.outcome == OUTCOMES.index("rejected"), self.arrived, over)

    @property
    def tpot(self) -> Floats:
        """The mean time per output token after the first, in nanoseconds; 0 for requests with one token."""
        found: Floats = (self.last - self.first) / np.maximum(self.made - 1, 1)
        return found

    def verdicts(self, answered: Mask, slo: SLO) -> list[bool | None]:
        """Return for each completed request whether it met the objectives of its class.

        The verdict is None if a metric with a limit is missing and no other limit is exceeded.
        """
        limits = [slo.of(name) for name in self.classes]
        rows = zip(
            (self.first - self.arrived)[answered].tolist(),
            self.tpot[answered].tolist(),
            (self.last - self.arrived)[answered].tolist(),
            self.made[answered].tolist(),
            self.slo_class[answered].tolist(),
            strict=True,
        )
        return [limits[own].met(ttft, None if made < 2 else tpot, e2e) for ttft, tpot, e2e, made, own in rows]

    def goodput(self, answered: Mask, slo: SLO | None, duration: float) -> Goodput | None:
        """Return the goodput of completed requests over `duration` seconds, or None if there are no objectives."""
        if not slo:
            return None
        met = self.verdicts(answered, slo)
        good = met.count(True)
        return Goodput(good, met.count(False), met.count(None), good / duration if duration else 0.0)

    def latencies(self, answered: Mask) -> dict[str, Distribution | None]:
        """Return the distributions of TTFT, TPOT and E2E latency over completed requests, in seconds."""
        several, moments = answered & (self.made > 1), self.arrived
        return {
            "TTFT": distribution((self.first - self.arrived)[answered], None, moments[answered]),
            "TPOT": distribution(self.tpot[several], None, moments[several]),
            "E2E": distribution((self.last - self.arrived)[answered], None, moments[answered]),
        }


def distribution(nanoseconds: NDArray[Any], weights: Floats | None, moments: Ints) -> Distribution | None:
    """Return a distribution in seconds, or None without samples; each percentile has an interval.

    The interval covers both that of the percentile's rank and that of a bootstrap over blocks of one minute.
    """
    samples = nanoseconds.astype(np.float64) / 1e9
    found = weighted(samples, weights)
    if found is None:
        return None
    between = block_intervals(samples, weights, moments, SHOWN)
    widened = {percent: _widened(at, between.get(percent)) for percent, at in found.percentiles.items()}
    return replace(found, percentiles=widened)


def _widened(at: Interval | None, between: tuple[float, float] | None) -> Interval | None:
    """Return the interval extended to cover a second one, if both exist."""
    if at is None or between is None:
        return at
    return Interval(min(at.low, between[0]), at.mid, max(at.high, between[1]))


def ints(column: Any) -> Ints:
    """Return a column of a run log as a NumPy array of 64-bit integers."""
    return np.asarray(column).astype(np.int64)
