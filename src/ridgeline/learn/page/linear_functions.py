"""Linear functions through the values of another function: found by evaluating it, and exact for integer slopes."""

from collections.abc import Callable, Mapping, Sequence

Values = Mapping[str, float]
"""A function's results: numbers, such as FLOPs or bytes, keyed by name; a missing one is 0."""

Line = list[float]
"""The coefficients of a linear function: a constant, then one slope for each argument, without trailing zeros."""

EXACT = 1e-12  # relative rounding error of a slope that is an integer or zero


def straight(values_at: Callable[[Sequence[int]], Values | None], base: Sequence[int]) -> dict[str, Line]:
    """Return a linear function for each named result of another function, found around a base point.

    Each slope comes from one more evaluation, moved along one argument. An argument that cannot change there
    (`values_at` returns None) has slope 0.
    """
    here = values_at(base)
    assert here is not None, f"the figures are not defined at the base point {base}"
    slopes = [_slopes(values_at, base, index, here) for index in range(len(base))]
    names = dict.fromkeys(name for values in (here, *slopes) for name in values)
    return {name: _line(name, here, slopes, base) for name in names}


def _slopes(
    values_at: Callable[[Sequence[int]], Values | None], base: Sequence[int], index: int, here: Values
) -> Values:
    """Return the change of each figure per unit of one argument."""
    start = base[index]
    for moved in (start * 2, start + 1, start - 1):  # far away if possible: it reduces the rounding error of a slope
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
    """Return the nearest integer if a number differs from it only by rounding, else the number."""
    near = round(number)
    return float(near) if abs(number - near) <= EXACT * abs(number) else number


def trimmed(line: Sequence[float]) -> Line:
    """Return the coefficients of a linear function without trailing zeros."""
    kept = list(line)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def at(line: Sequence[float], point: Sequence[float]) -> float:
    """Return the value of a linear function at a point."""
    return line[0] + sum(slope * x for slope, x in zip(line[1:], point, strict=False)) if line else 0.0
