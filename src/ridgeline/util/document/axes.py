"""Axes: where they end, where they have their numbers, and how these are written."""

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


def axis_around(values: Sequence[float], *, log: bool = False, near: bool = False) -> Axis:
    """An axis that holds these values; of a logarithmic one, those above 0. near: without its beginning, where they
    are all in the upper three quarters of it.
    """
    if log:
        return Axis(log_steps(value for value in values if value > 0), log)
    steps = round_steps(values)
    least = min((value for value in values if math.isfinite(value)), default=0.0)
    if near and 4 * least >= steps[-1]:
        steps = steps[sum(after <= least for after in steps[1:-1]) :]
    return Axis(steps)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tick(value: float) -> str:
    """A number of an axis as it is written along it: 0.5, 20,000, 10⁻⁵, 2·10⁶."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    times = f"{value / 10.0**power:.3g}"
    return ("" if times == "1" else f"{times}·") + "10" + str(power).translate(_RAISED)


def round_steps(values: Iterable[float], most: int = 8) -> tuple[float, ...]:
    """Round numbers from 0 (or a round one below the least) to one that is above all: steps of 1, 2 or 5 times a power
    of ten, at most `most` of them.
    """
    held = [0.0, *(value for value in values if math.isfinite(value))]
    low, high = min(held), max(held)
    rough = (high - low) / most or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step * (1 - 1e-12))
    return tuple(round(place * step, 12) for place in range(first, max(last, first + 1) + 1))


_ROUND = (1, 2, 5)
_NEAR = 0.06  # of an axis: where two numbers would touch


def log_steps(values: Iterable[float]) -> tuple[float, ...]:
    """Numbers of a logarithmic axis that holds positive values: its ends, each 1, 2 or 5 times a power of ten, and the
    powers of ten between them; on a short axis also what is 2 or 5 times one.
    """
    held = list(values) or [1.0]
    first, last = math.floor(math.log10(min(held))), math.ceil(math.log10(max(held))) + 1
    places = [times * 10.0**power for power in range(first, last + 1) for times in _ROUND]
    low = max(place for place in places if place <= min(held) * (1 + 1e-9))
    high = min(place for place in places if place >= max(held) * (1 - 1e-9) and place > low)
    each = _ROUND if high / low <= 100 * (1 + 1e-9) else _ROUND[:1]
    between = [times * 10.0**power for power in range(first, last + 1) for times in each]
    return (low, *(place for place in between if _NEAR < along(place, (low, high)) < 1 - _NEAR), high)


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
