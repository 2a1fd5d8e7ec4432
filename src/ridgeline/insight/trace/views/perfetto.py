"""The export of a trace in Chrome's trace-event format, for ui.perfetto.dev and chrome://tracing.

It shows two processes: the request as it ran, and each measured step op by op, nested by module. Times are in us.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.insight.trace.timeline import TimelineSlice
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerEntry, OpRow, StepLedger

REQUEST, STEPS = 1, 2
_US, _NS = 1e6, 1e9


def to_perfetto(ledger: Ledger) -> dict[str, Any]:
    """Return the trace of a request as a JSON-serialisable object."""
    events = [_named("process", REQUEST, 0, f"request to {ledger.model}, as it ran")]
    events.append(_named("thread", REQUEST, 1, "engine"))
    events += _slices(ledger.timeline, REQUEST, 1)
    return _file([*events, *_steps([ledger])], ledger)


def steps_perfetto(ledgers: Sequence[StepLedger]) -> dict[str, Any]:
    """Return a trace file of the steps of several models, without a request."""
    return _file(list(_steps(ledgers)), ledgers[0])


def _file(events: list[dict[str, Any]], ledger: StepLedger) -> dict[str, Any]:
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"device": ledger.device.title}}


def _steps(ledgers: Sequence[StepLedger]) -> Iterator[dict[str, Any]]:
    """Yield the events of all steps, with a thread per step."""
    yield _named("process", STEPS, 0, "one step, op by op (medians of repeats, hooks subtracted)")
    each = ((ledger, step.name) for ledger in ledgers for step in ledger.steps)
    for thread, (ledger, name) in enumerate(each, 1):
        yield _named("thread", STEPS, thread, name)
        yield from _step(ledger, name, thread)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return a metadata event that names a process or a thread."""
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _event(name: str, kind: str, process: int, thread: int, span: tuple[float, float], **args: Any) -> dict[str, Any]:
    """Return a complete event over a span of seconds, rounded to whole nanoseconds.

    Otherwise a part that ends with the whole could outlast it by a rounding error.
    """
    start, end = (round(moment * _NS) for moment in span)
    return {
        "ph": "X", "name": name, "cat": kind, "pid": process, "tid": thread,
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": args,
    }  # fmt: skip


def _slices(moment: TimelineSlice, process: int, thread: int) -> Iterator[dict[str, Any]]:
    yield _event(moment.name, "request", process, thread, (moment.start, moment.end))
    for part in moment.parts:
        yield from _slices(part, process, thread)


def _step(ledger: StepLedger, name: str, thread: int) -> list[dict[str, Any]]:
    """Return the events of a step in time order: the batch, every op after its gap, its modules, and sampling."""
    overheads = {overhead.name: overhead.seconds for overhead in ledger.step(name).overheads}
    now = overheads.get("batch", 0.0)
    events = [_event("batch", "overhead", STEPS, thread, (0.0, now))]
    open_modules: list[tuple[str, float]] = []  # path and start time, outermost first
    ended = now
    for row in ledger.rows:
        entry = row.entries[name]
        now += max(0.0, entry.gap)  # a gap is negative if its hooks took less than their measured cost
        parents = _parents(row)
        while open_modules and open_modules[-1][0] not in parents:
            events.append(_module(open_modules.pop(), ended, thread))
        open_modules += [(path, now) for path in parents[len(open_modules) :]]
        events.append(_op(row, entry, thread, now))
        now += entry.measured
        ended = now
    while open_modules:
        events.append(_module(open_modules.pop(), ended, thread))
    now = max(now, ledger.whole(name)) - overheads.get("sampling", 0.0)
    now = max(now, ended)
    whole = _event(name, "step", STEPS, thread, (0.0, now + overheads.get("sampling", 0.0)))
    sampling = _event("sampling", "overhead", STEPS, thread, (now, now + overheads.get("sampling", 0.0)))
    return sorted([whole, *events, sampling], key=lambda event: (event["ts"], -event["dur"]))


def _parents(row: OpRow) -> list[str]:
    """Return the modules that contain an op, outermost first: `model`, `model.layers.0`, `model.layers.0.mlp`."""
    parts = row.path.split(".")[:-1]
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return [path for path in paths if not _is_list(path, row)]


def _is_list(path: str, row: OpRow) -> bool:
    """Return whether a path names the list of layers, which is not a module that runs."""
    return row.layer is not None and row.path.startswith(f"{path}.{row.layer}.")


def _module(module: tuple[str, float], ended: float, thread: int) -> dict[str, Any]:
    path, began = module
    *_, name = path.split(".")
    return _event(f"layer {name}" if name.isdigit() else name, "module", STEPS, thread, (began, ended), path=path)


def _op(row: OpRow, entry: LedgerEntry, thread: int, start: float) -> dict[str, Any]:
    cost = entry.cost
    return _event(
        row.path.split(".")[-1], row.kind, STEPS, thread, (start, start + entry.measured),
        path=row.path, shapes=[list(shape) for shape in entry.inputs], flops=cost.total_flops, bytes=cost.total_bytes,
        limit=entry.limit, bound_us=entry.bound * _US, expected_us=entry.expected * _US, impossible=entry.impossible,
    )  # fmt: skip
