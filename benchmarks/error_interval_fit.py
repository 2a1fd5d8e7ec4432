"""Intervals that hold 80 % of measurements, from the errors of test rows; and their coverage of sources left out.

An error is the factor by which a measured system was slower than predicted. Rows of one source share a model, a device
and a way to measure, so a new case is like a new source, not like a new row. So each source has the same weight, and a
further one, whose errors have no bounds, stands for the new case: hierarchical conformal prediction by pooling
distribution functions (Dunn, Wasserman and Ramdas, doi 10.1080/01621459.2022.2060112). With fewer than five sources
these tails are without bounds. Then the logarithms of the errors count as normal, with a variance between sources and
one within them, and Student's t of as many degrees of freedom as there are sources, less one.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from ridgeline.price.error_interval import KINDS, LEVELS, ErrorInterval, Kind, Known

COVERED = 0.8
"""The share of measurements that an interval is meant to hold."""
ENOUGH_ROWS, ENOUGH_SOURCES = 40, 4
"""How many test rows of how many sources a kind needs before its coverage counts by itself."""
STEPS: tuple[Kind, ...] = ("decode", "prefill", "static")
"""The kinds of figures that consist of priced steps alone, without queues."""
UNDER_LOAD: tuple[Kind, ...] = ("prefill", "decode")
"""The kinds of steps that figures under load consist of."""
_TAIL = (1 - COVERED) / 2


@dataclass(frozen=True, slots=True)
class Sample:
    """The error of one prediction."""

    kind: Kind
    known: Known
    source: str
    factor: float
    """The measured time over the predicted one."""
    development: bool = False
    """Whether the row was looked at during development."""
    least: float = 0.0
    """The factor that a measurement at the physical floor would have; 0 if the floor is not known."""

    def lies_in(self, interval: ErrorInterval) -> bool:
        """Return whether the measurement lies in an interval, which is clamped to the floor as in a prediction."""
        low, high = interval.around_time(1.0, self.least)
        return low <= self.factor <= high


def fit(samples: Sequence[Sample]) -> list[ErrorInterval]:
    """Return the interval of each kind and each level of knowledge for which there are enough sources.

    Less knowledge never narrows an interval: it has at least the ends of the better known levels. The level `measured`
    is apart, because its rows are of Ridgeline's engine alone.
    """
    intervals = []
    for kind in KINDS:
        low = high = 1.0
        for known in LEVELS:
            found = interval(samples, kind, known)
            if found is None:
                continue
            if known != "measured":
                low, high = min(low, found.low), max(high, found.high)
                found = replace(found, low=low, high=high)
            intervals.append(found)
    return intervals


def interval(samples: Sequence[Sample], kind: Kind, known: Known) -> ErrorInterval | None:
    """Return the interval of a kind at a level of knowledge; None if too few sources speak for it.

    If the kind has fewer than `ENOUGH_SOURCES` at a level, others are taken together with it, as `_groups` lists them.
    Figures under load follow from steps, so they have the wider end of prefills and decodes on either side.
    """
    if kind == "load":
        return _of_steps(samples, known)
    found = _chosen(samples, kind, known)
    if found is None:
        return None
    chosen, what = found
    low, high = bounds(chosen)
    return _described(kind, known, (min(1.0, low), max(1.0, high)), chosen, what)


def _of_steps(samples: Sequence[Sample], known: Known) -> ErrorInterval | None:
    """Return the interval of figures under load from those of prefills and decodes; None if one of these is missing."""
    steps = [interval(samples, kind, known) for kind in UNDER_LOAD]
    both = [_chosen(samples, kind, known) for kind in UNDER_LOAD]
    found = [each for each in steps if each is not None]
    if len(found) < len(UNDER_LOAD):
        return None
    rows = {id(row): row for each in both if each is not None for row in each[0]}
    kinds, levels = {row.kind for row in rows.values()}, {row.known for row in rows.values()}
    what = f"of {_listed([each for each in KINDS if each in kinds])}"
    if levels != {known}:
        what += f", of the levels {', '.join(each for each in LEVELS if each in levels)}"
    ends = min(each.low for each in found), max(each.high for each in found)
    return _described("load", known, ends, list(rows.values()), what)


def _listed(names: Sequence[str]) -> str:
    """Return two or more names as text, such as `decode, prefill and static`."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _described(
    kind: Kind, known: Known, ends: tuple[float, float], chosen: Sequence[Sample], what: str
) -> ErrorInterval:
    """Return an interval with the numbers of its rows and sources; `what` describes what was taken together."""
    sources = {each.source for each in chosen}
    seen = any(each.development for each in chosen)
    return ErrorInterval(kind, known, round(ends[0], 3), round(ends[1], 3), len(chosen), len(sources), what, seen)


