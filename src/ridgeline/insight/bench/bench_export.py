"""The export of a benchmark: one JSON object, with the columns of simulated results, and a CSV of requests."""

import csv
import io
from dataclasses import asdict
from typing import Any

import msgspec

from ridgeline.insight.bench.bench_findings import BenchFindings
from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.traffic.percentiles import distribution_json
from ridgeline.insight.traffic.request_record import COLUMNS, columns, row
from ridgeline.insight.traffic.summary import CLIENTS_OWN, DEFINITIONS, SYMBOLS


def findings_json(findings: BenchFindings) -> dict[str, Any]:
    """Return a benchmark's results as JSON (`--json`): times in seconds, null for percentiles of too few samples."""
    run = findings.run
    return {
        "format": 1,
        "kind": "bench-serve",
        "inputs": _inputs(findings),
        "verdict": findings.verdict,
        "reasons": list(findings.reasons),
        "metrics": _metrics(run, with_latencies=not findings.refused)
        | {"goodput": None if findings.goodput is None else asdict(findings.goodput)},
        "per_request": columns(run.records),
        "steps": {
            "per_second": _by_name([asdict(second) for second in run.seconds]),
            "server": {phase: asdict(steps) for phase, steps in findings.steps.items()},
        },
        "replicas": [],
        "sweep": None if findings.sweep is None else _sweep(findings),
        "fitted": findings.fitted,
        "unpredicted": findings.unpredicted,
        "predicted": None if findings.predicted is None else asdict(findings.predicted),
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
    target = findings.job.target
    return {
        "url": findings.served.base,
        "model": findings.served.model,
        "owner": findings.served.owner,
        "endpoint": target.endpoint,
        "ignore_eos": target.ignore_eos,
        "more": target.more,
        "load": msgspec.to_builtins(findings.run.job.load),
        "data": msgspec.to_builtins(findings.job.data),
        "slo": None if findings.slo is None else asdict(findings.slo),
        "processes": findings.run.processes,
    }


def _metrics(run: BenchRun, *, with_latencies: bool) -> dict[str, Any]:
    """Return the throughput, latencies and goodput of a benchmark run as JSON data.

    Args:
        run: The run.
        with_latencies: Whether latencies reflect the server; if not, only the client's own latencies are
            included, and no goodput.
    """
    summary = run.summary
    latencies = {
        name.replace(" ", "_").lower(): distribution_json(found) if with_latencies or name in CLIENTS_OWN else None
        for name, found in summary.latencies.items()
    }
    return {
        "requests": summary.total,
        **summary.counts,
        "reasons": summary.reasons,
        "duration": summary.duration,
        "offered_per_second": run.offered,
        "requests_per_second": summary.requests_per_second,
        "tokens_per_second": summary.tokens_per_second,
        "prompt_tokens": summary.prompt_tokens,
        "output_tokens": summary.output_tokens,
        "cached_tokens": summary.cached_tokens,
        "answers_with_counted_tokens": summary.counted,
        "tokens_per_chunk": summary.tokens_per_chunk,
        "goodput": None if summary.goodput is None or not with_latencies else asdict(summary.goodput),
        "steadiness": None if run.steadiness is None else asdict(run.steadiness),
        "client_cpu": run.cpu,
        "latencies": latencies,
        "sizes": {name: distribution_json(found) for name, found in summary.sizes.items()},
    }


def _sweep(findings: BenchFindings) -> dict[str, Any]:
    assert findings.sweep is not None
    levels = [
        {
            "rate": level.rate,
            "fault": level.why,
            "metrics": _metrics(level.run, with_latencies=not level.run.summary.client_late),
        }
        for level in findings.sweep.levels
    ]
    knee = findings.sweep.knee
    return {
        "knee": None if knee is None else knee.rate,
        "reached": findings.sweep.reached,
        "ended": findings.sweep.ended,
        "levels": levels,
    }


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
