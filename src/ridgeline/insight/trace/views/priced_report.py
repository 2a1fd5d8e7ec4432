"""The report of a priced request, as a document and as JSON: its steps and every op."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import NOT_MODELLED
from ridgeline.insight.trace.priced_trace import Dimension, PricedCall, PricedStep, PricedTrace
from ridgeline.insight.trace.views.report import describe_scores
from ridgeline.insight.trace.views.table import LIMITS
from ridgeline.price.error_interval import Kind
from ridgeline.price.interval_text import describe_cases, describe_interval, time_interval
from ridgeline.price.trust_export import trust_json
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import (
    Bullets,
    Cell,
    Column,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    TableRow,
)
from ridgeline.util.json_data import json_data, json_select

WIDTH = 112
_ROOFS = {"memory": "memory bandwidth", "compute": "arithmetic", "communication": "the link between the GPUs"}
_HEADS = ("calls", "FLOP", "byte", "F/B", "floor", "bound", "exp.")
_LEGEND = (
    "Figures of one call. floor: the physical limit. bound: a perfect kernel, activations included; M memory, C "
    "compute, L link. exp.: with the efficiencies of the GPU's kernels. k M G T: thousand to trillion; "
    "m µ n p: milli to pico."
)


def priced_document(trace: PricedTrace) -> Document:
    """Return the document of a priced request."""
    case = trace.case
    devices_text = f"{case.setup.devices} x {case.setup.device.title}"
    blocks: list[DocumentBlock] = [
        Facts(tuple(_facts(trace))),
        Bullets(tuple(sentence for step in trace.steps for sentence in _about(step))),
    ]
    for step in trace.steps:
        notes = (_LEGEND,) if step is trace.steps[-1] else ()
        blocks += [Heading(_title(trace, step)), _table(trace, step, notes)]
    return Document(f"{trace.model} on {devices_text}: one request, predicted without running it", tuple(blocks))


def _facts(trace: PricedTrace) -> Iterator[tuple[str, str]]:
    case = trace.case
    each = " per GPU" if case.setup.devices > 1 else ""
    what = "positions of audio" if case.model.encoder_width else "tokens"
    prompts = f"{trace.batch:,} prompts of {trace.input:,} {what}" if trace.batch > 1 else f"{trace.input:,} {what}"
    yield "request", f"{prompts}, then the first decode step" if case.model.has_head else prompts
    yield "stored", f"{case.weights} weights, {_gigabytes(case.price.weight_bytes)}{each}; {case.kv} keys and values"
    yield "engine", case.setup.engine.title
    yield "trust", _trust(trace)
    letters = "N: rows of the step, R: rows with logits, S: positions that the last row attends to"
    yield "shapes", letters + (", E: positions that the encoder reads" if trace.encoded else "")
    yield from (("note", note) for note in case.notes)


def _trust(trace: PricedTrace) -> str:
    """Return what the intervals of the steps come from, and how well device, engine and format are known."""
    steps = (describe_interval(step.name, step.interval, step.price.expected, step.price.floor) for step in trace.steps)
    return "; ".join((*steps, describe_cases(trace.steps[0].interval, trace.case.setup.device)))


def _gigabytes(nbytes: float) -> str:
    return humanize.say_gb(humanize.gb(nbytes))


def _about(step: PricedStep) -> Iterator[str]:
    """Yield the time of a step with its slowest op, and the cost of its score matrix."""
    price = step.price
    slowest = max(step.calls, key=lambda call: call.time.expected * call.count)
    share = slowest.time.expected * slowest.count / price.expected
    calls = f" (x{slowest.count})" if slowest.count > 1 else ""
    yield (
        f"{step.name}: {humanize.say_seconds(price.floor)} floor, {humanize.say_seconds(price.bound)} bound, "
        f"{humanize.say_seconds(price.expected)} expected {time_interval(step.interval, price.expected, price.floor)}; "
        f"{_ROOFS[step.limit]} is the limit; longest: "
        f"{slowest.path}{calls}, {share:.0%} of the time"
    )
    scores = step.scores
    if scores.score_bytes:
        yield describe_scores(step.name, scores.fused, scores.unfused, scores.score_bytes)


def _title(trace: PricedTrace, step: PricedStep) -> str:
    rows = f"N = {step.work.tokens:,}, R = {step.work.logit_rows:,}, S = {step.seen:,}"
    rows += f", E = {trace.batch * trace.encoded:,}" if trace.encoded else ""
    each = ", per GPU" if trace.case.setup.devices > 1 else ""
    return f"{step.name}: {rows}{each}"


def _table(trace: PricedTrace, step: PricedStep, notes: tuple[str, ...]) -> DocumentTable:
    columns = (Column("op", words=True), Column("in -> out", words=True), *(Column(head) for head in _HEADS))
    rows: list[TableRow | str] = []
    inside = False
    for call in step.calls:
        if (call.layer is not None) != inside:
            inside = not inside
            rows.append(f"{trace.layers[0 if _encodes(call) else -1]} layers" if inside else "")
        rows.append(_row(call))
    price = step.price
    rows += ["", TableRow(_whole(step), "strong")]
    if price.host:
        times = [("of that, host time", price.host), *_host_shares(step)]
        rows += [TableRow((name, *[""] * 7, humanize.seconds(seconds)), "dim") for name, seconds in times]
    return DocumentTable(columns, tuple(rows), notes, dense=True)


def _host_shares(step: PricedStep) -> Iterator[tuple[str, float]]:
    """Yield the parts of a step's host time, if they are known."""
    if step.host is not None:
        yield "scheduler", step.host.schedule
        yield "batch", step.host.batch
        yield "between ops", step.host.between
        yield "sampling", step.host.sampling


