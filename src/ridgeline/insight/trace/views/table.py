"""The op table of a trace: its steps, such as prefill and decode, next to each other, whole steps at the bottom."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby

from ridgeline.insight.trace.trace_ledger import LedgerStep, LedgerTotal, OpGroup, OpRow, StepLedger
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import Cell, Column, DocumentTable, TableRow, Tone

Cells = tuple[str | Cell, ...]

_HEADS = ("FLOP", "byte", "F/B", "bound", "exp.", "meas.", "diff")
LIMITS: Mapping[str, tuple[str, Tone]] = {
    "memory": ("M", "memory"),
    "compute": ("C", "compute"),
    "communication": ("L", "communication"),
}
_LEGEND = (
    "rows: positions that a step computes; seen: positions that the last of them attends to. in>out: sizes of one row, "
    "in most layers; AxB is A heads of B, 2·B two outputs of B. F/B: FLOP a byte. bound: the roof that limits the op "
    "(M memory, C compute), then the seconds at it. exp., meas.: seconds expected and measured. diff: measured "
    "compared with expected. !: faster than physics allows. k M G: thousand to billion; m µ n p: milli to pico."
)

_OPS_ONLY = "The whole step has no exp.: this device's data predict ops, but not the time around them."

_PARTS = (
    "The exp. of batch, between ops and sampling was calibrated in steps of the engine, whose scheduler is neither "
    "measured nor expected here."
)

_HOST = (
    "The exp. of all but ops was calibrated in the engine: it covers the scheduler too, which is not measured here, "
    "and sampling is greedy there."
)


def op_table(ledger: StepLedger, layer: int | str | None = None) -> DocumentTable:
    """Return the table of predicted and measured op times in a ledger.

    Args:
        ledger: The ledger.
        layer: None adds up layers, a number shows one layer, "all" lists every op.
    """
    columns = [Column("op", words=True), Column("in>out", words=True)]
    for step in ledger.steps:
        columns += [Column(head, group=_title(step)) for head in _HEADS]
    ops = _groups(ledger) if layer is None else _ops(ledger, layer)
    totals = {step.name: ledger.ops(step.name) for step in ledger.steps}
    notes = [_LEGEND, *_left_to_pytorch(ledger)]
    if not ledger.predicts_whole:
        notes.insert(1, _OPS_ONLY)
    elif any(step.host for step in ledger.steps):
        parts = [one for step in ledger.steps for one in step.overheads if one.expected is not None]
        notes.insert(1, _PARTS if parts else _HOST)
    rows = (*ops, "", _row(ledger, "all ops", "", totals, "strong"), *_overheads(ledger), _whole(ledger))
    return DocumentTable(tuple(columns), rows, tuple(notes), dense=True)


def _left_to_pytorch(ledger: StepLedger) -> Iterator[str]:
    """Yield a sentence for each backend that has no kernel for some ops, with their names."""
    for backend in sorted({row.backend for row in ledger.rows} - {""}):
        counts = Counter(_leaf(row) for row in ledger.rows if row.backend == backend)
        ops = ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())
        yield f"PyTorch runs these ops, at least partly, because the {backend} backend has no kernel for them: {ops}."


def _title(step: LedgerStep) -> str:
    """Return the heading of a step, such as `prefill: 18 rows, 18 seen`."""
    rows = f"{step.name}: {step.rows} row{'s' if step.rows > 1 else ''}"
    return f"{rows}, {max((attention.total.keys for attention in step.work.attention.values()), default=0)} seen"


def _groups(ledger: StepLedger) -> Iterator[TableRow | str]:
    """Yield a row for the same op over all layers of a stack, with a heading at the start of each stack."""
    heights, before = _heights(ledger), ""
    for group in ledger.groups():
        stack = _stack(group.first)
        if stack != before:
            before = stack
            layers = f"{heights[stack]} layer{'s added up' if heights[stack] > 1 else ''}" if stack else ""
            yield f"{stack}: {layers}" if stack and len(heights) > 1 else layers
        partial = f" x{group.totals[ledger.steps[0].name].count}" if _partial(ledger, group, heights) else ""
        yield _row(ledger, _leaf(group.first) + partial, _usual_shape(ledger, group), group.totals)


def _heights(ledger: StepLedger) -> dict[str, int]:
    """Return the number of layers in each stack of layers."""
    places = {(_stack(row), row.layer) for row in ledger.rows if row.layer is not None}
    return dict(Counter(stack for stack, _ in places))


def _stack(row: OpRow) -> str:
    """Return the list of layers that contains an op, such as `model.layers`; empty if it is outside of layers."""
    return "" if row.layer is None else row.group.partition(".*")[0]


def _partial(ledger: StepLedger, group: OpGroup, heights: Mapping[str, int]) -> bool:
    """Return whether some layers of the stack do not have the op exactly once."""
    stack = _stack(group.first)
    return bool(stack) and group.totals[ledger.steps[0].name].count != heights[stack]


def _ops(ledger: StepLedger, layer: int | str) -> Iterator[TableRow | str]:
    """Yield a row per op, with a heading for each layer."""
    seen: tuple[str, int | None] = ("", None)
    several = len(_heights(ledger)) > 1
    for row in ledger.rows:
        if layer not in ("all", row.layer):
            continue
        place = (_stack(row), row.layer)
        if place != seen:
            stack = f"{place[0]}, " if several else ""
            yield "" if row.layer is None else f"{stack}layer {row.layer}"
            seen = place
        totals = {name: LedgerTotal.of([entry]) for name, entry in row.entries.items()}
        yield _row(ledger, _leaf(row), _shape(ledger, row), totals)


def _leaf(row: OpRow) -> str:
    """Return the last part of a path, or the last two if the last has at most four characters: `q_proj`, `mlp.gate`.

    For a layer that contains lists itself, return everything from there on: `resnets.1.conv1`.
    """
    parts = row.path.split(".")
    if row.layer is not None:
        inner = parts[parts.index(str(row.layer)) + 1 :]
        nested = next((index for index, part in enumerate(inner) if part.isdigit() and index), None)
        if nested is not None and nested < len(inner) - 1:
            return ".".join(inner[nested - 1 :])
    return parts[-1] if len(parts[-1]) > 4 or len(parts) < 2 or parts[-2].isdigit() else ".".join(parts[-2:])


def _usual_shape(ledger: StepLedger, group: OpGroup) -> str:
    """Return the shapes of an op in most layers: the first norm of a model has one output, the later ones two."""
    shapes = Counter(_shape(ledger, row) for row in ledger.rows if row.group == group.label)
    return max(shapes, key=lambda shape: shapes[shape])


def _shape(ledger: StepLedger, row: OpRow) -> str:
    """Return an op's shapes in the first step without rows: `64>172`, or with several results `64>64+2·32`."""
    entry = row.entries[ledger.steps[0].name]
    if not entry.outputs:
        return ""
    inputs = "x".join(map(str, entry.inputs[0][1:])) if entry.inputs else ""
    outputs = ("x".join(str(n) for n in output[1:] if n != 1) for output in entry.outputs)
    alike = ((len(list(same)), shape) for shape, same in groupby(outputs))
    return f"{inputs}>{'+'.join(shape if count == 1 else f'{count}·{shape}' for count, shape in alike)}"


