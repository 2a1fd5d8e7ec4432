"""The rendering of bar charts, stacked bars, line charts and timelines as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from ridgeline.util.document.axes import Axis, tick
from ridgeline.util.document.charts import Bars, Chart, Series, Span, Spans, StackedBars
from ridgeline.util.document.svg_parts import SERIES, WIDTH, line, words

_LEFT, _RIGHT, _TOP = 84, 28, 52
_PLOT_HEIGHT, _FOOT, _LEGEND_ROW = 300, 58, 18
_BAR_ROW, _SPAN_ROW = 26, 13  # pixels
_STACK_ROW, _MARGIN = 54, 24
_CHARACTER = 6.7  # pixels, the greatest width of a character
_GRID, _DIM = "#e0e0e0", "#666666"


# -- bars -------------------------------------------------------------------------------------------------------------


def bars_height(bars: Bars) -> int:
    """Return the height of a bar chart in pixels."""
    return _TOP + _BAR_ROW * len(bars.bars) + 20


def bars(bars: Bars) -> Iterator[str]:
    """Yield the SVG elements of a bar chart: one bar per row, with its label in front and its value behind."""
    yield words(16, 28, f"{bars.title} ({bars.unit})", size=15, weight="bold")
    most = max((bar.value for bar in bars.bars), default=1.0)
    labels = 24 + _CHARACTER * max((len(bar.label) for bar in bars.bars), default=0)
    notes = 24 + _CHARACTER * max((len(bar.text) for bar in bars.bars), default=0)
    for index, bar in enumerate(bars.bars):
        y = _TOP + _BAR_ROW * index
        width = max(1.0, (WIDTH - labels - notes) * bar.value / most)
        colour = "#b8b8b8" if bar.dim else SERIES[1]
        yield words(labels - 8, y + 15, bar.label, anchor="end")
        yield f'<rect x="{labels:.1f}" y="{y + 2}" width="{width:.1f}" height="{_BAR_ROW - 7}" fill="{colour}"/>'
        yield words(labels + width + 6, y + 15, bar.text)


# -- stacks -----------------------------------------------------------------------------------------------------------


def stacks_height(stacks: StackedBars) -> int:
    """Return the height of a stacked bar chart in pixels."""
    rows = len(_legend_rows(list(stacks.kinds)))
    return _TOP + _STACK_ROW * len(stacks.stacks) + _FOOT + _LEGEND_ROW * rows


def stacks(stacks: StackedBars) -> Iterator[str]:
    """Yield the SVG elements of stacked bars, one per row under its label and note, with a line at the limit."""
    bottom = _TOP + _STACK_ROW * len(stacks.stacks)
    limit, named = stacks.limit
    at = _MARGIN + (WIDTH - 2 * _MARGIN) * limit / stacks.end
    yield words(_MARGIN, 26, f"{stacks.title} ({stacks.unit})", size=15, weight="bold")
    for index, stack in enumerate(stacks.stacks):
        y = _TOP + _STACK_ROW * index
        yield words(_MARGIN, y + 14, f"{stack.label}: {stack.note}" if stack.note else stack.label)
        if sum(stack.parts) > stacks.end:
            yield words(WIDTH - _MARGIN, y + 14, "continues", anchor="end", colour=_DIM)
        for kind, (start, end) in enumerate(stacks.shares(stack)):
            left, right = (_MARGIN + (WIDTH - 2 * _MARGIN) * share for share in (start, end))
            label = escape(f"{stacks.kinds[kind]}: {stack.parts[kind]:.3g} {stacks.unit}")
            yield (
                f'<rect x="{left:.1f}" y="{y + 20}" width="{right - left:.1f}" height="{_STACK_ROW - 28}" '
                f'fill="{_colour(kind)}"><title>{label}</title></rect>'
            )
        yield line(at, y + 17, at, y + _STACK_ROW - 5, "#222222", 2)
    yield words(at, bottom + 14, f"{named}: {limit:.3g} {stacks.unit}", anchor="middle")
    yield from _legend([(kind, "points") for kind in stacks.kinds], bottom + _FOOT - 16)


# -- charts -----------------------------------------------------------------------------------------------------------


def chart_height(chart: Chart) -> int:
    """Return the height of a line chart in pixels."""
    return _TOP + _PLOT_HEIGHT + _FOOT + _LEGEND_ROW * len(_legend_rows([series.name for series in chart.series]))


def chart(chart: Chart) -> Iterator[str]:
    """Yield the SVG elements of a line chart: title, axes, marks, series, and the legend below."""
    across, up, bottom = chart.across, chart.up, _TOP + _PLOT_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return _x(x, across), bottom - _PLOT_HEIGHT * up.share(y)

    yield words(16, 26, chart.heading, size=15, weight="bold")
    yield words(_LEFT, _TOP - 8, chart.y, size=12, colour=_DIM)
    for y in up.numbers:
        level = bottom - _PLOT_HEIGHT * up.share(y)
        yield line(_LEFT, level, WIDTH - _RIGHT, level, _GRID)
        yield words(_LEFT - 8, level + 4, tick(y), anchor="end")
    yield from _horizontal_axis(across, chart.x, bottom)
    for x, label in chart.marks:
        at = _x(x, across)
        yield line(at, _TOP, at, bottom, _DIM, 1.2, "5 4")
        left = at + 6 + _CHARACTER * len(label) > WIDTH - _RIGHT
        yield words(at - 6 if left else at + 6, _TOP + 14, label, anchor="end" if left else "start", colour=_DIM)
    for index, series in enumerate(chart.series):
        yield from _series(series, [place(x, y) for x, y in series.points], _colour(index))
    names = [(series.name, series.style) for series in chart.series]
    yield from _legend(names, bottom + _FOOT)


def _series(series: Series, points: list[tuple[float, float]], colour: str) -> Iterator[str]:
    if series.style == "points":
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.8"/>'
        return
    if series.style == "steps":
        points = [*(corner for (x, y), (after, _) in pairwise(points) for corner in ((x, y), (after, y))), *points[-1:]]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="6 4"' if series.style == "dashed" else ""
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    if series.style == "line" and len(points) <= 40:  # few enough for single measurements to matter
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


# -- spans ------------------------------------------------------------------------------------------------------------


def spans_height(spans: Spans) -> int:
    """Return the height of a timeline in pixels."""
    return _TOP + _SPAN_ROW * len(spans.rows) + _FOOT + _LEGEND_ROW * len(_legend_rows(list(spans.kinds)))


def spans(spans: Spans) -> Iterator[str]:
    """Yield the SVG elements of a timeline, row by row from the top."""
    across, bottom = spans.across, _TOP + _SPAN_ROW * len(spans.rows)
    yield words(16, 26, spans.title, size=15, weight="bold")
    yield from _horizontal_axis(across, spans.x, bottom)
    for index, (label, row) in enumerate(spans.rows):
        y = _TOP + _SPAN_ROW * index
        yield words(_LEFT - 8, y + _SPAN_ROW - 3, label, anchor="end", size=10, colour=_DIM)
        yield from (_span(span, y, across, spans.kinds) for span in row)
    yield from _legend([(kind, "points") for kind in spans.kinds], bottom + _FOOT)


def _span(span: Span, y: float, across: Axis, kinds: tuple[str, ...]) -> str:
    """Return the bar of a time span, which is always wide enough to be visible and has a tooltip."""
    left, right = _x(span.start, across), _x(span.end, across)
    label = escape(f"{kinds[span.kind]}: {span.end - span.start:.3g} s")
    return (
        f'<rect x="{left:.1f}" y="{y + 1}" width="{max(0.8, right - left):.1f}" height="{_SPAN_ROW - 3}" '
        f'fill="{_colour(span.kind)}"><title>{label}</title></rect>'
    )


# -- shared parts ----------------------------------------------------------------------------------------------------


def _horizontal_axis(across: Axis, name: str, bottom: float) -> Iterator[str]:
    for x in across.numbers:
        yield line(_x(x, across), _TOP, _x(x, across), bottom, _GRID)
        yield words(_x(x, across), bottom + 16, tick(x), anchor="middle")
    yield words((_LEFT + WIDTH - _RIGHT) / 2, bottom + 34, name, anchor="middle", size=12, colour=_DIM)


def _x(value: float, across: Axis) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * across.share(value)


def _colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def _legend_rows(names: list[str]) -> list[list[int]]:
    """Return the indices of the names in each row of a legend, so that no name is cut off."""
    rows: list[list[int]] = [[]]
    used = 0.0
    for index, name in enumerate(names):
        width = 44 + _CHARACTER * len(name)
        if rows[-1] and used + width > WIDTH - _LEFT - _RIGHT:
            rows.append([])
            used = 0.0
        rows[-1].append(index)
        used += width
    return rows


def _legend(names: Sequence[tuple[str, str]], y: float) -> Iterator[str]:
    for row in _legend_rows([name for name, _ in names]):
        x = float(_LEFT)
        for index in row:
            name, style = names[index]
            if style == "points":
                yield f'<circle cx="{x + 9:.1f}" cy="{y - 4}" r="4" fill="{_colour(index)}"/>'
            else:
                yield line(x, y - 4, x + 18, y - 4, _colour(index), 2, "6 4" if style == "dashed" else "")
            yield words(x + 24, y, name)
            x += 44 + _CHARACTER * len(name)
        y += _LEGEND_ROW
