"""The export of a benchmark: one JSON object, with the columns of simulated results, and a CSV of requests."""

import csv
import io
from typing import Any

import msgspec

from ridgeline.insight.bench.bench_findings import BenchFindings
from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.bench.sweep import Sweep
from ridgeline.insight.traffic.request_record import COLUMNS, columns, row
from ridgeline.insight.traffic.summary import CLIENTS_OWN, DEFINITIONS, SYMBOLS
from ridgeline.util.json_data import json_data, json_select


def findings_json(findings: BenchFindings) -> dict[str, Any]:
    """Return a benchmark's results as JSON (`--json`): times in seconds, null for percentiles of too few samples."""
    run = findings.run
    metrics = _metrics(run, with_latencies=not findings.refused)
    return {
        "format": 1,
        "kind": "bench-serve",
        "inputs": _inputs(findings),
        **json_select(findings, "verdict", "reasons"),
        "metrics": metrics | json_select(findings, "goodput"),
        "per_request": columns(run.records),
        "steps": {"per_second": _by_name(json_data(run.seconds)), "server": json_data(findings.steps)},
        "replicas": [],
        "sweep": None if findings.sweep is None else _sweep(findings.sweep),
        **json_select(findings, "fitted", "unpredicted", "predicted"),
        "definitions": {"symbols": SYMBOLS, **DEFINITIONS},
    }


def requests_csv(findings: BenchFindings) -> str:
    """Return CSV text with one line for each request of the benchmark run that is reported in detail."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row(record) for record in findings.run.records)
    return file.getvalue()


def _inputs(findings: BenchFindings) -> dict[str, Any]:
    """Return the options of the benchmark, without API keys."""
    return {
        **json_select(findings.served, "url=base", "model", "owner"),
        **json_select(findings.job.target, "endpoint", "ignore_eos", "more"),
        "load": msgspec.to_builtins(findings.run.job.load),
        "data": msgspec.to_builtins(findings.job.data),
        **json_select(findings, "slo", "run.processes"),
    }


def _metrics(run: BenchRun, *, with_latencies: bool) -> dict[str, Any]:
    """Return the throughput, latencies and goodput of a benchmark run as JSON data.

    Args:
        run: The run.
        with_latencies: Whether latencies reflect the server; if not, only the client's own latencies are
            included, and no goodput.
    """
    latencies = {
        name.replace(" ", "_").lower(): json_data(found) if with_latencies or name in CLIENTS_OWN else None
        for name, found in run.summary.latencies.items()
    }
    return {
        **json_select(run.summary, "requests=total", "*counts", "reasons", "duration"),
        "offered_per_second": run.offered,
        **json_select(run.summary, "requests_per_second", "tokens_per_second", "prompt_tokens", "output_tokens"),
        **json_select(run.summary, "cached_tokens", "answers_with_counted_tokens=counted", "tokens_per_chunk"),
        "goodput": json_data(run.summary.goodput) if with_latencies else None,
        **json_select(run, "steadiness", "client_cpu=cpu"),
        "latencies": latencies,
        **json_select(run.summary, "sizes"),
    }


def _sweep(sweep: Sweep) -> dict[str, Any]:
    levels = [
        json_select(level, "rate", "fault=why")
        | {"metrics": _metrics(level.run, with_latencies=not level.run.summary.client_late)}
        for level in sweep.levels
    ]
    return json_select(sweep, "knee=knee.rate", "reached", "ended") | {"levels": levels}


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
