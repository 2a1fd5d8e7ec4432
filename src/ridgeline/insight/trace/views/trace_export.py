"""The JSON and CSV exports of a ledger, in seconds, bytes and FLOPs.

For each step, the CSV has a line per op and per overhead, and one for the whole step.
"""

import csv
import io
from typing import Any

from ridgeline.insight.trace.bottleneck import slowest
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerEntry, LedgerStep, LedgerTotal, OpRow, Shape, StepLedger
from ridgeline.util.json_data import json_data, json_object, json_select

COLUMNS = (
    "step", "path", "kind", "layer", "inputs", "outputs", "flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes",
    "activation_bytes", "bytes", "intensity", "limit", "floor_s", "bound_s", "expected_s", "measured_s", "difference",
    "impossible", "note",
)  # fmt: skip


def to_json(ledger: Ledger) -> dict[str, Any]:
    """Return the ledger of a traced LLM request as JSON data, with the views that were requested."""
    return {
        "model": ledger.model,
        "device": device_json(ledger),
        **json_select(ledger, "weights", "kv"),
        "prompt": json_select(ledger, "text", "tokens=prompt"),
        "answer": json_select(ledger, "text=answer", "tokens=written"),
        **steps_json(ledger),
        **json_select(
            ledger, "choices", "timeline", "?attention", "?cross", "?lens", "?memory", "?experts", "?sources"
        ),
    }


def device_json(ledger: StepLedger) -> dict[str, Any]:
    """Return the description of a trace's priced device as JSON data.

    It says whether the device is calibrated, whether it is the one that measured (`at_hand`), and the number of
    threads.
    """
    return json_select(ledger, "device.name", "device.title", "device.calibrated", "at_hand", "threads")


def steps_json(ledger: StepLedger) -> dict[str, Any]:
    """Return the steps, ops and op classes as JSON data."""
    return {
        "steps": {step.name: _step(ledger, step) for step in ledger.steps},
        "ops": [_row(row) for row in ledger.rows],
        "classes": {group.label: json_data(group.totals) for group in ledger.classes()},
        "impossible": ledger.impossible(),
    }


def _step(ledger: StepLedger, step: LedgerStep) -> dict[str, Any]:
    return {
        **json_select(step, "rows", "work.logit_rows", "work.sequences", "working_set", "place=memory_level"),
        **json_object(ledger.total(step.name)),
        "host_s": step.host,
        "not_predicted": list(ledger.not_predicted(step.name)),
        "ops": json_object(ledger.ops(step.name)),
        "overheads": {overhead.name: overhead.seconds for overhead in step.overheads},
        "expected_overheads": {one.name: one.expected for one in step.overheads if one.expected is not None},
        **json_select(step, "unhooked_s=unhooked", "hooks_s=hooks", "interruptions_s=interruptions", "recorded"),
        **json_select(step, "repeats", "repeats_left_out=left_out", "score_matrix"),
        "slowest": slowest(ledger, step.name),
    }


def _entry(entry: LedgerEntry) -> dict[str, Any]:
    total = json_object(LedgerTotal.of([entry]))
    return json_select(entry, "inputs", "outputs") | total | json_select(entry, "gap_s=gap", "note")


def _row(row: OpRow) -> dict[str, Any]:
    left = {"left_to_pytorch_by": row.backend} if row.backend else {}
    steps = {name: _entry(entry) for name, entry in row.entries.items()}
    return json_select(row, "path", "kind", "layer", "what=detail") | left | steps


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
            line = {"step": step.name, "path": overhead.name, "kind": "overhead", "measured_s": overhead.seconds}
            if overhead.expected is not None:
                line["expected_s"] = overhead.expected
            writer.writerow(line)
        writer.writerow(_line(step, "whole step", "step", ledger.total(step.name)))


def _line(step: LedgerStep, path: str, kind: str, total: LedgerTotal) -> dict[str, Any]:
    values = {name: value for name, value in json_object(total).items() if value is not None}
    return {"step": step.name, "path": path, "kind": kind, **values}


def _own(row: OpRow, entry: LedgerEntry) -> dict[str, Any]:
    return {"layer": "" if row.layer is None else row.layer, "note": entry.note}


def _shapes(shapes: tuple[Shape, ...]) -> str:
    """Return shapes as text, such as `12x64 12x1x4`."""
    return " ".join("x".join(map(str, shape)) for shape in shapes)
