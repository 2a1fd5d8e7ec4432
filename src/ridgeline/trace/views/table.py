"""The table: ops down, prefill and decode side by side, and at the bottom what makes the whole step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from ridgeline import figures
from ridgeline.trace.ledger import Group, Ledger, Row, Step, Total

Cells = tuple[tuple[str, str], ...]  # what stands in each column, and its style

NAME, SHAPE = 18, 12
_COLUMNS = (("FLOP", 4), ("byte", 4), ("F/B", 4), ("bound", 6), ("exp.", 4), ("meas.", 5), ("diff", 5))
_BLOCK = sum(width for _, width in _COLUMNS) + len(_COLUMNS) - 1
WIDTH = NAME + SHAPE + 1 + 2 * (_BLOCK + 2)

_LIMITS = {"memory": ("M", "cyan"), "compute": ("C", "magenta"), "communication": ("L", "yellow")}
LEGEND = (
    "F/B: FLOP a byte. bound: seconds at the roof it hits, M memory, C compute. exp., meas.: seconds expected and",
    "measured. diff: measured against expected. !: faster than physics allows. m µ n p: milli to pico.",
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a name, a shape, and for each step its seven cells with their styles."""

    name: str
    shape: str
    blocks: tuple[Cells, ...]
    style: str = ""


def op_table(ledger: Ledger, layer: int | str | None = None, width: int = WIDTH) -> list[Text]:
    """The table of a ledger. layer: None adds layers up, a number shows one, "all" every op. Where `width` has no room
    for two steps side by side they come one below the other."""
    lines = _lines(ledger, layer)
    together = [step.name for step in ledger.steps]
    if width >= WIDTH or len(together) < 2:
        return _printed(ledger, lines, range(len(together)))
    return [text for index in range(len(together)) for text in (*_printed(ledger, lines, [index]), Text())]


def _lines(ledger: Ledger, layer: int | str | None) -> list[Line | str]:
    """Lines, and headings between them."""
    found: list[Line | str] = []
    if layer is None:
        inside = False
        for group in ledger.groups():
            if (group.first.layer is not None) != inside:
                inside = not inside
                found.append(f"{ledger.layers} layers added up" if inside else "")
            found.append(_group_line(ledger, group))
    else:
        found += _rows(ledger, layer)
    totals = {step.name: ledger.ops(step.name) for step in ledger.steps}
    found += ["", Line("all ops", "", _blocks(ledger, totals), "bold"), *_overhead_lines(ledger), _whole_line(ledger)]
    return found


def _rows(ledger: Ledger, layer: int | str) -> list[Line | str]:
    found: list[Line | str] = []
    seen: int | None = None
    for row in ledger.rows:
        if layer != "all" and row.layer != layer:
            continue
        if row.layer != seen:
            found.append("" if row.layer is None else f"layer {row.layer}")
            seen = row.layer
        found.append(_row_line(ledger, row))
    return found


def _group_line(ledger: Ledger, group: Group) -> Line:
    count = next(iter(group.totals.values())).count
    partial = f" x{count}" if group.first.layer is not None and count != ledger.layers else ""
    return Line(_leaf(group.first) + partial, _shape(ledger, group.first), _blocks(ledger, group.totals))


def _row_line(ledger: Ledger, row: Row) -> Line:
    return Line(
        _leaf(row), _shape(ledger, row), _blocks(ledger, {name: Total.of([e]) for name, e in row.entries.items()})
    )


def _leaf(row: Row) -> str:
    """The last part of a path, or two where the last is not enough: `q_proj`, `experts`, `mlp.gate`."""
    parts = row.path.split(".")
    return parts[-1] if len(parts[-1]) > 4 or len(parts) < 2 or parts[-2].isdigit() else ".".join(parts[-2:])


def _shape(ledger: Ledger, row: Row) -> str:
    """Shapes in and out without their rows: `64>172`."""
    entry = row.entries[ledger.steps[0].name]
    if not entry.outputs:
        return ""
    inputs = "x".join(map(str, entry.inputs[0][1:])) if entry.inputs else ""
    return f"{inputs}>{'x'.join(str(n) for n in entry.outputs[0][1:] if n != 1)}"


