"""Classes: what became of the requests of each class, which share the replicas and have objectives of their own."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.insight.simulate.columns import Columns, Mask
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Distribution, Interval, wilson
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.summary import Goodput

ATTAIN = 0.99
"""The share of requests, and of each class of them, that is to be good."""


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """Of the requests of a class that count: how many came, how many were answered, and, where there are objectives,
    how many were good. latencies: TTFT, TPOT and E2E, in seconds.
    """

    requests: int
    answered: int
    goodput: Goodput | None
    latencies: dict[str, Distribution | None]

    @property
    def good_share(self) -> float:
        """Of all its requests those that are good, or, without objectives, answered."""
        good = self.answered if self.goodput is None else self.goodput.good
        return good / max(1, self.requests)

    def latency(self, name: str, percent: int) -> Interval | None:
        """A percentile; None where there are too few samples."""
        found = self.latencies[name]
        return None if found is None else found.percentiles[percent]

    @property
    def drawn(self) -> tuple[float, float]:
        """Between which shares its true one lies, by the draw of requests."""
        return wilson(self.good_share, self.requests)

    @property
    def good_drawn(self) -> float:
        """How far off its goodput may be by the draw, as a share of it: as Drawn.good."""
        return DEVIATIONS_95 / math.sqrt(self.goodput.good) if self.goodput is not None and self.goodput.good else 0.0


def by_class(
    requests: Columns, answered: Mask, counted: Mask, slo: SLO | None, duration: float
) -> dict[str, ClassMetrics]:
    """In the order in which the classes came. counted: the requests that count; duration: seconds of all of them."""
    found = {}
    for place, name in enumerate(requests.classes):
        own = requests.slo_class == place
        done = answered & own
        goodput = requests.goodput(done, slo, duration)
        found[name] = ClassMetrics(int((counted & own).sum()), int(done.sum()), goodput, requests.latencies(done))
    return found


def class_verdict(share: Interval) -> str:
    """Whether a class has its objectives, by its share of good requests: kept, missed, or undecided where the interval
    holds both.
    """
    if share.low >= ATTAIN:
        return "kept"
    return "missed" if share.high < ATTAIN else "undecided"


def check_classes(slo: SLO | None, classes: Collection[str]) -> None:
    """Raises ValueError where objectives are of a class that no request has."""
    unknown = [name for name in slo.classes if name not in classes] if slo is not None else []
    if unknown:
        named = ", ".join(sorted(filter(None, classes)))
        there = f"there is {named}" if named else "its requests have none"
        raise ValueError(f"--slo names class {unknown[0]!r}, which no request of this traffic has; {there}")
