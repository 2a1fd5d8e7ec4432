"""The rendering of a document on a terminal or as plain text."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ridgeline.util.document.character_figures import describe_shades, draw, heat_row, roofline_legend, strip
from ridgeline.util.document.elements import (
    AnyCell,
    Bullets,
    Column,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Heat,
    Paragraph,
    Strip,
    TableRow,
    Tone,
)
from ridgeline.util.document.printable import printable
from ridgeline.util.document.roofline_chart import Roofline

FILE_WIDTH = 100  # columns if standard output is no terminal
_PROSE = 100  # the most columns of prose, however wide the terminal is
_STYLES: dict[Tone, str] = {
    "": "", "strong": "bold", "dim": "dim", "good": "green", "warning": "yellow", "error": "bold red",
    "memory": "cyan", "compute": "magenta", "communication": "yellow",
}  # fmt: skip
_STRIP, _HEAT = 46, 72  # columns of a bar and of a heat row, if there is room
_NARROWEST = 12  # columns of the narrowest column of words


def show(document: Document, file_width: int = FILE_WIDTH) -> None:
    """Print a document on standard output, as wide as the terminal.

    Without a terminal the width is `file_width` columns, or that of the variable COLUMNS if it is less.
    """
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _chart_width(file_width))
    for line in render(document, console.width):
        console.print(line)


def _chart_width(file_width: int) -> int:
    """Return the width of the output in columns: `file_width`, or less if the variable COLUMNS says so."""
    stated = os.environ.get("COLUMNS", "")
    return min(file_width, int(stated)) if stated.isdecimal() and int(stated) else file_width


def render(document: Document, width: int) -> Iterator[Text]:
    """Yield the lines of a document, without trailing spaces.

    An empty line separates blocks, except before the first and after a heading.
    """
    prose = min(width, _PROSE)
    yield from _wrapped(document.title, prose, "bold")
    if document.lead:
        yield from _wrapped(document.lead, prose)
    before: DocumentBlock | None = None
    for block in document.blocks:
        if before is not None and not isinstance(before, Heading):
            yield Text()
        for line in _block(block, width):
            line.rstrip()
            yield line
        before = block


def plain(document: Document, width: int = FILE_WIDTH) -> str:
    """Return a document as plain text."""
    return "".join(f"{line.plain}\n" for line in render(document, width))


def _block(block: DocumentBlock, width: int) -> Iterable[Text]:
    prose = min(width, _PROSE)
    if isinstance(block, Heading):
        return _wrapped(block.text, prose, "bold")
    if isinstance(block, Paragraph):
        return _wrapped(block.text, prose, _STYLES[block.tone])
    if isinstance(block, Bullets):
        return (line for item in block.items for line in _hanging(Text("- "), item, prose, _STYLES[block.tone]))
    if isinstance(block, Facts):
        return _facts(block, prose)
    if isinstance(block, DocumentTable):
        return _table(block, width)
    legend = _table(roofline_legend(block), width) if isinstance(block, Roofline) else ()
    return (*draw(block, width), *legend)


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """Return lines of at most `width` columns, broken between words; a longer word, such as a path, stays whole."""
    whole = Text(_safe(text), style=style)
    longest = max((cell_len(word) for word in whole.plain.split()), default=0)
    lines = whole.wrap(Console(width=width), max(width, longest))
    for line in lines:
        line.rstrip()
    return list(lines)


def _hanging(start: Text, text: str, width: int, style: str = "") -> Iterator[Text]:
    """Yield the lines of a text after `start`, with the further lines indented by its width."""
    for index, line in enumerate(_wrapped(text, max(_NARROWEST, width - start.cell_len), style)):
        yield (Text(" " * start.cell_len) if index else start) + line


def _safe(text: str) -> str:
    """Return printable text without tabs, whose width depends on their position."""
    return printable(text).replace("\t", "\\t")


def _facts(facts: Facts, width: int) -> Iterator[Text]:
    style = _STYLES[facts.tone]
    names = [Text(f"{_safe(name)}  ", style=style or "bold") for name, _ in facts.rows]
    longest = max((name.cell_len for name in names), default=0)
    for name, (_, text) in zip(names, facts.rows, strict=True):
        yield from _hanging(_aligned(name, longest, True), text, width, style)


# -- tables -----------------------------------------------------------------------------------------------------------


def _table(table: DocumentTable, width: int) -> Iterator[Text]:
    """Yield the lines of a table, with groups of columns one below the other if `width` has no room for all.

    The gaps between columns are narrowed first if the table is too wide.
    """
    if _width_of(table, _widths(table, width)) > width:
        table = replace(table, dense=True)
    groups = list(dict.fromkeys(column.group for column in table.columns if column.group))
    if len(groups) < 2 or _width_of(table, _widths(table, width)) <= width:
        yield from _grid(table, width)
    else:
        for index, group in enumerate(groups):
            yield from ([Text()] if index else [])
            yield from _grid(_only(table, group), width)
    prose = min(width, _PROSE)
    yield from (line for note in (*_legend(table), *table.notes) for line in _wrapped(note, prose, "dim"))


def _only(table: DocumentTable, group: str) -> DocumentTable:
    """Return a table with only one of its groups of columns."""
    kept = [index for index, column in enumerate(table.columns) if column.group in ("", group)]
    rows = tuple(
        row if isinstance(row, str) else replace(row, cells=tuple(row.cells[i] for i in kept if i < len(row.cells)))
        for row in table.rows
    )
    return replace(table, columns=tuple(table.columns[index] for index in kept), rows=rows)


def _legend(table: DocumentTable) -> Iterator[str]:
    """Yield the legends of the shades in a table."""
    cells = (cell for row in table.rows if isinstance(row, TableRow) for cell in row.cells)
    for steps in dict.fromkeys(cell.steps for cell in cells if isinstance(cell, Heat)):
        yield describe_shades(steps)


def _grid(table: DocumentTable, width: int) -> Iterator[Text]:
    widths, gaps = _widths(table, width), _gaps(table)
    if any(column.group for column in table.columns):
        yield _group_heads(table.columns, widths, gaps)
    if any(column.head for column in table.columns):
        heads = [
            _aligned(Text(_safe(c.head), style="dim"), w, c.words) for c, w in zip(table.columns, widths, strict=True)
        ]
        yield _joined(heads, gaps)
    for row in table.rows:
        if isinstance(row, str):
            yield Text(_safe(row), style="italic dim")
        else:
            yield from _row(row, table, widths, gaps)


def _row(row: TableRow, table: DocumentTable, widths: Sequence[int], gaps: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of a table row, as many as its longest cell has."""
    cells = [*row.cells, *[""] * (len(table.columns) - len(row.cells))]
    lines = [_cell(cell, width, cut=table.dense) for cell, width in zip(cells, widths, strict=True)]
    for index in range(max(map(len, lines))):
        texts = [
            _aligned(cell[index] if index < len(cell) else Text(), width, column.words)
            for cell, width, column in zip(lines, widths, table.columns, strict=True)
        ]
        line = _joined(texts, gaps)
        line.stylize(_STYLES[row.tone])
        yield line


