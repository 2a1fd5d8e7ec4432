"""The metrics of request classes, which share the replicas but have objectives of their own."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.insight.simulate.columns import Columns, Mask
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Distribution, Interval, wilson
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.summary import Goodput

ATTAIN = 0.99
"""The share of requests, overall and in each class, that must meet their objectives."""


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """The metrics of the counted requests of one class."""

    requests: int
    """The number of counted requests of the class that arrived."""
    answered: int
    """The number of counted requests of the class that completed."""
    goodput: Goodput | None
    """The requests of the class that met their objectives; None without objectives."""
    latencies: dict[str, Distribution | None]
    """The distributions of TTFT, TPOT and E2E latency in seconds."""

    @property
    def good_share(self) -> float:
        """The share of the class's requests that met their objectives; without objectives, that completed."""
        good = self.answered if self.goodput is None else self.goodput.good
        return good / max(1, self.requests)

    def latency(self, name: str, percent: int) -> Interval | None:
        """Return a latency percentile, or None if there are too few samples."""
        found = self.latencies[name]
        return None if found is None else found.percentiles[percent]

    @property
    def drawn(self) -> tuple[float, float]:
        """The Wilson interval of the share of good requests."""
        return wilson(self.good_share, self.requests)

    @property
    def good_drawn(self) -> float:
        """The relative sampling error of the class's goodput as a Poisson count: 1.96 standard errors."""
        return DEVIATIONS_95 / math.sqrt(self.goodput.good) if self.goodput is not None and self.goodput.good else 0.0


def by_class(
    requests: Columns, answered: Mask, counted: Mask, slo: SLO | None, duration: float
) -> dict[str, ClassMetrics]:
    """Return the metrics of each request class, in order of first arrival.

    Args:
        requests: All requests of the run.
        answered: The completed requests among the counted ones.
        counted: The requests after the warm-up.
        slo: The objectives, if there are any.
        duration: Seconds from the first counted arrival to the last token.
    """
    found = {}
    for place, name in enumerate(requests.classes):
        own = requests.slo_class == place
        done = answered & own
        goodput = requests.goodput(done, slo, duration)
        found[name] = ClassMetrics(int((counted & own).sum()), int(done.sum()), goodput, requests.latencies(done))
    return found


def class_verdict(share: Interval) -> str:
    """Return whether a class meets its objectives: `kept`, `missed`, or `undecided` if the interval allows both."""
    if share.low >= ATTAIN:
        return "kept"
    return "missed" if share.high < ATTAIN else "undecided"


def check_classes(slo: SLO | None, classes: Collection[str]) -> None:
    """Check that every class with objectives occurs in the traffic.

    Raises:
        ValueError: If the objectives name a class that no request has.
    """
    unknown = [name for name in slo.classes if name not in classes] if slo is not None else []
    if unknown:
        named = ", ".join(sorted(filter(None, classes)))
        there = f"its classes are {named}" if named else "its requests have no class"
        raise ValueError(f"--slo names class {unknown[0]!r}, which no request of this traffic has; {there}")
