"""Charts: curves and points over plain axes, and stretches of time side by side, as data to be drawn."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Style = Literal["line", "points", "dashed", "steps"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) of one name. line: joined; dashed: joined, and expected rather than measured; steps: level until
    the next."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: Style = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over the same axes, which begin at 0 unless y is logarithmic. marks: values of x to draw a line at, and
    what it says. At least one point."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...] = ()
    log_y: bool = False

    @property
    def across(self) -> tuple[float, ...]:
        """Where the axis of x has its numbers, both ends included."""
        return round_steps(x for one in (*(s.points for s in self.series), self.marks) for x, _ in one)

    @property
    def up(self) -> tuple[float, ...]:
        """Where the axis of y has its numbers: powers of ten where it is logarithmic."""
        values = [y for one in self.series for _, y in one.points]
        if not self.log_y:
            return round_steps(values)
        above = [y for y in values if y > 0] or [1.0]
        low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
        return tuple(10.0**power for power in range(low, max(high, low + 1) + 1))

    def height(self, y: float) -> float:
        """Which share of the way up a value lies; what a logarithmic axis has no place for lies at its foot."""
        low, high = self.up[0], self.up[-1]
        if not self.log_y:
            return (y - low) / (high - low)
        return math.log(y / low) / math.log(high / low) if y > low else 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a row: seconds, and which of the kinds it is."""

    start: float
    end: float
    kind: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of stretches over one axis of time, that what happened beside what can be seen. kinds: their names."""

    title: str
    x: str
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Span, ...]], ...]

    @property
    def across(self) -> tuple[float, ...]:
        """Where the axis has its numbers."""
        return round_steps(span.end for _, row in self.rows for span in row)


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
