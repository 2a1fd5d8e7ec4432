"""The picture of a page as an SVG document."""

from collections.abc import Iterator

from ridgeline.lab.page import Bars, Lines, Page
from ridgeline.trace.decades import along, ends_around, powers
from ridgeline.trace.views.shapes import document, line, words
from ridgeline.trace.views.svg import svg as roofline_svg

_WIDTH = 900
_ROW, _CHARACTER = 26, 6.6  # pixels: of a row, and of a character at most
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 90, 64, 770, 380
_GRID = "#e0e0e0"
_COLOURS = ("#d1495b", "#1f6fb4", "#5b8c2a", "#7a4fb5")


def svg(page: Page) -> str:
    """The document."""
    if isinstance(page.picture, Bars):
        return document(_WIDTH, _TOP + _ROW * len(page.picture.bars) + 20, page.title, _bars(page.picture))
    if isinstance(page.picture, Lines):
        return document(_WIDTH, _TOP + _PLOT_HEIGHT + 70, page.title, _lines(page.picture))
    return roofline_svg(page.picture)


def _bars(bars: Bars) -> Iterator[str]:
    yield words(16, 28, f"{bars.title} ({bars.unit})", size=15, weight="bold")
    most = max((bar.value for bar in bars.bars), default=1.0)
    labels = 24 + _CHARACTER * max((len(bar.label) for bar in bars.bars), default=0)
    notes = 24 + _CHARACTER * max((len(bar.text) for bar in bars.bars), default=0)
    for index, bar in enumerate(bars.bars):
        y = _TOP + _ROW * index
        width = max(1.0, (_WIDTH - labels - notes) * bar.value / most)
        colour = "#b8b8b8" if bar.dim else _COLOURS[1]
        yield words(labels - 8, y + 15, bar.label, anchor="end")
        yield f'<rect x="{labels:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 7}" fill="{colour}"/>'
        yield words(labels + width + 6, y + 15, bar.text)


def _lines(lines: Lines) -> Iterator[str]:
    points = [point for curve in lines.curves.values() for point in curve]
    across, up = (ends_around(point[axis] for point in points) for axis in (0, 1))

    def x(value: float) -> float:
        return _LEFT + _PLOT_WIDTH * along(value, across)

    def y(value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - along(value, up))

    bottom = _TOP + _PLOT_HEIGHT
    yield words(16, 28, f"{lines.title} (both axes logarithmic)", size=15, weight="bold")
    for power in powers(across):
        yield line(x(power), _TOP, x(power), bottom, _GRID)
        yield words(x(power), bottom + 18, f"{power:g}", anchor="middle")
    for power in powers(up):
        yield line(_LEFT, y(power), _LEFT + _PLOT_WIDTH, y(power), _GRID)
        yield words(_LEFT - 8, y(power) + 4, f"{power:g}", anchor="end")
    yield words(_LEFT + _PLOT_WIDTH / 2, bottom + 42, lines.x, anchor="middle", size=13)
    yield words(_LEFT, _TOP - 10, lines.y, size=13)
    for colour, (name, curve) in zip(_COLOURS, lines.curves.items(), strict=False):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        end, level = x(curve[-1][0]), y(curve[-1][1])
        if end + 6 + 1.1 * _CHARACTER * len(name) < _LEFT + _PLOT_WIDTH:
            yield words(end + 6, level + 4, name, size=13, colour=colour)
        else:
            yield words(end - 6, level - 8, name, size=13, colour=colour, anchor="end")
