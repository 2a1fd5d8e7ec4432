"""The report of an engine benchmark as a document and as JSON, with the ceiling first."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ridgeline.backends import backend_of
from ridgeline.insight.bench.engine.bench_row import DECODE, OUTPUT, PREFILL, BenchMedian, BenchRow
from ridgeline.insight.bench.engine.measured_roofs import RoofMeter
from ridgeline.price.device import Device
from ridgeline.price.physics_guard import under_floor
from ridgeline.price.roof_share import EXPLAINS
from ridgeline.util.document.elements import Bullets, Document, DocumentBlock, DocumentTable, columns
from ridgeline.util.document.elements import TableRow as Line
from ridgeline.util.document.humanize import percent, say, three_digits

_WORDS = {PREFILL: "prefill", DECODE: "decode", OUTPUT: "output"}
_NOTES = (
    "ceiling: the rate if every step had taken its minimum time, max(FLOPs / peak, bytes of weights and KV / "
    "bandwidth). share: the measured share of the ceiling. roof: the limit that sets the ceiling.",
    "prefill: prompt tokens over the time until every request has its first token. decode: the later tokens over "
    "the remaining time. output: all generated tokens over the whole time.",
)


# -- for people -------------------------------------------------------------------------------------------------------


def document(model: str, rows: Sequence[BenchRow], roofs: RoofMeter) -> Document:
    """Return the report of an engine benchmark as a document with a table of all workloads."""
    count = len(rows[0].rounds)
    spread = ("least", "most") if count > 1 else ()
    heads = ("tok/s", "ceiling", "measured", "share", *spread, "roof")
    table = DocumentTable(
        columns(*heads, words=(0, len(heads) - 1)),
        tuple(line for row in rows for line in _lines(row, spread=bool(spread))),
        (*((f"Medians of {count} rounds, with the workloads in turn.",) if spread else ()), *_NOTES, *_unlimited(rows)),
    )
    blocks: tuple[DocumentBlock, ...] = (table,)
    warnings = tuple(_warnings(rows, roofs))
    if warnings:
        blocks += (Bullets(warnings, "warning"),)
    threads = f"{roofs.threads} thread{'' if roofs.threads == 1 else 's'}"
    where = f"{rows[0].devices[0].title}: {threads}, kernels: {_kernels()}"
    return Document(f"{model} on {where}", blocks, _lead(rows, roofs))


def _lead(rows: Sequence[BenchRow], roofs: RoofMeter) -> str:
    """Return the report's first sentence: the measured bandwidth and peak FLOP/s, and how they were measured."""
    devices = [device for row in rows for device in row.devices]
    rates = [f"{name} {say(rate, 'FLOP/s')}" for name, rate in _peaks(devices).items()]
    rates_text = ", ".join([f"memory {say(_bandwidth(devices), 'B/s')}", *rates])
    if roofs.calibrated is not None:
        return f"Roofs calibrated, {roofs.calibrated.sources['all']}: {rates_text}."
    return f"Roofs probed before and after each run, in the median: {rates_text}" + (
        f"; {roofs.why}." if roofs.why else "."
    )


def _lines(row: BenchRow, *, spread: bool) -> Iterator[Line | str]:
    yield f"{row.workload.name}: {row.workload}"
    for name in (name for name in _WORDS if name in row.names):
        found = row.median(name)
        between = tuple(map(three_digits, found.spread)) if spread else ()
        roof = f"{found.roof.name}, {say(found.roof.rate, found.roof.unit)}"
        yield Line(
            (
                _WORDS[name],
                three_digits(found.ceiling),
                three_digits(found.measured),
                percent(found.share),
                *between,
                roof,
            )
        )


def _unlimited(rows: Sequence[BenchRow]) -> Iterator[str]:
    """Yield a note on the figures that are too far below their ceiling for its roof to be what limits them."""
    far = [(row, [_WORDS[name] for name in row.names if row.median(name).share < EXPLAINS]) for row in rows]
    if any(names for _, names in far):
        which = "; ".join(f"{row.workload.name}: {', '.join(names)}" for row, names in far if names)
        yield (
            f"Neither memory nor arithmetic limited what is under {percent(EXPLAINS)} of its ceiling ({which}). "
            "`ridgeline trace` shows where the time went."
        )


def _warnings(rows: Sequence[BenchRow], roofs: RoofMeter) -> Iterator[str]:
    for row in rows:
        beaten = [_WORDS[name] for name in row.names if any(under_floor(f.seconds, f.floor) for f in row.each(name))]
        if beaten:
            cure = "repeat the benchmark"
            if roofs.calibrated is not None:
                cure = "run `ridgeline calibrate` again, or give --probe"
            yield (
                f"{row.workload.name}: {' and '.join(beaten)} exceed the ceiling, which is impossible. The machine was "
                f"faster than when its roofs were measured: {cure}."
            )
        if row.preemptions:
            yield (
                f"{row.workload.name}: KV memory was too small: the engine preempted and recomputed a request "
                f"{row.preemptions:,} times; raise --kv-memory."
            )


def _kernels() -> str:
    return backend_of(torch.device("cpu")).kernel_set


def _bandwidth(devices: Sequence[Device]) -> float:
    return statistics.median(device.bandwidth for device in devices)


def _peaks(devices: Sequence[Device]) -> dict[str, float]:
    return {name: statistics.median(device.peaks[name] for device in devices) for name in devices[0].peaks}


# -- for programs -----------------------------------------------------------------------------------------------------


def row_json(row: BenchRow, roofs: RoofMeter) -> dict[str, Any]:
    """Return a row as JSON data, with medians over the rounds.

    The figures are at the top level; then follow, by the same names, the ceiling, the share reached, the lowest and
    highest measurement, and the binding roof.
    """
    found = dict(_medians(row))
    return {
        "engine": "ridgeline",
        "workload": row.workload.name,
        **{name: round(median.measured, 2) for name, median in found.items()},
        "ceiling": {name: round(median.ceiling, 2) for name, median in found.items()},
        "share": {name: round(median.share, 4) for name, median in found.items()},
        "spread": {name: [round(end, 2) for end in median.spread] for name, median in found.items()},
        "roof": {name: median.roof.name for name, median in found.items()},
        "roofs": {
            "basis": "probed" if roofs.calibrated is None else "calibrated",
            "bytes_per_second": _bandwidth(row.devices),
            "flops_per_second": _peaks(row.devices),
        },
        "rounds": len(row.rounds),
        "threads": roofs.threads,
        "kernels": _kernels(),
        "preemptions": row.preemptions,
    }


def _medians(row: BenchRow) -> Iterator[tuple[str, BenchMedian]]:
    """Yield the medians of all figures, and of decode also as milliseconds per step.

    In such a step, every request gets a token.
    """
    for name in row.names:
        yield name, row.median(name)
    if DECODE in row.names:
        decode, each = row.median(DECODE), 1e3 * row.workload.requests
        least, most = decode.spread
        yield (
            "decode_step_ms",
            replace(
                decode,
                ceiling=each / decode.ceiling,
                measured=each / decode.measured,
                spread=(each / most, each / least),
            ),
        )
