"""The rendering of a document on a terminal or as plain text."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ridgeline.util.document.character_figures import describe_shades, draw, heat_row, roofline_legend, strip
from ridgeline.util.document.elements import (
    AnyCell,
    Bullets,
    Cell,
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
        name.pad_right(longest - name.cell_len)
        yield from _hanging(name, text, width, style)


# -- tables -----------------------------------------------------------------------------------------------------------


def _table(table: DocumentTable, width: int) -> Iterator[Text]:
    """Yield the lines of a table, with groups of columns one below the other if `width` has no room for all.

    The gaps between columns are narrowed first if the table is too wide.
    """
    if _least_width(table) > width:
        table = replace(table, dense=True)
    groups = list(dict.fromkeys(column.group for column in table.columns if column.group))
    if len(groups) < 2 or _least_width(table) <= width:
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
    """Yield the lines of a table that rich lays out, with the titles of groups and the headings across its columns."""
    widths: list[int] = []
    heads = any(column.head or column.group for column in table.columns)
    grid = Table(box=None, padding=(0, _gap(table), 0, 0), header_style="dim", show_header=heads)
    for column, (least, most) in zip(table.columns, _width_limits(table, width), strict=True):
        head, rigid = _Fitted(column.head, widths=widths), least == most
        grid.add_column(head, no_wrap=rigid, overflow="fold", min_width=least, max_width=most)
        grid.columns[-1].justify = "left" if column.words else "right"
    for row in table.rows:
        if isinstance(row, str):
            grid.add_row(style=Style(meta={"heading": row}))
        else:
            grid.add_row(*(_Fitted(cell, table.dense) for cell in row.cells), style=_STYLES[row.tone])
    console = Console()
    options = console.options.update_width(max(width, _least_width(table)) + _gap(table))  # the last column has one too
    lines = console.render_lines(grid, options, pad=False)
    if any(column.group for column in table.columns):
        yield _group_heads(table, widths)
    for line in lines:
        heading = line[0].style.meta.get("heading") if line[0].style else None
        texts = ((text, style or "") for text, style, _ in line)
        yield Text.assemble(*texts) if heading is None else Text(_safe(heading), style="italic dim")


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A cell for rich, as wide as its column."""

    cell: AnyCell
    cut: bool = False
    """Whether a text that is too long is shortened in the middle, rather than broken."""
    widths: list[int] = field(default_factory=list)
    """A list to which the width of the column is appended."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        self.widths.append(width)
        if isinstance(self.cell, Strip):
            yield Text(strip(self.cell.start, self.cell.end, width))
        elif isinstance(self.cell, Heat):
            yield Text(f"│{heat_row(self.cell.shares, width - 2, self.cell.steps)}│")
        else:
            cell = Cell(self.cell) if isinstance(self.cell, str) else self.cell
            text = Text(_safe(cell.text), style=_STYLES[cell.tone])
            yield _middle_cut(text, width) if self.cut and _natural(cell) > width else text


def _middle_cut(text: Text, width: int) -> Text:
    """Return a text shortened in the middle, such as `post_att…layernorm`."""
    half, rest = (width - 1) // 2, width // 2
    return Text(f"{set_cell_size(text.plain, half)}…{set_cell_size(text.plain[::-1], rest)[::-1]}", style=text.style)


def _natural(cell: AnyCell) -> int:
    """Return the preferred width of a table cell in columns."""
    if isinstance(cell, Strip):
        return _STRIP
    if isinstance(cell, Heat):
        return min(len(cell.shares), _HEAT) + 2
    text = cell if isinstance(cell, str) else cell.text
    return max(cell_len(_safe(line)) for line in text.split("\n"))


def _width_limits(table: DocumentTable, width: int = 0) -> list[tuple[int, int]]:
    """Return the least and the greatest width of each column; the latter is that of its contents.

    A word is only broken if the table does not fit into `width` otherwise.
    """
    rows = [row.cells for row in table.rows if isinstance(row, TableRow)]
    cells = [[column.head, *(row[i] for row in rows if i < len(row))] for i, column in enumerate(table.columns)]
    widths = [max(1, *map(_natural, column)) for column in cells]
    for group, run in _runs(table.columns):
        if group:  # make it at least as wide as its title
            has = sum(widths[i] for i in run) + _gap(table) * (len(run) - 1)
            widths[max(run, key=lambda i: (table.columns[i].words, widths[i]))] += max(0, _natural(group) + 2 - has)
    words = [max(map(_longest_word, column)) for column in cells]
    for longest in (words, [0] * len(words)):
        least = [
            min(wide, max(_NARROWEST, word)) if column.words and not column.whole else wide
            for column, wide, word in zip(table.columns, widths, longest, strict=True)
        ]
        if sum(least) + _gap(table) * (len(least) - 1) <= width:
            break
    return list(zip(least, widths, strict=True))


def _longest_word(cell: AnyCell) -> int:
    """Return the width of the longest word of a cell."""
    text = cell.text if isinstance(cell, Cell) else cell if isinstance(cell, str) else ""
    return max((cell_len(_safe(word)) for word in text.split()), default=0)


def _least_width(table: DocumentTable) -> int:
    """Return the number of columns of characters that a table needs."""
    return sum(least for least, _ in _width_limits(table)) + _gap(table) * (len(table.columns) - 1)


def _gap(table: DocumentTable) -> int:
    """Return the number of spaces between two columns."""
    return 1 if table.dense else 2


def _runs(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """Return the runs of neighbouring columns with the same group: the group and the column indices."""
    return [(group, list(run)) for group, run in groupby(range(len(columns)), key=lambda i: columns[i].group)]


def _group_heads(table: DocumentTable, widths: Sequence[int]) -> Text:
    """Return the line with the titles of groups above their columns."""
    titles = []
    for group, run in _runs(table.columns):
        wide = sum(widths[i] for i in run) + _gap(table) * (len(run) - 1)
        titles.append(Text(f" {_safe(group)} ".center(wide, "─") if group else " " * wide, "bold"))
    return Text(" " * _gap(table)).join(titles)
