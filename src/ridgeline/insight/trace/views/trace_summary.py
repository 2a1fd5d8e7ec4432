"""The summary of a trace: the time of one token (or the prompt) by group of ops, at best, predicted and measured."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ridgeline.insight.trace.trace_ledger import Ledger, LedgerStep, LedgerTotal, OpRow
from ridgeline.insight.trace.views.report import describe_device, list_doubts, physics_guard
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import (
    Bullets,
    Document,
    DocumentBlock,
    DocumentTable,
    Paragraph,
    TableRow,
    columns,
)

_GROUPS: Mapping[str, str] = MappingProxyType(
    {"linear": "weights", "experts": "weights", "convolution": "weights", "attention": "attention",
     "recurrence": "state", "head": "head", "communication": "ranks"}
)  # fmt: skip
"""The row of each kind of op, by the first part of its kernel class; other kinds go to the row `small`."""


def summary(ledger: Ledger) -> Document:
    """Return a table of the last step that was traced (a decode step if there was one), with a row for each group."""
    step = ledger.steps[-1]
    what = "one token" if step.name == "decode" else "the prompt"
    rows = (*_ops(ledger, step), *_around(ledger, step), _whole(ledger, step, what))
    table = DocumentTable(
        columns("", "at best", "predicted", "measured", words=(0,)), rows, (_legend(step), *_alike(ledger, step))
    )
    blocks: list[DocumentBlock] = [table, Paragraph(f"on {describe_device(ledger)}")]
    if doubts := tuple(list_doubts(ledger, step)):
        blocks.append(Bullets(doubts))
    return Document(f"{ledger.model}: where the time of {what} went", (*blocks, *physics_guard(ledger)))


def _legend(step: LedgerStep) -> str:
    level = step.memory_level.replace("memory", "main memory")
    held = f"{humanize.say(step.working_set, 'B')} of weights and KV in {level}"
    return (
        f"at best: with perfect kernels and {held}; predicted: with Ridgeline's kernels, from this device's "
        f"calibration or data sheet; measured: the median of {step.repeats} steps"
    )


def _alike(ledger: Ledger, step: LedgerStep) -> Iterator[str]:
    """Yield a comparison of the ops alone if the time around them is not predicted."""
    if not (names := ledger.not_predicted(step.name)):
        return
    ops = ledger.ops(step.name)
    yield (
        f"The ops alone: {humanize.say_seconds(ops.expected)} predicted, {humanize.say_seconds(ops.measured)} measured "
        f"({humanize.say_difference(ops.difference)}). {', '.join(names)}: predicted only for a calibrated device."
    )


def _ops(ledger: Ledger, step: LedgerStep) -> Iterator[TableRow]:
    """Yield a row for each group that the model has, in the order of _GROUPS; small ones last."""
    found: dict[str, list[OpRow]] = {}
    for row in ledger.rows:
        found.setdefault(_GROUPS.get(row.kind.partition(".")[0], "small"), []).append(row)
    for name in (*dict.fromkeys(_GROUPS.values()), "small"):
        if ops := found.get(name):
            total = LedgerTotal.of(row.entries[step.name] for row in ops)
            yield _row(_label(name, ledger, step, ops, total), total.bound, total.expected, total.measured)


def _label(name: str, ledger: Ledger, step: LedgerStep, ops: list[OpRow], total: LedgerTotal) -> str:
    layers = f"{ledger.layers} layer{'s' if ledger.layers > 1 else ''}"
    read = humanize.say(total.cost.weight_bytes, "B")
    if name == "head":
        scores = ops[-1].entries[step.name].outputs[0][-1]
        return f"head: logits of {scores:,} tokens, {read}"
    return {
        "weights": f"weights of {layers}: {read}",
        "attention": f"attention: {humanize.say(total.cost.kv_read_bytes, 'B')} of keys and values",
        "state": "recurrent state of each layer",
        "ranks": "communication between ranks",
        "small": f"norms and other small ops: {len(ops)}",
    }[name]


def _around(ledger: Ledger, step: LedgerStep) -> Iterator[TableRow]:
    """Yield the time outside ops: a row for each part if each is predicted, else one for all of them."""
    if any(one.expected is None for one in step.overheads):
        yield _together(ledger, step)
        return
    for one in step.overheads:
        assert one.expected is not None
        yield TableRow((one.name, "", *map(humanize.say_seconds, (one.expected, one.seconds))))


def _together(ledger: Ledger, step: LedgerStep) -> TableRow:
    """Return the row of all time outside ops, which is predicted only for a calibrated machine."""
    names = ", ".join(one.name for one in step.overheads)
    measured = sum(one.seconds for one in step.overheads)
    predicted = "not known" if ledger.device.host is None else humanize.say_seconds(step.host)
    return TableRow((f"Python around the ops: {names}", "", predicted, humanize.say_seconds(measured)))


def _whole(ledger: Ledger, step: LedgerStep, what: str) -> TableRow:
    whole = ledger.total(step.name)
    at_least = "over " if ledger.device.host is None else ""  # the prediction lacks the time around the ops
    predicted = f"{at_least}{humanize.say_seconds(whole.expected)}"
    return TableRow(
        (what, humanize.say_seconds(whole.bound), predicted, humanize.say_seconds(whole.measured)), "strong"
    )


def _row(label: str, *seconds: float) -> TableRow:
    return TableRow((label, *map(humanize.say_seconds, seconds)))
