"""The table: ops down, prefill and decode side by side, and at the bottom what makes the whole step."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from ridgeline.document import numbers
from ridgeline.document.page import Cell, Column, Row, Table, Tone
from ridgeline.trace.ledger import Ledger, OpGroup, OpRow, Step, Total

Cells = tuple[str | Cell, ...]

_HEADS = ("FLOP", "byte", "F/B", "bound", "exp.", "meas.", "diff")
_LIMITS: Mapping[str, tuple[str, Tone]] = {
    "memory": ("M", "memory"),
    "compute": ("C", "compute"),
    "communication": ("L", "communication"),
}
_LEGEND = (
    "F/B: FLOP a byte. bound: seconds at the roof it hits, M memory, C compute. exp., meas.: seconds expected and "
    "measured. diff: measured against expected. !: faster than physics allows. m µ n p: milli to pico."
)


def op_table(ledger: Ledger, layer: int | str | None = None) -> Table:
    """The table of a ledger. layer: None adds layers up, a number shows one, "all" every op."""
    columns = [Column("op", words=True), Column("in>out", words=True)]
    for step in ledger.steps:
        columns += [Column(head, group=_title(step)) for head in _HEADS]
    ops = _groups(ledger) if layer is None else _ops(ledger, layer)
    totals = {step.name: ledger.ops(step.name) for step in ledger.steps}
    rows = (*ops, "", _row(ledger, "all ops", "", totals, "strong"), *_overheads(ledger), _whole(ledger))
    return Table(tuple(columns), rows, (_LEGEND,), dense=True)


def _title(step: Step) -> str:
    """`prefill: 18 rows, 18 seen`."""
    rows = f"{step.name}: {step.work.tokens} row{'s' if step.work.tokens > 1 else ''}"
    return f"{rows}, {max((attention.total.keys for attention in step.work.attention.values()), default=0)} seen"


def _groups(ledger: Ledger) -> Iterator[Row | str]:
    """A row for the same op of all layers, with a heading where the layers begin."""
    inside = False
    for group in ledger.groups():
        if (group.first.layer is not None) != inside:
            inside = not inside
            yield f"{ledger.layers} layers added up" if inside else ""
        yield _row(ledger, _name(ledger, group), _shape(ledger, group.first), group.totals)


def _ops(ledger: Ledger, layer: int | str) -> Iterator[Row | str]:
    """A row an op, with a heading for each layer."""
    seen: int | None = None
    for row in ledger.rows:
        if layer not in ("all", row.layer):
            continue
        if row.layer != seen:
            yield "" if row.layer is None else f"layer {row.layer}"
            seen = row.layer
        totals = {name: Total.of([entry]) for name, entry in row.entries.items()}
        yield _row(ledger, _leaf(row), _shape(ledger, row), totals)


def _name(ledger: Ledger, group: OpGroup) -> str:
    count = next(iter(group.totals.values())).count
    partial = f" x{count}" if group.first.layer is not None and count != ledger.layers else ""
    return _leaf(group.first) + partial


def _leaf(row: OpRow) -> str:
    """The last part of a path, or two where the last is not enough: `q_proj`, `experts`, `mlp.gate`."""
    parts = row.path.split(".")
    return parts[-1] if len(parts[-1]) > 4 or len(parts) < 2 or parts[-2].isdigit() else ".".join(parts[-2:])


def _shape(ledger: Ledger, row: OpRow) -> str:
    """Shapes in and out without their rows: `64>172`, of several results `64>64+2·32`."""
    entry = row.entries[ledger.steps[0].name]
    if not entry.outputs:
        return ""
    inputs = "x".join(map(str, entry.inputs[0][1:])) if entry.inputs else ""
    outputs = ("x".join(str(n) for n in output[1:] if n != 1) for output in entry.outputs)
    alike = ((len(list(same)), shape) for shape, same in groupby(outputs))
    return f"{inputs}>{'+'.join(shape if count == 1 else f'{count}·{shape}' for count, shape in alike)}"


def _row(ledger: Ledger, name: str, shape: str, totals: Mapping[str, Total], tone: Tone = "") -> Row:
    return Row((name, shape, *(cell for step in ledger.steps for cell in _cells(totals[step.name]))), tone)


def _cells(total: Total) -> Cells:
    letter, tone = _LIMITS.get(total.limit, ("", ""))
    cost = total.cost
    moved = cost.total_bytes + cost.communication_bytes
    return (
        numbers.scaled(cost.total_flops),
        numbers.scaled(moved),
        _intensity(cost.total_flops / moved) if moved else "",
        Cell(f"{letter} {numbers.seconds(total.bound)}", tone),
        numbers.seconds(total.expected),
        *_measured(total.measured, total.difference, bool(total.impossible)),
    )


def _intensity(value: float) -> str:
    return f"{value:.2f}" if value < 1 else numbers.digits(value, 2)


def _measured(measured: float, difference: float | None, impossible: bool) -> Cells:
    seconds, against = numbers.seconds(measured), numbers.say_difference(difference)
    if impossible:
        return Cell(f"!{seconds}", "error"), Cell(against, "error")
    slow = difference is not None and abs(difference) > 0.5
    return Cell(seconds, "strong"), Cell(against, "warning" if slow else "good")


def _overheads(ledger: Ledger) -> Iterator[Row]:
    """What lies between ops, a row each, and together where the device says what to expect of it."""
    for index, overhead in enumerate(ledger.steps[0].overheads):
        cells: list[str | Cell] = [overhead.name, ""]
        for step in ledger.steps:
            cells += [*[""] * 5, Cell(numbers.seconds(step.overheads[index].seconds), "strong"), ""]
        yield Row(tuple(cells))
    if ledger.steps[0].overheads and any(step.host for step in ledger.steps):
        yield Row(("all but ops", "", *(cell for step in ledger.steps for cell in _all_overheads(step))), "strong")


def _all_overheads(step: Step) -> Cells:
    seconds = sum(overhead.seconds for overhead in step.overheads)
    difference = seconds / step.host - 1 if step.host else None
    return *[""] * 4, numbers.seconds(step.host), *_measured(seconds, difference, False)


def _whole(ledger: Ledger) -> Row:
    return _row(ledger, "whole step", "", {step.name: ledger.total(step.name) for step in ledger.steps}, "strong")
