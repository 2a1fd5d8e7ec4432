"""Panels as SVG: a rectangle for each run of equal cells in a line."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from ridgeline.document.panels import Band, Panel, Panels, coarser
from ridgeline.document.svg_parts import SERIES, words

_LEFT, _TOP, _SIDE, _GAP = 16, 44, 132, 15  # pixels
_ACROSS = 6  # panels in a row
_CELLS = 64  # of a panel, each way
_HEAD, _CAPTION, _LINE = 24, 34, 15
_CHARACTERS = 140  # of a line of a note


def panels_height(figure: Panels) -> int:
    """Pixels."""
    return _TOP + sum(map(_band_height, figure.bands)) + 10


def panels(figure: Panels) -> Iterator[str]:
    """The title, and band by band."""
    yield words(_LEFT, 26, figure.title, size=15, weight="bold")
    top = _TOP
    for band in figure.bands:
        yield from _band(band, top)
        top += _band_height(band)


def _rows(band: Band) -> int:
    return -(-len(band.panels) // _ACROSS)


def _row_height(band: Band) -> int:
    """Of the tallest panel, with its caption."""
    tallest = max((len(panel.lines) / len(panel.lines[0]) for panel in band.panels), default=1.0)
    return round(_SIDE * tallest) + _CAPTION


def _notes(band: Band) -> list[str]:
    return wrap(band.note, _CHARACTERS)


def _band_height(band: Band) -> int:
    return _HEAD + _rows(band) * _row_height(band) + _LINE * len(_notes(band)) + 22


def _band(band: Band, top: int) -> Iterator[str]:
    yield words(_LEFT, top + 10, band.title, size=13, weight="bold")
    for index, panel in enumerate(band.panels):
        row, column = divmod(index, _ACROSS)
        yield from _panel(panel, _LEFT + column * (_SIDE + _GAP), top + _HEAD + row * _row_height(band))
    foot = top + _HEAD + _rows(band) * _row_height(band) + 12
    for index, text in enumerate(_notes(band)):
        yield words(_LEFT, foot + _LINE * index, text, colour="#666666")


def _ink(value: float, panel: Panel) -> str:
    """Return the SVG attributes that colour a cell, or "" for a cell that is fully transparent."""
    if panel.light:
        grey = round(255 * value)
        return f'fill="rgb({grey},{grey},{grey})"'
    opacity = f"{value:.3f}"
    return f'fill="{SERIES[1]}" fill-opacity="{opacity}"' if float(opacity) else ""


def _line(inks: Sequence[str], left: float, top: float, side: float) -> Iterator[str]:
    """Draw the cells of a line; neighbours of one colour are one rectangle."""
    x = 0
    for ink, run in groupby(inks):
        count = len(list(run))
        if ink:
            place = f'x="{left + x * side:.2f}" y="{top:.2f}"'
            yield f'<rect {place} width="{count * side + 0.05:.2f}" height="{side + 0.05:.2f}" {ink}/>'
        x += count


def _panel(panel: Panel, left: int, top: int) -> Iterator[str]:
    lines = coarser(panel.lines, _CELLS)
    side = _SIDE / len(lines[0])
    height = side * len(lines)
    yield '<g shape-rendering="crispEdges">'  # else the ground shows between cells
    for y, line in enumerate(lines):
        yield from _line([_ink(value, panel) for value in line], left, top + y * side, side)
    yield "</g>"
    frame = f'x="{left}" y="{top}" width="{_SIDE}" height="{height:.1f}"'
    yield f'<rect {frame} fill="none" stroke="#b8b8b8" stroke-width="0.6"/>'
    for index, text in enumerate(wrap(panel.caption, 24)[:2]):
        yield words(left, top + height + 12 + 12 * index, text, size=10)
