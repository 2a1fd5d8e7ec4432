"""Axes: where they end, and where they have their numbers. Logarithmic ones end at whole powers of ten."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """numbers: those written along it, both ends included."""

    numbers: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Which share of its length a value lies at; what a logarithmic axis has no place for lies at its foot."""
        low, high = self.numbers[0], self.numbers[-1]
        if not self.log:
            return (value - low) / (high - low)
        return along(value, (low, high)) if value > low else 0.0


def axis_around(values: Sequence[float], *, log: bool = False) -> Axis:
    """An axis that holds these values; of a logarithmic one, those above 0."""
    if log:
        return Axis(tuple(powers(ends_around([value for value in values if value > 0] or [1.0]))), log)
    return Axis(round_steps(values))


def round_steps(values: Iterable[float], most: int = 8) -> tuple[float, ...]:
    """Round numbers from 0 (or a round one below the least) to one that is above all: steps of 1, 2 or 5 times a power
    of ten, at most `most` of them."""
    held = [0.0, *(value for value in values if math.isfinite(value))]
    low, high = min(held), max(held)
    rough = (high - low) / most or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step * (1 - 1e-12))
    return tuple(round(place * step, 12) for place in range(first, max(last, first + 1) + 1))


def ends_around(values: Iterable[float]) -> Ends:
    """The ends of an axis that holds positive values: at least one decade."""
    held = list(values)
    low, high = math.floor(math.log10(min(held))), math.ceil(math.log10(max(held)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def powers(ends: Ends) -> list[float]:
    """The powers of ten on an axis, both ends included."""
    low, high = (round(math.log10(end)) for end in ends)
    return [10.0**power for power in range(low, high + 1)]


def along(value: float, ends: Ends) -> float:
    """Which share of the way from the low end to the high one a value lies."""
    low, high = ends
    return math.log(value / low) / math.log(high / low)
