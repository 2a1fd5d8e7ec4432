"""Charts: bars, stacks, series over axes, and stretches of time side by side, as data to be drawn."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from ridgeline.util.document.axes import Axis, axis_around

Style = Literal["line", "points", "dashed", "steps"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A length beside a label; note: what to say of it. dim: whether it is one that does not count."""

    label: str
    value: float
    note: str = ""
    dim: bool = False

    @property
    def text(self) -> str:
        """What stands behind it: `5.18, 21 users`."""
        figure = f"{self.value:.3g}" if abs(self.value) < 999.5 else f"{self.value:,.0f}"
        figure = "under 0.001" if 0 < self.value < 0.001 else figure
        return figure + (f", {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars to compare; unit: what their values are."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) of one name. line: joined; dashed: joined, and expected rather than measured; steps: level until
    the next.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    style: Style = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over the same axes, which begin at 0 unless they are logarithmic; that of x also where its values do, if
    they are all in the upper three quarters of it. marks: values of x to draw a line at, and what it says. At least one
    point.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...] = ()
    log_x: bool = False
    log_y: bool = False

    @property
    def heading(self) -> str:
        """The title, and which axes are logarithmic."""
        names = {(True, True): "both axes", (True, False): "horizontal axis", (False, True): "vertical axis"}
        which = names.get((self.log_x, self.log_y))
        if not which:
            return self.title
        if self.title.endswith(")"):
            return f"{self.title[:-1]}; {which} logarithmic)"
        return f"{self.title} ({which} logarithmic)"

    @property
    def across(self) -> Axis:
        """The axis of x."""
        values = [x for points in (*(one.points for one in self.series), self.marks) for x, _ in points]
        return axis_around(values, log=self.log_x, near=True)

    @property
    def up(self) -> Axis:
        """The axis of y."""
        return axis_around([y for one in self.series for _, y in one.points], log=self.log_y)


@dataclass(frozen=True, slots=True)
class StackedBar:
    """Parts upon each other, one of each kind, beside a label; note: what to say behind them."""

    label: str
    parts: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class StackedBars:
    """Stacks to compare with a limit. kinds: of the parts. limit: where there is no more, and what it is. What is over
    twice the limit is cut there, so that it does not squash the others; its note has to say how long it is.
    """

    title: str
    unit: str
    kinds: tuple[str, ...]
    stacks: tuple[StackedBar, ...]
    limit: tuple[float, str]

    @property
    def end(self) -> float:
        """Where the axis ends."""
        highest = max((sum(stack.parts) for stack in self.stacks), default=0.0)
        return max(1.25 * self.limit[0], min(2 * self.limit[0], highest))

    def shares(self, stack: StackedBar) -> list[tuple[float, float]]:
        """Of each part of a stack where it begins and ends, from 0 to 1 of the axis."""
        edges = [min(1.0, edge / self.end) for edge in accumulate(stack.parts, initial=0.0)]
        return list(pairwise(edges))


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
    def across(self) -> Axis:
        """The axis of time."""
        return axis_around([span.end for _, row in self.rows for span in row])
