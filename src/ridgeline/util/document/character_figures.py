"""The drawing of figures with characters, for terminals that may lack colour."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap

from rich.text import Text

from ridgeline.util.document import humanize
from ridgeline.util.document.axes import along, powers, tick
from ridgeline.util.document.charts import Bars, Chart, Spans, StackedBars
from ridgeline.util.document.elements import EVEN, Column, DocumentTable, Figure, TableRow
from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Band, Panels, coarser
from ridgeline.util.document.roofline_chart import Point, Roofline

# -- in a cell --------------------------------------------------------------------------------------------------------

SHADES = " ·░▒▓█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def shade(share: float, steps: Sequence[float]) -> str:
    """Return a character whose darkness shows a share from 0 to 1; only shares that round to 0.00 are blank."""
    return SHADES[0] if share < 0.005 else SHADES[1 + sum(share >= step for step in steps)]


def heat_row(shares: Sequence[float], columns: int, steps: Sequence[float]) -> str:
    """Return shares from 0 to 1 as at most `columns` shade characters.

    If there are more shares than columns, each character is the darkest of its run.
    """
    if len(shares) <= columns:
        return "".join(shade(share, steps) for share in shares)
    edges = [round(index * len(shares) / columns) for index in range(columns + 1)]
    return "".join(shade(max(shares[low:high]), steps) for low, high in pairwise(edges))


def describe_shades(steps: Sequence[float]) -> str:
    """Return the legend of the shades, such as `· under 2%  ░ to 5%  ▒ to 15%  ▓ to 40%  █ more`."""
    named = [f"{mark} to {step:.0%}" for mark, step in zip(SHADES[2:], steps[1:], strict=False)]
    return "  ".join((f"{SHADES[1]} under {steps[0]:.0%}", *named, f"{SHADES[-1]} more"))


def strip(start: float, end: float, columns: int) -> str:
    """Return a bar from one share of `columns` to another, which is always visible however short it is."""
    first, last = int(start * columns), end * columns
    whole = int(last) - first
    rest = _EIGHTHS[round((last - int(last)) * 8)] if last < columns else ""
    filled = "█" * whole + (rest if rest != " " else "")
    return " " * min(first, columns - 1) + (filled or "▏")


# -- figures ----------------------------------------------------------------------------------------------------------

_WIDEST = 112


def draw(figure: Figure, width: int) -> Iterator[Text]:
    """Yield the lines of a figure in at most `width` columns; bars and curves may need about 80."""
    if isinstance(figure, Bars):
        yield from _bars(figure, width)
    elif isinstance(figure, Chart):
        yield from _chart(figure)
    elif isinstance(figure, StackedBars):
        yield from _stacks(figure, width)
    elif isinstance(figure, Spans):
        yield from _spans(figure, min(width, _WIDEST))
    elif isinstance(figure, Panels):
        yield from _panels(figure, min(width, _WIDEST))
    elif isinstance(figure, HeatMap):
        yield from _grid(figure, width)
    else:
        yield from _roofline(figure, min(width, _WIDEST))


_CELLS, _GAP = 16, 3  # cells per side of a panel; columns between two panels


def _panels(figure: Panels, width: int) -> Iterator[Text]:
    """Yield the lines of panels, with two characters per cell.

    Dark means a large number in a heat map, and a small one in a photograph.
    """
    yield Text(figure.title, style="bold")
    for band in figure.bands:
        yield Text(band.title, style="bold")
        across = max(1, (width + _GAP) // (2 * _CELLS + _GAP))
        for begin in range(0, len(band.panels), across):
            yield from _beside(Band(band.title, band.panels[begin : begin + across], ""))
        yield from (Text(line, style="dim") for line in wrap(band.note, width))


def _beside(band: Band) -> Iterator[Text]:
    """Yield the lines of one row of panels with their captions below."""
    drawn = []
    for panel in band.panels:
        lines = coarser(panel.lines, _CELLS)
        dark = [[1 - share if panel.light else share for share in line] for line in lines]
        rows = ["".join(2 * shade(share, EVEN) for share in line) for line in dark]
        drawn.append([*rows, *wrap(panel.caption, 2 * _CELLS)])
    for index in range(max(map(len, drawn))):
        cells = [column[index] if index < len(column) else "" for column in drawn]
        yield Text((" " * _GAP).join(f"{cell:{2 * _CELLS}}" for cell in cells).rstrip())


def _grid(figure: HeatMap, width: int) -> Iterator[Text]:
    """Yield the lines of a heat map as percentages; column names are cut off if there is no room."""
    names = max(map(len, figure.rows))
    room = max(4, (width - names) // len(figure.columns))
    widths = [min(room, max(4, len(name) + 1)) for name in figure.columns]
    yield Text(figure.title, style="bold")
    heads = (f"{name[: wide - 1]:>{wide}}" for name, wide in zip(figure.columns, widths, strict=True))
    yield Text(" " * names + "".join(heads), style="dim")
    for name, line in zip(figure.rows, figure.lines, strict=True):
        shares = (f"{100 * share:>{wide}.0f}" for share, wide in zip(line, widths, strict=True))
        yield Text(f"{name:>{names}}{''.join(shares)}")
    yield from (Text(text, style="dim") for text in wrap(f"Percent. {figure.note}", width))


_SHORTEST_BAR, _LONGEST_BAR = 8, 36


def _bars(bars: Bars, columns: int) -> Iterator[Text]:
    most = max((bar.value for bar in bars.bars), default=1.0)
    width = max((len(bar.label) for bar in bars.bars), default=0)
    room = columns - width - 2 - max((len(bar.text) for bar in bars.bars), default=0)
    longest = max(_SHORTEST_BAR, min(_LONGEST_BAR, room))
    yield Text(f"{bars.title} ({bars.unit})", style="bold")
    for bar in bars.bars:
        line = Text(f"{bar.label:>{width}} ")
        line.append("█" * max(1, round(longest * bar.value / most)), "dim" if bar.dim else "cyan")
        line.append(f" {bar.text}")
        yield line


_MARKS = "ox+*#"
_PLOT_WIDTH, _PLOT_HEIGHT, _LABEL = 64, 16, 10


def _chart(chart: Chart) -> Iterator[Text]:
    """Yield the lines of a chart, with a character per series and the marks as text."""
    across, up = chart.across, chart.up
    grid = [[" "] * _PLOT_WIDTH for _ in range(_PLOT_HEIGHT)]
    for mark, series in zip(_MARKS, chart.series, strict=False):
        for x, y in series.points:
            row = _PLOT_HEIGHT - 1 - round(up.share(y) * (_PLOT_HEIGHT - 1))
            grid[row][round(across.share(x) * (_PLOT_WIDTH - 1))] = mark
    labels = {0: tick(up.numbers[-1]), _PLOT_HEIGHT - 1: tick(up.numbers[0])}
    yield Text(chart.heading, style="bold")
    yield from (Text(f"{labels.get(i, ''):>{_LABEL}}│{''.join(row).rstrip()}") for i, row in enumerate(grid))
    yield Text(" " * _LABEL + "└" + "─" * _PLOT_WIDTH)
    left, right = tick(across.numbers[0]), tick(across.numbers[-1])
    yield Text(f"{'':{_LABEL}} {left}{right:>{_PLOT_WIDTH - len(left)}}")
    names = "   ".join(f"{mark} {series.name}" for mark, series in zip(_MARKS, chart.series, strict=False))
    yield Text(f"{'':{_LABEL}} {names}; {chart.y} over {chart.x}", style="dim")
    yield from (Text(f"{'':{_LABEL}} at {x:g}: {label}", style="dim") for x, label in chart.marks)


_STRETCHES = "░█▒▓"
_LONGEST_STACK = 72


def _stacks(stacks: StackedBars, width: int) -> Iterator[Text]:
    """Yield the lines of stacked bars: each under its label, a shade per kind, and a bar at the limit."""
    room, (limit, named) = min(_LONGEST_STACK, width) - 1, stacks.limit
    at = round(limit / stacks.end * room)
    yield Text(f"{stacks.title} ({stacks.unit})", style="bold")
    for stack in stacks.stacks:
        yield Text(f"{stack.label}: {stack.note}" if stack.note else stack.label)
        cells = [" "] * (room + 1)
        for kind, (start, end) in enumerate(stacks.shares(stack)):
            first, last = round(start * room), round(end * room)
            cells[first:last] = _STRETCHES[kind % len(_STRETCHES)] * (last - first)
        cells[at] = "┃"
        yield Text("".join(cells))
    kinds = "   ".join(f"{_STRETCHES[i % len(_STRETCHES)]} {kind}" for i, kind in enumerate(stacks.kinds))
    yield Text(f"{kinds}; ┃ {named}, {limit:.3g} {stacks.unit}", style="dim")


def _spans(spans: Spans, width: int) -> Iterator[Text]:
    """Yield the lines of a timeline, with a shade per kind."""
    longest, end = max((len(label) for label, _ in spans.rows), default=0), spans.across.numbers[-1]
    room = width - longest - 1
    yield Text(spans.title, style="bold")
    for label, row in spans.rows:
        cells = [" "] * room
        for span in row:
            first, last = (int(at / end * (room - 1)) for at in (span.start, span.end))
            cells[first : last + 1] = _STRETCHES[span.kind % len(_STRETCHES)] * (last + 1 - first)
        yield Text(f"{label:>{longest}} {''.join(cells)}")
    kinds = "   ".join(f"{_STRETCHES[i % len(_STRETCHES)]} {kind}" for i, kind in enumerate(spans.kinds))
    yield Text(f"{kinds}; {spans.x}, 0 to {end:g}", style="dim")


# -- the roofline -----------------------------------------------------------------------------------------------------

_LETTERS = {
    "linear": "L", "head": "H", "attention": "A", "experts": "X", "norm": "N", "elementwise": "E",
    "embedding": "B", "communication": "C",
}  # fmt: skip
_MARGIN, _ROWS = 11, 24


def _roofline(figure: Roofline, width: int) -> Iterator[Text]:
    """Yield the lines of a roofline chart; capital letters are classes of the first step, small ones of any other."""
    canvas = _Canvas(figure, width - _MARGIN - 1, _ROWS)
    canvas.draw_roofs()
    letters = letters_of(figure)
    for point in sorted(figure.points, key=lambda point: point.share or 0.0):  # the largest share is drawn on top
        letter = letters[point.kind]
        canvas.put(point.intensity, point.flops_per_second, letter if point.step == figure.steps[0] else letter.lower())
    yield Text(figure.title, style="bold")
    yield from canvas.lines()
    slopes = enumerate(figure.slopes, 1)
    memories = "   ".join(f"{number} {slope.name} {humanize.say(slope.rate, 'B/s')}" for number, slope in slopes)
    yield Text(memories, style="cyan")


def letters_of(figure: Roofline) -> dict[str, str]:
    """Return the letter that stands for each class of ops in a roofline chart."""
    spare = iter("PQRSTUVWYZ")
    return {kind: _LETTERS.get(kind) or next(spare) for kind in dict.fromkeys(point.kind for point in figure.points)}


class _Canvas:
    """A grid of characters over the axes of a roofline chart."""

    def __init__(self, figure: Roofline, width: int, height: int) -> None:
        self.figure, self.width, self.height = figure, width, height
        self.across, self.up = figure.x, figure.y
        self.grid = [[" "] * width for _ in range(height)]

    def column(self, intensity: float) -> int:
        """Return the column of the canvas for an arithmetic intensity."""
        return round(along(intensity, self.across) * (self.width - 1))

    def row(self, rate: float) -> int:
        """Return the row of the canvas for a rate in FLOP/s, counted from 0 at the top."""
        return self.height - 1 - round(along(rate, self.up) * (self.height - 1))

    def put(self, intensity: float, rate: float, letter: str) -> None:
        """Write a letter at a point, or up to two columns next to it if other letters are there, or not at all."""
        row, column = self.row(rate), self.column(intensity)
        for shift in (0, 1, -1, 2, -2):
            if 0 <= column + shift < self.width and not self.grid[row][column + shift].isalpha():
                self.grid[row][column + shift] = letter
                return

    def draw_roofs(self) -> None:
        """Draw the roofs of a roofline chart: bandwidth slopes as digits, and peaks as horizontal lines with labels."""
        low, high = self.across
        slopes, ceilings = self.figure.slopes, self.figure.ceilings
        for column in range(self.width):
            intensity = low * (high / low) ** (column / (self.width - 1))
            for ceiling in ceilings:
                if slopes[0].rate * intensity >= ceiling.rate:
                    self.grid[self.row(ceiling.rate)][column] = "─"
            for number, slope in enumerate(slopes, 1):
                if self.up[0] <= slope.rate * intensity <= ceilings[0].rate:
                    self.grid[self.row(slope.rate * intensity)][column] = str(number)
        for ceiling in ceilings:
            label = f" {ceiling.name} {humanize.say(ceiling.rate, 'FLOP/s')} "
            self.grid[self.row(ceiling.rate)][self.width - len(label) :] = label

    def lines(self) -> Iterator[Text]:
        """Yield the lines of the roofline chart with its axes."""
        labels = {self.row(power): _rate(power) for power in powers(self.up)}
        for index, line in enumerate(self.grid):
            text = Text(f"{labels.get(index, ''):>{_MARGIN}}", style="dim")
            text.append("┤" if index in labels else "│", "dim")
            for letter in line:
                text.append(letter, "magenta" if letter == "─" else "cyan" if letter.isdigit() else "bold")
            yield text
        ticks = [" "] * self.width
        for power in powers(self.across):
            label = tick(power)
            column = min(self.column(power), self.width - len(label))
            ticks[column : column + len(label)] = label
        yield Text(" " * _MARGIN + "└" + "─" * self.width, style="dim")
        yield Text(f"{'FLOP/byte':>{_MARGIN}} {''.join(ticks)}", style="dim")


def _rate(power: float) -> str:
    """Return a power of ten as a rate such as `10GFLOP/s`, cut to the space next to the axis."""
    return f"{humanize.scaled(power, 1)}FLOP/s"[: _MARGIN + 1]


def roofline_legend(figure: Roofline) -> DocumentTable:
    """Return the table that explains the letters, with FLOP/s and share of the roof per class and step."""
    heads = [Column("", words=True), Column("class", words=True)]
    for step in figure.steps:
        hows = _hows(figure, step)
        group = f"{step}, {hows.pop()}" if len(hows) == 1 else step
        mixed = (Column("", words=True, group=group),) if len(hows) > 1 else ()
        heads += [Column("FLOP/s", group=group), Column("of its roof", group=group), *mixed]
    points = {(point.kind, point.step): point for point in figure.points}
    rows = []
    for kind, letter in letters_of(figure).items():
        marks = letter if len(figure.steps) == 1 else f"{letter} {letter.lower()}"
        cells = (_reached(figure, step, points.get((kind, step))) for step in figure.steps)
        rows.append(TableRow((marks, kind, *(text for texts in cells for text in texts))))
    unplaced = f"without FLOPs, not drawn: {', '.join(figure.unplaced)}"
    return DocumentTable(tuple(heads), tuple(rows), (unplaced,) if figure.unplaced else ())


def _reached(figure: Roofline, step: str, point: Point | None) -> list[str]:
    """Return the legend's table cells for one class of ops in one step: its FLOP/s and its share of the roof."""
    mixed = len(_hows(figure, step)) > 1
    if point is None:
        return [""] * (3 if mixed else 2)
    cells = [humanize.say(point.flops_per_second, "FLOP/s"), humanize.percent(point.of_roof)]
    return cells + ([_how(point)] if mixed else [])


def _hows(figure: Roofline, step: str) -> set[str]:
    """Return whether the points of a step are measured, expected, or both."""
    return {_how(point) for point in figure.points if point.step == step}


def _how(point: Point) -> str:
    return "measured" if point.measured else "expected"