def _chosen(samples: Sequence[Sample], kind: Kind, known: Known) -> tuple[list[Sample], str] | None:
    """Return the rows that an interval comes from, with what was taken together; None if there are too few sources."""
    for kinds, levels, what in _groups(kind, known):
        chosen = [each for each in samples if each.kind in kinds and each.known in levels]
        if len({each.source for each in chosen}) >= ENOUGH_SOURCES:
            return chosen, what
    return None


def _groups(kind: Kind, known: Known) -> Iterator[tuple[Sequence[Kind], Sequence[Known], str]]:
    """Yield the kinds and levels to take together, the closest first, with a description ("" for the kind alone).

    How well a case is known matters more than whether a step runs prompts. So steps and batches of one level are taken
    together before a less known level is.
    """
    levels = list(LEVELS)
    place = levels.index(known)
    for end in range(place + 1, len(levels) + 1):
        members = levels[place:end]
        others = "" if len(members) == 1 else f"of the levels {', '.join(members)}"
        yield (kind,), members, others
        if kind in STEPS:
            yield STEPS, members, ", ".join(filter(None, ("of decode, prefill and static", others)))
    yield (kind,), levels, "of all levels"
    yield list(KINDS), levels, "of all kinds and levels"


def bounds(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the factors between which a measurement of a new source lies in eight of ten cases."""
    by_source: dict[str, list[float]] = {}
    for each in samples:
        by_source.setdefault(each.source, []).append(math.log(each.factor))
    if 0.5 / (len(by_source) + 1) < _TAIL:
        low, high = _pooled(list(by_source.values()))
    else:
        low, high = _normal(list(by_source.values()))
    return math.exp(low), math.exp(high)


def _pooled(sources: list[list[float]]) -> tuple[float, float]:
    """Return the quantiles of the mean of the sources' distributions and of one without bounds."""
    share = 1 / (len(sources) + 1)
    values = np.array([value for source in sources for value in source])
    weights = np.array([share / len(source) for source in sources for _ in source])
    order = np.argsort(values)
    values, below = values[order], np.cumsum(weights[order])
    low = values[np.searchsorted(share / 2 + below, _TAIL)]
    high = values[min(len(values) - 1, np.searchsorted(share / 2 + below, 1 - _TAIL))]
    return float(low), float(high)


def _normal(sources: list[list[float]]) -> tuple[float, float]:
    """Return the bounds of a prediction for a new source, with a variance between sources and one within them."""
    means = [statistics.fmean(source) for source in sources]
    within = statistics.fmean(statistics.pvariance(source) for source in sources)
    spread = math.sqrt(statistics.variance(means) * (1 + 1 / len(sources)) + within)
    reach = stats.t.ppf(1 - _TAIL, len(sources) - 1) * spread
    middle = statistics.fmean(means)
    return middle - reach, middle + reach


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many measurements lay in the intervals that were made without their sources."""

    rows: int
    sources: int
    held: int
    """The rows within their interval."""
    share: float
    """The share of rows within their interval, each source with the same weight."""
    median: float
    """The median of the errors by which measurements were slower than predicted, each source with the same weight."""
    median_absolute: float

    @property
    def range(self) -> tuple[float, float]:
        """The 95 % interval of a share, by the binomial distribution of the sources (Clopper and Pearson)."""
        found = stats.binomtest(round(self.share * self.sources), self.sources).proportion_ci(method="exact")
        return float(found.low), float(found.high)


def coverage(samples: Sequence[Sample], judged: Iterable[Sample] | None = None) -> Coverage | None:
    """Leave out one source at a time, make the intervals of the others, and count which of its rows they hold.

    Args:
        samples: All test rows.
        judged: The rows to count, of those; all by default.

    Returns:
        The coverage, or None if no row could be judged.
    """
    chosen = list(samples if judged is None else judged)
    held: dict[str, list[bool]] = {}
    for source in dict.fromkeys(each.source for each in chosen):
        others = [each for each in samples if each.source != source]
        found = {(each.kind, each.known): each for each in fit(others)}
        for row in (each for each in chosen if each.source == source):
            around = found.get((row.kind, row.known))
            if around is not None:
                held.setdefault(source, []).append(row.lies_in(around))
    if not held:
        return None
    rows = [flag for flags in held.values() for flag in flags]
    errors = [(math.log(each.factor), 1 / sum(o.source == each.source for o in chosen)) for each in chosen]
    return Coverage(
        len(rows),
        len(held),
        sum(rows),
        statistics.fmean(statistics.fmean(flags) for flags in held.values()),
        math.expm1(_weighted_median(errors)),
        math.expm1(_weighted_median([(abs(error), weight) for error, weight in errors])),
    )


def _weighted_median(pairs: list[tuple[float, float]]) -> float:
    total, half = 0.0, sum(weight for _, weight in pairs) / 2
    for value, weight in sorted(pairs):
        total += weight
        if total >= half:
            return value
    raise AssertionError("there are no errors")