def _row(call: PricedCall) -> TableRow:
    letter, tone = LIMITS[call.time.limit]
    return TableRow(
        (
            _leaf(call.path, call.kind), format_shapes(call), f"{call.count:,}", *_amounts(call.cost),
            humanize.seconds(call.floor),
            Cell(f"{letter} {humanize.seconds(call.time.bound)}", tone), humanize.seconds(call.time.expected),
        )
    )  # fmt: skip


def _whole(step: PricedStep) -> tuple[str | Cell, ...]:
    price, (letter, tone) = step.price, LIMITS[step.limit]
    calls = sum(call.count for call in step.calls)
    return (
        "whole step", "", f"{calls:,}", *_amounts(price.cost), humanize.seconds(price.floor),
        Cell(f"{letter} {humanize.seconds(price.bound)}", tone), humanize.seconds(price.expected),
    )  # fmt: skip


def _amounts(cost: Cost) -> tuple[str, str, str]:
    moved = cost.total_bytes + cost.communication_bytes
    intensity = cost.total_flops / moved if moved else 0.0
    return humanize.scaled(cost.total_flops), humanize.scaled(moved), humanize.digits(intensity, 2)


def _leaf(path: str, kind: str) -> str:
    """Return the last part of a path, or the last two if the last has at most four letters: `q_proj`, `mlp.gate`.

    Code that no op models has the name of its module too: `self_attn.unmodelled_copy`. A star never counts as one of
    the two.
    """
    parts = path.split(".")
    alone = kind != NOT_MODELLED and len(parts[-1]) > 4
    return parts[-1] if alone or len(parts) < 2 or parts[-2] == "*" else ".".join(parts[-2:])


def format_shapes(call: PricedCall) -> str:
    """Return an op's shapes, such as `[N,16384] -> [N,16384] + 2 [N,1024]`; attention includes its scores."""
    seen = call.shapes
    queries, keys = ("E" if _encodes(call) else "N"), ("E" if "E" in {shape[0] for shape in seen.inputs} else "S")
    scores = f" -> {seen.scores} [{queries},{keys}]" if seen.scores is not None else ""
    return f"{_shapes_text(seen.inputs)}{scores} -> {_shapes_text(seen.outputs)}"


def _encodes(call: PricedCall) -> bool:
    """Return whether an op's rows belong to an encoder."""
    return call.shapes.inputs[0][0] == "E"


def _shapes_text(shapes: tuple[tuple[Dimension, ...], ...]) -> str:
    alike = ((len(list(same)), shape) for shape, same in groupby(shapes))
    texts = ((count, f"[{','.join(map(str, shape))}]") for count, shape in alike)
    return " + ".join(text if count == 1 else f"{count} {text}" for count, text in texts)


def priced_json(trace: PricedTrace) -> dict[str, Any]:
    """Return the priced request as JSON data, in seconds, bytes and FLOPs; op figures are per call."""
    return {
        "model": trace.model,
        "device": json_select(trace.case, "device.name", "device.title", "setup.devices"),
        **json_select(trace.case, "weights", "kv", "price.weight_bytes", "notes"),
        **json_select(trace.case, "model.traced_from", "model.priced_only", "unmodelled"),
        **json_select(trace, "input", "encoded", "batch"),
        "layers": sum(trace.layers),
        "trust": trust_json(trace.case.device, trace.case.setup.engine, trace.case.intervals, _kinds(trace)),
        "steps": {step.name: _step_json(step) for step in trace.steps},
    }


def _kinds(trace: PricedTrace) -> dict[str, Kind]:
    """Return the kind of each step; the names of steps are those of kinds."""
    return {step.name: step.interval.kind for step in trace.steps}


def _step_json(step: PricedStep) -> dict[str, Any]:
    return {
        **json_select(step, "rows=work.tokens", "work.logit_rows", "seen", "limit", "*price.cost"),
        **json_select(step.price, "floor_s=floor", "bound_s=bound", "expected_s=expected", "host_s=host"),
        "host": dict(_host_shares(step)),
        "interval_s": step.interval.around_time(step.price.expected, step.price.floor),
        "interval": json_data(step.interval),
        "score_matrix": json_select(step.scores, "nbytes=score_bytes", "bound=fused", "with_matrix=unfused"),
        "ops": json_data(step.calls),
    }