def _cell(cell: AnyCell, width: int, *, cut: bool) -> list[Text]:
    """Return the lines of a cell; a text that is too long is broken, or with `cut` shortened in the middle."""
    if isinstance(cell, Strip):
        return [Text(strip(cell.start, cell.end, width))]
    if isinstance(cell, Heat):
        return [Text(f"│{heat_row(cell.shares, width - 2, cell.steps)}│")]
    text = Text(
        _safe(cell if isinstance(cell, str) else cell.text), style="" if isinstance(cell, str) else _STYLES[cell.tone]
    )
    if max((part.cell_len for part in text.split()), default=0) <= width:
        return list(text.split()) or [text]
    return [_middle_cut(text, width)] if cut else list(text.wrap(Console(width=width), width))


def _middle_cut(text: Text, width: int) -> Text:
    """Return a text shortened in the middle, such as `post_att…layernorm`."""
    head = (width - 1) // 2
    return Text(f"{text.plain[:head]}…{text.plain[len(text.plain) - (width - 1 - head) :]}", style=text.style)


def _natural(cell: AnyCell) -> int:
    """Return the preferred width of a table cell in columns."""
    if isinstance(cell, Strip):
        return _STRIP
    if isinstance(cell, Heat):
        return min(len(cell.shares), _HEAT) + 2
    text = cell if isinstance(cell, str) else cell.text
    return max((cell_len(_safe(line)) for line in text.split("\n")), default=0)


def _widths(table: DocumentTable, width: int) -> list[int]:
    """Return the width of each column: that of its contents, with the widest columns of words narrowed if necessary."""
    widths = [_natural(column.head) for column in table.columns]
    for row in table.rows:
        for index, cell in enumerate(row.cells if isinstance(row, TableRow) else ()):
            widths[index] = max(widths[index], _natural(cell))
    for group, run in _runs(table.columns):
        if group:  # make it at least as wide as its title
            has = sum(widths[i] for i in run) + sum(_gaps(table)[i] for i in run[1:])
            widths[max(run, key=lambda i: (table.columns[i].words, widths[i]))] += max(0, _natural(group) + 2 - has)
    while (over := _width_of(table, widths) - width) > 0:
        words = [i for i, c in enumerate(table.columns) if c.words and not c.whole and widths[i] > _NARROWEST]
        if not words:
            break
        widest = max(words, key=lambda i: widths[i])
        widths[widest] = max(_NARROWEST, widths[widest] - over)
    return widths


def _gaps(table: DocumentTable) -> list[int]:
    """Return the number of spaces before each column."""
    near = 1 if table.dense else 2
    groups = [column.group for column in table.columns]
    return [0, *(2 if before != after else near for before, after in pairwise(groups))]


def _runs(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """Return the runs of neighbouring columns with the same group: the group and the column indices."""
    return [(group, list(run)) for group, run in groupby(range(len(columns)), key=lambda i: columns[i].group)]


def _width_of(table: DocumentTable, widths: Sequence[int]) -> int:
    return sum(widths) + sum(_gaps(table))


def _group_heads(columns: Sequence[Column], widths: Sequence[int], gaps: Sequence[int]) -> Text:
    """Return the line with the titles of groups above their columns."""
    text = Text()
    for group, run in _runs(columns):
        wide = sum(widths[i] for i in run) + sum(gaps[i] for i in run[1:])
        text.append(" " * gaps[run[0]])
        text.append(f" {_safe(group)} ".center(wide, "─") if group else " " * wide, "bold")
    return text


def _joined(texts: Sequence[Text], gaps: Sequence[int]) -> Text:
    line = Text()
    for text, gap in zip(texts, gaps, strict=True):
        line.append(" " * gap)
        line.append_text(text)
    return line


def _aligned(text: Text, width: int, words: bool) -> Text:
    room = " " * max(0, width - text.cell_len)
    return text + Text(room) if words else Text(room) + text