def _blocks(ledger: Ledger, totals: Mapping[str, Total]) -> tuple[Cells, ...]:
    return tuple(_cells(totals[step.name]) for step in ledger.steps)


def _cells(total: Total) -> Cells:
    letter, colour = _LIMITS.get(total.limit, ("", ""))
    cost = total.cost
    moved = cost.total_bytes + cost.communication_bytes
    return (
        (figures.scaled(cost.total_flops), ""),
        (figures.scaled(moved), ""),
        (_intensity(cost.total_flops / moved) if moved else "", ""),
        (f"{letter} {figures.seconds(total.bound)}", colour),
        (figures.seconds(total.expected), ""),
        *_measured(total.measured, total.difference, bool(total.impossible)),
    )


def _intensity(value: float) -> str:
    return f"{value:.2f}" if value < 1 else figures.digits(value, 2)


def _measured(measured: float, difference: float | None, impossible: bool) -> Cells:
    if impossible:
        return (f"!{figures.seconds(measured)}", "bold red"), (figures.say_difference(difference), "bold red")
    slow = difference is not None and abs(difference) > 0.5
    return (figures.seconds(measured), "bold"), (figures.say_difference(difference), "yellow" if slow else "green")


def _overhead_lines(ledger: Ledger) -> list[Line]:
    """What lies between ops, a line each."""
    names = [overhead.name for overhead in ledger.steps[0].overheads]
    found = []
    for index, name in enumerate(names):
        blocks = tuple(_only(step.overheads[index].seconds) for step in ledger.steps)
        found.append(Line(name, "", blocks))
    if found and any(step.host for step in ledger.steps):
        found.append(Line("all but ops", "", tuple(_all_overheads(step) for step in ledger.steps), "bold"))
    return found


def _all_overheads(step: Step) -> Cells:
    """What lies between ops, together, beside what is expected of it."""
    seconds = sum(overhead.seconds for overhead in step.overheads)
    difference = seconds / step.host - 1 if step.host else None
    return *([("", "")] * 4), (figures.seconds(step.host), ""), *_measured(seconds, difference, False)


def _only(measured: float) -> Cells:
    return *([("", "")] * 5), (figures.seconds(measured), "bold"), ("", "")


def _whole_line(ledger: Ledger) -> Line:
    return Line("whole step", "", tuple(_cells(ledger.total(step.name)) for step in ledger.steps), "bold")


def _printed(ledger: Ledger, lines: Sequence[Line | str], steps: Sequence[int]) -> list[Text]:
    """The lines with the blocks of some steps, under a heading for each block."""
    texts = [_heading(ledger, steps), _columns(len(steps))]
    for line in lines:
        if isinstance(line, str):
            texts.append(Text(line, style="italic dim"))
            continue
        text = Text(f"{_fit(line.name, NAME):{NAME}} {_fit(line.shape, SHAPE):{SHAPE}}")
        for index in steps:
            text.append("  ")
            for (value, style), (_, width) in zip(line.blocks[index], _COLUMNS, strict=True):
                text.append(f"{value:>{width}} ", style)
            text.right_crop(1)
        text.stylize(line.style)
        text.rstrip()
        texts.append(text)
    return texts


def _heading(ledger: Ledger, steps: Sequence[int]) -> Text:
    text = Text(" " * (NAME + 1 + SHAPE))
    for index in steps:
        step = ledger.steps[index]
        rows = f"{step.name}: {step.work.tokens} row{'s' if step.work.tokens > 1 else ''}"
        seen = max((asked.kv_read for asked in step.work.attention.values()), default=0)
        text.append("  ")
        text.append(f" {rows}, {seen} seen ".center(_BLOCK, "─"), "bold")
    return text


def _columns(steps: int) -> Text:
    names = " ".join(f"{name:>{width}}" for name, width in _COLUMNS)
    return Text(f"{'op':{NAME}} {'in>out':{SHAPE}}" + f"  {names}" * steps, style="dim")


def _fit(name: str, width: int) -> str:
    """A long name with its middle left out."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
