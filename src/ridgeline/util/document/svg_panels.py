"""The rendering of panels and heat maps as SVG.

A panel has one rectangle per run of equal cells in a line. A heat map has one cell per share, with its percentage
unless the share is very small, row names in front and column names above.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Band, Panel, Panels, coarser
from ridgeline.util.document.svg_parts import SERIES, WIDTH, words

_LEFT, _TOP, _SIDE, _GAP = 16, 44, 132, 15  # pixels
_ACROSS = 6  # panels in a row
_CELLS = 64  # per side of a panel
_HEAD, _CAPTION, _LINE = 24, 34, 15
_CHARACTERS = 140  # per line of a note
_EDGE, _ROW = 16, 28  # pixels
_CHARACTER = 7.4  # pixels, the greatest width of a character in a grid
_WIDEST = 76  # pixels per column
_SHOWN = 0.05  # the smallest share whose percentage is written
_FAINT = 0.55  # the largest share with dark text on its cell


def panels_height(figure: Panels) -> int:
    """Return the height of a figure of panels in pixels."""
    return _TOP + sum(map(_band_height, figure.bands)) + 10


def panels(figure: Panels) -> Iterator[str]:
    """Yield the SVG elements of a figure of panels: its title, then band by band."""
    yield words(_LEFT, 26, figure.title, size=15, weight="bold")
    top = _TOP
    for band in figure.bands:
        yield from _band(band, top)
        top += _band_height(band)


def _rows(band: Band) -> int:
    return -(-len(band.panels) // _ACROSS)


def _row_height(band: Band) -> int:
    """Return the height of a row of panels with captions, which the tallest panel determines."""
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
    """Yield the cells of a line; neighbours of one colour share a rectangle."""
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
    yield '<g shape-rendering="crispEdges">'  # otherwise the background shows between cells
    for y, line in enumerate(lines):
        yield from _line([_ink(value, panel) for value in line], left, top + y * side, side)
    yield "</g>"
    frame = f'x="{left}" y="{top}" width="{_SIDE}" height="{height:.1f}"'
    yield f'<rect {frame} fill="none" stroke="#b8b8b8" stroke-width="0.6"/>'
    for index, text in enumerate(wrap(panel.caption, 24)[:2]):
        yield words(left, top + height + 12 + 12 * index, text, size=10)


def grid_height(figure: HeatMap) -> int:
    """Return the height of a heat map in pixels."""
    return _TOP + _ROW * (len(figure.rows) + 1) + _LINE * len(_grid_notes(figure)) + 16


def grid(figure: HeatMap) -> Iterator[str]:
    """Yield the SVG elements of a heat map: the title, the column names, the rows from the top, and the note."""
    yield words(_EDGE, 26, figure.title, size=15, weight="bold")
    left = _EDGE + _CHARACTER * max(map(len, figure.rows)) + 10
    width = min(_WIDEST, (WIDTH - left - _EDGE) / len(figure.columns))
    for index, name in enumerate(figure.columns):
        yield words(left + width * (index + 0.5), _TOP + 18, name, anchor="middle")
    for index, (name, line) in enumerate(zip(figure.rows, figure.lines, strict=True)):
        top = _TOP + _ROW * (index + 1)
        yield words(left - 8, top + 18, name, anchor="end")
        for place, share in enumerate(line):
            yield from _cell(left + width * place, top, width, share)
    foot = _TOP + _ROW * (len(figure.rows) + 1) + 20
    for index, text in enumerate(_grid_notes(figure)):
        yield words(_EDGE, foot + _LINE * index, text, colour="#666666")


def _cell(left: float, top: float, width: float, share: float) -> Iterator[str]:
    place = f'x="{left + 1:.1f}" y="{top + 1}" width="{width - 2:.1f}" height="{_ROW - 2}"'
    yield f'<rect {place} fill="{SERIES[1]}" fill-opacity="{max(0.03, share):.3f}"/>'
    if share >= _SHOWN:
        colour = "#222222" if share <= _FAINT else "#ffffff"
        yield words(left + width / 2, top + 18, f"{100 * share:.0f}", anchor="middle", size=11, colour=colour)


def _grid_notes(figure: HeatMap) -> list[str]:
    return wrap(figure.note, 130)
