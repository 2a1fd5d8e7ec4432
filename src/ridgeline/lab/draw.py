"""A page on a terminal: words, tables, and pictures of characters."""

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ridgeline.lab.page import Bars, Lines, Page, Table
from ridgeline.trace.decades import along, ends_around
from ridgeline.trace.views.chart import chart

_MARKS = "ox+*#"
_WIDTH, _HEIGHT = 64, 16
_SHORTEST_BAR, _LONGEST_BAR = 8, 36
_MARGIN = 10


def show(page: Page, console: Console) -> None:
    """Print a page."""
    console.print(Text(page.title, style="bold"))
    console.print(Text(page.asks, style="italic"))
    for table in page.tables:
        console.print(Padding(_table(table), (1, 0, 0, 0)))
    console.print(Padding(_picture(page, console.width), (1, 0, 1, 0)))
    for sentence in page.finds:
        console.print(Text(f"- {sentence}"))
    console.print(Text(f"the experiment in code: {page.code}", style="dim"), soft_wrap=True)


def _table(table: Table) -> RichTable:
    drawn = RichTable(*table.head, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(drawn.columns):
        column.justify = "left" if index in table.words else "right"
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _picture(page: Page, width: int) -> RenderableType:
    if isinstance(page.picture, Bars):
        return Group(*_bars(page.picture, width))
    if isinstance(page.picture, Lines):
        return Group(*_lines(page.picture))
    return Group(*chart(page.picture, width=min(width, 100)))


def _bars(bars: Bars, columns: int) -> list[Text]:
    most = max((bar.value for bar in bars.bars), default=1.0)
    width = max((len(bar.label) for bar in bars.bars), default=0)
    room = columns - width - 2 - max((len(bar.text) for bar in bars.bars), default=0)
    longest = max(_SHORTEST_BAR, min(_LONGEST_BAR, room))
    found = [Text(f"{bars.title} ({bars.unit})", style="bold")]
    for bar in bars.bars:
        line = Text(f"{bar.label:>{width}} ")
        line.append("█" * max(1, round(longest * bar.value / most)), "dim" if bar.dim else "cyan")
        line.append(f" {bar.text}")
        found.append(line)
    return found


def _lines(lines: Lines) -> list[Text]:
    """Curves on logarithmic axes, a letter each."""
    points = [point for curve in lines.curves.values() for point in curve]
    across, up = (ends_around(point[axis] for point in points) for axis in (0, 1))
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for mark, curve in zip(_MARKS, lines.curves.values(), strict=False):
        for x, y in curve:
            row, column = round(along(y, up) * (_HEIGHT - 1)), round(along(x, across) * (_WIDTH - 1))
            grid[_HEIGHT - 1 - row][column] = mark
    labels = {0: f"{up[1]:g}", _HEIGHT - 1: f"{up[0]:g}"}
    found = [Text(f"{lines.title} (both axes logarithmic)", style="bold")]
    found += [Text(f"{labels.get(i, ''):>{_MARGIN}}│{''.join(row).rstrip()}") for i, row in enumerate(grid)]
    found.append(Text(" " * _MARGIN + "└" + "─" * _WIDTH))
    left, right = (f"{end:g}" for end in across)
    found.append(Text(f"{'':{_MARGIN}} {left}{right:>{_WIDTH - len(left)}}"))
    names = "   ".join(f"{mark} {name}" for mark, name in zip(_MARKS, lines.curves, strict=False))
    return [*found, Text(f"{'':{_MARGIN}} {names}; {lines.y} over {lines.x}", style="dim")]
