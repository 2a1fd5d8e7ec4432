"""The JSON and CSV exports of a ledger, in seconds, bytes and FLOPs.

For each step, the CSV has a line per op and per overhead, and one for the whole step.
"""

import csv
import dataclasses
import io
from typing import Any

from ridgeline.insight.trace.bottleneck import slowest
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerEntry, LedgerStep, LedgerTotal, OpRow, Shape, StepLedger

COLUMNS = (
    "step", "path", "kind", "layer", "inputs", "outputs", "flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes",
    "activation_bytes", "bytes", "intensity", "limit", "floor_s", "bound_s", "expected_s", "measured_s", "difference",
    "impossible", "note",
)  # fmt: skip


def to_json(ledger: Ledger) -> dict[str, Any]:
    """Return the ledger of a traced LLM request as JSON data, with the views that were requested."""
    fields: dict[str, Any] = {
        "model": ledger.model,
        "device": device_json(ledger),
        "weights": ledger.weights,
        "kv": ledger.kv,
        "prompt": {"text": ledger.text, "tokens": [dataclasses.asdict(token) for token in ledger.prompt]},
        "answer": {"text": ledger.answer, "tokens": [dataclasses.asdict(token) for token in ledger.written]},
        **steps_json(ledger),
        "choices": {name: dataclasses.asdict(choice) for name, choice in ledger.choices.items()},
        "timeline": dataclasses.asdict(ledger.timeline),
    }
    for name in ("attention", "cross", "lens", "memory", "experts", "sources"):
        view = getattr(ledger, name)
        if view is not None:
            fields[name] = dataclasses.asdict(view)
    return fields


def device_json(ledger: StepLedger) -> dict[str, Any]:
    """Return the description of a trace's priced device as JSON data.

    It says whether the device is calibrated, whether it is the one that measured (`at_hand`), and the number of
    threads.
    """
    return {
        "name": ledger.device.name,
        "title": ledger.device.title,
        "calibrated": ledger.device.calibrated,
        "at_hand": ledger.at_hand,
        "threads": ledger.threads,
    }


def steps_json(ledger: StepLedger) -> dict[str, Any]:
    """Return the steps, ops and op classes as JSON data."""
    return {
        "steps": {step.name: _step(ledger, step) for step in ledger.steps},
        "ops": [_row(row) for row in ledger.rows],
        "classes": {
            group.label: {name: _total(total) for name, total in group.totals.items()} for group in ledger.classes()
        },
        "impossible": ledger.impossible(),
    }


def _step(ledger: StepLedger, step: LedgerStep) -> dict[str, Any]:
    return {
        "rows": step.rows,
        "logit_rows": step.work.logit_rows,
        "sequences": step.work.sequences,
        "working_set": step.working_set,
        "place": step.memory_level,
        **_total(ledger.total(step.name)),
        "host_s": step.host,
        "ops": _total(ledger.ops(step.name)),
        "overheads": {overhead.name: overhead.seconds for overhead in step.overheads},
        "unhooked_s": step.unhooked,
        "hooks_s": step.hooks,
        "interruptions_s": step.interruptions,
        "recorded": step.recorded,
        "repeats": step.repeats,
        "repeats_left_out": step.left_out,
        "score_matrix": None if step.score_matrix is None else dataclasses.asdict(step.score_matrix),
        "slowest": slowest(ledger, step.name),
    }


def _total(total: LedgerTotal) -> dict[str, Any]:
    moved = total.cost.total_bytes
    return {
        "flops": total.cost.total_flops,
        "weight_bytes": total.cost.weight_bytes,
        "kv_read_bytes": total.cost.kv_read_bytes,
        "kv_write_bytes": total.cost.kv_write_bytes,
        "activation_bytes": total.cost.activation_bytes,
        "bytes": moved,
        "intensity": total.cost.total_flops / moved if moved else None,
        "limit": total.limit,
        "floor_s": total.floor,
        "bound_s": total.bound,
        "expected_s": total.expected,
        "measured_s": total.measured,
        "difference": total.difference,
        "impossible": bool(total.impossible),
    }


def _entry(entry: LedgerEntry) -> dict[str, Any]:
    shapes = {"inputs": [list(s) for s in entry.inputs], "outputs": [list(s) for s in entry.outputs]}
    return {**shapes, **_total(LedgerTotal.of([entry])), "gap_s": entry.gap, "note": entry.note}


def _row(row: OpRow) -> dict[str, Any]:
    steps = {name: _entry(entry) for name, entry in row.entries.items()}
    left = {"left_to_pytorch_by": row.backend} if row.backend else {}
    return {"path": row.path, "kind": row.kind, "layer": row.layer, "what": row.detail, **left, **steps}


def to_csv(*ledgers: StepLedger) -> str:
    """Return CSV text: for each step a line per op, per overhead (kind `overhead`) and for the whole (kind `step`)."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for ledger in ledgers:
        _write_steps(writer, ledger)
    return text.getvalue()


def _write_steps(writer: "csv.DictWriter[str]", ledger: StepLedger) -> None:
    for step in ledger.steps:
        for row in ledger.rows:
            entry = row.entries[step.name]
            shapes = {"inputs": _shapes(entry.inputs), "outputs": _shapes(entry.outputs)}
            writer.writerow(_line(step, row.path, row.kind, LedgerTotal.of([entry])) | shapes | _own(row, entry))
        for overhead in step.overheads:
            writer.writerow(
                {"step": step.name, "path": overhead.name, "kind": "overhead", "measured_s": overhead.seconds}
            )
        writer.writerow(_line(step, "whole step", "step", ledger.total(step.name)))


def _line(step: LedgerStep, path: str, kind: str, total: LedgerTotal) -> dict[str, Any]:
    values = {name: value for name, value in _total(total).items() if value is not None}
    return {"step": step.name, "path": path, "kind": kind, **values}


def _own(row: OpRow, entry: LedgerEntry) -> dict[str, Any]:
    return {"layer": "" if row.layer is None else row.layer, "note": entry.note}


def _shapes(shapes: tuple[Shape, ...]) -> str:
    """Return shapes as text, such as `12x64 12x1x4`."""
    return " ".join("x".join(map(str, shape)) for shape in shapes)
