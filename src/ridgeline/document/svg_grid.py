"""A grid as SVG: a cell for each share, with its percent, names before the rows and above the columns."""

from collections.abc import Iterator
from textwrap import wrap

from ridgeline.document.grid import Grid
from ridgeline.document.svg_parts import SERIES, WIDTH, words

_EDGE, _TOP, _ROW, _LINE = 16, 44, 28, 15  # pixels
_CHARACTER = 7.4  # pixels: the width of one, at most
_WIDEST = 76  # pixels of a column
_SHOWN = 0.05  # shares from which on their percent is written
_FAINT = 0.55  # shares up to which words on a cell are dark, as on the ground


def grid_height(figure: Grid) -> int:
    """Pixels."""
    return _TOP + _ROW * (len(figure.rows) + 1) + _LINE * len(_notes(figure)) + 16


def grid(figure: Grid) -> Iterator[str]:
    """Names of columns, then row by row."""
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
    for index, text in enumerate(_notes(figure)):
        yield words(_EDGE, foot + _LINE * index, text, colour="#666666")


def _cell(left: float, top: float, width: float, share: float) -> Iterator[str]:
    place = f'x="{left + 1:.1f}" y="{top + 1}" width="{width - 2:.1f}" height="{_ROW - 2}"'
    yield f'<rect {place} fill="{SERIES[1]}" fill-opacity="{max(0.03, share):.3f}"/>'
    if share >= _SHOWN:
        colour = "#222222" if share <= _FAINT else "#ffffff"
        yield words(left + width / 2, top + 18, f"{100 * share:.0f}", anchor="middle", size=11, colour=colour)


def _notes(figure: Grid) -> list[str]:
    return wrap(figure.note, 130)