def _row(ledger: StepLedger, name: str, shape: str, totals: Mapping[str, LedgerTotal], tone: Tone = "") -> TableRow:
    return TableRow((name, shape, *(cell for step in ledger.steps for cell in _cells(totals[step.name]))), tone)


def _cells(total: LedgerTotal) -> Cells:
    letter, tone = LIMITS.get(total.limit, ("", ""))
    cost = total.cost
    moved = cost.total_bytes + cost.communication_bytes
    return (
        humanize.scaled(cost.total_flops),
        humanize.scaled(moved),
        _intensity(cost.total_flops / moved) if moved else "",
        Cell(f"{letter} {humanize.seconds(total.bound)}", tone),
        humanize.seconds(total.expected),
        *_measured(total.measured, total.difference, bool(total.impossible)),
    )


def _intensity(value: float) -> str:
    return f"{value:.2f}" if value < 1 else humanize.digits(value, 2)


def _measured(measured: float, difference: float | None, impossible: bool) -> Cells:
    seconds, against = humanize.seconds(measured), humanize.say_difference(difference)
    if impossible:
        return Cell(f"!{seconds}", "error"), Cell(against, "error")
    slow = difference is not None and abs(difference) > 0.5
    return Cell(seconds, "strong"), Cell(against, "warning" if slow else "good")


def _overheads(ledger: StepLedger) -> Iterator[TableRow]:
    """Yield a row for each overhead, and their sum if the device's price predicts it."""
    for index, overhead in enumerate(ledger.steps[0].overheads):
        cells: list[str | Cell] = [overhead.name, ""]
        for step in ledger.steps:
            cells += _timed(step.overheads[index].seconds, step.overheads[index].expected)
        yield TableRow(tuple(cells))
    if ledger.steps[0].overheads and any(step.host for step in ledger.steps):
        yield TableRow(("all but ops", "", *(cell for step in ledger.steps for cell in _all_overheads(step))), "strong")


def _all_overheads(step: LedgerStep) -> Cells:
    return _timed(sum(overhead.seconds for overhead in step.overheads), step.host)


def _timed(seconds: float, expected: float | None) -> Cells:
    """Return the cells of a time outside ops; without expected time and difference if it is not predicted."""
    if expected is None:
        return *[""] * 5, Cell(humanize.seconds(seconds), "strong"), ""
    difference = seconds / expected - 1 if expected else None
    return *[""] * 4, humanize.seconds(expected), *_measured(seconds, difference, False)


def _whole(ledger: StepLedger) -> TableRow:
    cells = (cell for step in ledger.steps for cell in _whole_step(ledger, step.name))
    return TableRow(("whole step", "", *cells), "strong")


def _whole_step(ledger: StepLedger, name: str) -> Cells:
    """Return the cells of a whole step; without expected time and difference if only its ops are predicted."""
    cells = _cells(ledger.total(name))
    return cells if ledger.predicts_whole else (*cells[:4], "", cells[5], "")
