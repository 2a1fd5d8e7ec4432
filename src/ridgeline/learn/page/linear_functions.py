"""Straight lines through what a function gives: found by asking it, and exact where its slopes are whole numbers."""

from collections.abc import Callable, Mapping, Sequence

Values = Mapping[str, float]
"""Figures by name; one that is not there is 0."""

Line = list[float]
"""A constant, then a slope for each argument; zeros at the end are left out."""

EXACT = 1e-12  # of a figure: what rounding leaves of a slope that is whole, and of one that is nothing


def straight(values_at: Callable[[Sequence[int]], Values | None], base: Sequence[int]) -> dict[str, Line]:
    """The lines that figures are on around a base point, by name: one more step in one direction each. An argument
    that cannot be changed there (`values_at` gives None) has no slope: it is a constant of that place.
    """
    here = values_at(base)
    assert here is not None, f"{base} lies outside the place that it is the base of"
    slopes = [_slopes(values_at, base, index, here) for index in range(len(base))]
    names = dict.fromkeys(name for values in (here, *slopes) for name in values)
    return {name: _line(name, here, slopes, base) for name in names}


def _slopes(
    values_at: Callable[[Sequence[int]], Values | None], base: Sequence[int], index: int, here: Values
) -> Values:
    """How figures change with one argument."""
    start = base[index]
    for moved in (start * 2, start + 1, start - 1):  # far, where that can be: what is not whole is rounded the less
        there = values_at([*base[:index], moved, *base[index + 1 :]])
        if there is not None:
            names = {**here, **there}
            return {name: (there.get(name, 0.0) - here.get(name, 0.0)) / (moved - start) for name in names}
    return {}


def _line(name: str, here: Values, slopes: Sequence[Values], base: Sequence[int]) -> Line:
    own = [whole(values.get(name, 0.0)) for values in slopes]
    value = here.get(name, 0.0)
    constant = value - sum(slope * start for slope, start in zip(own, base, strict=True))
    return trimmed([0.0 if abs(constant) <= EXACT * abs(value) else whole(constant), *own])


def whole(number: float) -> float:
    """The whole number that it is but for rounding; itself where it is none."""
    near = round(number)
    return float(near) if abs(number - near) <= EXACT * abs(number) else number


def trimmed(line: Sequence[float]) -> Line:
    """Without the zeros at its end."""
    kept = list(line)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def at(line: Sequence[float], point: Sequence[float]) -> float:
    """What a line gives at a point."""
    return line[0] + sum(slope * x for slope, x in zip(line[1:], point, strict=False)) if line else 0.0
