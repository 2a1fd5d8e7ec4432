"""Logarithmic axes whose ends are whole powers of ten."""

import math
from collections.abc import Iterable

Ends = tuple[float, float]


def ends_around(values: Iterable[float]) -> Ends:
    """The ends of an axis that holds positive values: at least one decade."""
    found = list(values)
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def powers(ends: Ends) -> list[float]:
    """The powers of ten on an axis, both ends included."""
    low, high = (round(math.log10(end)) for end in ends)
    return [10.0**power for power in range(low, high + 1)]


def along(value: float, ends: Ends) -> float:
    """Which share of the way from the low end to the high one a value lies."""
    low, high = ends
    return math.log(value / low) / math.log(high / low)
