"""The data of charts: bars, stacked bars, series over axes, and timelines."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from ridgeline.util.document.axes import Axis, axis_around

Style = Literal["line", "points", "dashed", "steps"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart."""

    label: str
    value: float
    note: str = ""
    """The text after the bar's value."""
    dim: bool = False
    """Whether the bar is drawn in grey, to set it apart from the others."""

    @property
    def text(self) -> str:
        """The text after the bar, such as `5.18, 21 users`."""
        figure = f"{self.value:.3g}" if abs(self.value) < 999.5 else f"{self.value:,.0f}"
        figure = "under 0.001" if 0 < self.value < 0.001 else figure
        return figure + (f", {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart that compares values of one unit."""

    title: str
    unit: str
    """The unit of the values in the bar chart."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A named series of points (x, y)."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: Style = "line"
    """The drawing style: points, a line, a dashed line (expected values), or steps.

    A step stays level until the next point.
    """


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of series over common axes, with at least one point.

    An axis that is not logarithmic starts at 0, or below if a value is negative; the x axis may also start above 0, if
    all values are in its upper three quarters.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...] = ()
    """The values of x with a vertical line, and the label of each."""
    log_x: bool = False
    log_y: bool = False

    @property
    def heading(self) -> str:
        """The title, which also states which axes are logarithmic."""
        names = {(True, True): "both axes", (True, False): "horizontal axis", (False, True): "vertical axis"}
        which = names.get((self.log_x, self.log_y))
        if not which:
            return self.title
        if self.title.endswith(")"):
            return f"{self.title[:-1]}; {which} logarithmic)"
        return f"{self.title} ({which} logarithmic)"

    @property
    def across(self) -> Axis:
        """The horizontal axis of the chart."""
        values = [x for points in (*(one.points for one in self.series), self.marks) for x, _ in points]
        return axis_around(values, log=self.log_x, near=True)

    @property
    def up(self) -> Axis:
        """The vertical axis of the chart."""
        return axis_around([y for one in self.series for _, y in one.points], log=self.log_y)


@dataclass(frozen=True, slots=True)
class StackedBar:
    """One stacked bar, with one part per kind."""

    label: str
    parts: tuple[float, ...]
    note: str = ""
    """The text after the bar's label."""


@dataclass(frozen=True, slots=True)
class StackedBars:
    """Stacked bars with a common limit.

    A bar longer than twice the limit is cut there, so that it does not squeeze the others; its note has to state its
    length.
    """

    title: str
    unit: str
    kinds: tuple[str, ...]
    """The names of the kinds of parts in each bar."""
    stacks: tuple[StackedBar, ...]
    limit: tuple[float, str]
    """The value of the limit, and its name."""

    @property
    def end(self) -> float:
        """The value at the end of the bars' axis."""
        highest = max((sum(stack.parts) for stack in self.stacks), default=0.0)
        return max(1.25 * self.limit[0], min(2 * self.limit[0], highest))

    def shares(self, stack: StackedBar) -> list[tuple[float, float]]:
        """Return the start and end of each part of a bar as shares of the axis."""
        edges = [min(1.0, edge / self.end) for edge in accumulate(stack.parts, initial=0.0)]
        return list(pairwise(edges))


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in a row of a timeline, in seconds."""

    start: float
    end: float
    kind: int
    """The index of the interval's kind."""


@dataclass(frozen=True, slots=True)
class Spans:
    """A timeline: rows of intervals over one time axis, which shows what happened at the same time."""

    title: str
    x: str
    kinds: tuple[str, ...]
    """The names of the kinds of intervals."""
    rows: tuple[tuple[str, tuple[Span, ...]], ...]

    @property
    def across(self) -> Axis:
        """The time axis of the timeline."""
        return axis_around([span.end for _, row in self.rows for span in row])
