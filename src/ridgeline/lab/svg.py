"""The picture of a page as an SVG document."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from ridgeline.lab.page import Bars, Lines, Page
from ridgeline.trace.views.svg import svg as roofline_svg

_WIDTH = 900
_ROW, _LABELS, _NOTES = 26, 320, 160
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 90, 50, 600, 380
_COLOURS = ("#d1495b", "#1f6fb4", "#5b8c2a", "#7a4fb5")


def svg(page: Page) -> str:
    """The document."""
    if isinstance(page.picture, Bars):
        return _document(page, _TOP + _ROW * len(page.picture.bars) + 20, _bars(page.picture))
    if isinstance(page.picture, Lines):
        return _document(page, _TOP + _PLOT_HEIGHT + 70, _lines(page.picture))
    return roofline_svg(page.picture)


def _document(page: Page, height: int, parts: Iterator[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(page.title)}">'
    )
    ground = f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def _words(x: float, y: float, text: str, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'font-family="Helvetica, Arial, sans-serif">{escape(text)}</text>'
    )


def _bars(bars: Bars) -> Iterator[str]:
    yield _words(16, 28, f"{bars.title} ({bars.unit})", size=15, weight="bold")
    most = max((bar.value for bar in bars.bars), default=1.0)
    for index, bar in enumerate(bars.bars):
        y = _TOP + _ROW * index
        width = max(1.0, (_WIDTH - _LABELS - _NOTES) * bar.value / most)
        colour = "#b8b8b8" if bar.dim else _COLOURS[1]
        yield _words(_LABELS - 8, y + 15, bar.label, anchor="end")
        yield f'<rect x="{_LABELS}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 7}" fill="{colour}"/>'
        yield _words(_LABELS + width + 6, y + 15, f"{bar.value:.3g}  {bar.note}")


def _lines(lines: Lines) -> Iterator[str]:
    points = [point for curve in lines.curves.values() for point in curve]
    (left, right), (low, high) = (_decades([point[axis] for point in points]) for axis in (0, 1))

    def x(value: float) -> float:
        return _LEFT + _PLOT_WIDTH * (math.log10(value) - left) / (right - left)

    def y(value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - (math.log10(value) - low) / (high - low))

    bottom = _TOP + _PLOT_HEIGHT
    yield _words(16, 28, lines.title, size=15, weight="bold")
    for power in range(left, right + 1):
        yield _line(x(10.0**power), _TOP, x(10.0**power), bottom)
        yield _words(x(10.0**power), bottom + 18, f"{10.0**power:g}", anchor="middle")
    for power in range(low, high + 1):
        yield _line(_LEFT, y(10.0**power), _LEFT + _PLOT_WIDTH, y(10.0**power))
        yield _words(_LEFT - 8, y(10.0**power) + 4, f"{10.0**power:g}", anchor="end")
    yield _words(_LEFT + _PLOT_WIDTH / 2, bottom + 42, lines.x, anchor="middle", size=13)
    yield _words(16, _TOP - 8, lines.y, size=13)
    for colour, (name, curve) in zip(_COLOURS, lines.curves.items(), strict=False):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield _words(x(curve[-1][0]) + 6, y(curve[-1][1]) + 4, name, size=13)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e0e0e0"/>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
