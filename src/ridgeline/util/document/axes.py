"""The axes of charts: their ends, the positions of their numbers, and the format of those."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart, linear or logarithmic."""

    numbers: tuple[float, ...]
    """The numbers along the axis, including both ends."""
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value as a share of the axis.

        A value at or below the start of a logarithmic axis is at 0.
        """
        low, high = self.numbers[0], self.numbers[-1]
        if not self.log:
            return (value - low) / (high - low)
        return along(value, (low, high)) if value > low else 0.0


def axis_around(values: Sequence[float], *, log: bool = False, near: bool = False) -> Axis:
    """Return an axis that includes these values.

    Args:
        values: The values; a logarithmic axis ignores those that are not positive.
        log: Whether the axis is logarithmic.
        near: Whether the axis may start above 0, if all values are in its upper three quarters.
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
    """Return a number in the format of an axis: 0.5, 20,000, 10⁻⁵, 2·10⁶."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    times = f"{value / 10.0**power:.3g}"
    return ("" if times == "1" else f"{times}·") + "10" + str(power).translate(_RAISED)


def round_steps(values: Iterable[float], most: int = 8) -> tuple[float, ...]:
    """Return round numbers from 0, or from at or below a negative minimum, to at least the maximum of the values.

    There are at most `most` steps between them, or one more if a value is negative. Each step is 1, 2 or 5 times a
    power of ten. Infinite and NaN values are ignored.
    """
    held = [0.0, *(value for value in values if math.isfinite(value))]
    low, high = min(held), max(held)
    rough = (high - low) / most or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step * (1 - 1e-12))
    return tuple(round(place * step, 12) for place in range(first, max(last, first + 1) + 1))


_ROUND = (1, 2, 5)
_NEAR = 0.06  # share of an axis within which two numbers would touch


def log_steps(values: Iterable[float]) -> tuple[float, ...]:
    """Return the numbers of a logarithmic axis that includes these positive values.

    They are the ends, each 1, 2 or 5 times a power of ten, and the powers of ten between them; on a short axis also 2
    and 5 times a power of ten. A number that would touch an end is left out.
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
    """Return the powers of ten around these positive values as the ends of an axis, at least one decade apart."""
    held = list(values)
    low, high = math.floor(math.log10(min(held))), math.ceil(math.log10(max(held)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def powers(ends: Ends) -> list[float]:
    """Return the powers of ten on an axis, including both ends."""
    low, high = (round(math.log10(end)) for end in ends)
    return [10.0**power for power in range(low, high + 1)]


def along(value: float, ends: Ends) -> float:
    """Return the position of a value on a logarithmic axis as a share of its length."""
    low, high = ends
    return math.log(value / low) / math.log(high / low)
