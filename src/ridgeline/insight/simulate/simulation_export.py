"""The JSON export of a simulation; docs/simulate.md lists its fields.

Fields that `bench serve --json` also has are named the same.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.insight.simulate.advice import advice
from ridgeline.insight.simulate.adviser import Advice
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.run_log import OUTCOMES, WAIT_REASONS, RunLog
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation_findings import FIGURES, SimulationFindings
from ridgeline.insight.simulate.slo_classes import class_verdict
from ridgeline.price.trust_export import trust_json
from ridgeline.util.json_data import json_data, json_select
from ridgeline.util.version import __version__

LONGEST_SERIES = 10**6 * 10**9
"""The longest run that is exported second by second, in nanoseconds: one million seconds."""


def findings_json(findings: SimulationFindings) -> dict[str, Any]:
    """Return a simulation's results as JSON (`--json`, `--out`).

    Results are in seconds, but the times of the inputs are in nanoseconds. Missing figures are null.
    """
    case = findings.query.machine.case
    return {
        "format": 1,
        "kind": "simulate",
        "version": __version__,
        "inputs": _inputs(findings),
        "verdict": findings.verdict,
        "advice": advice(findings),
        "trust": trust_json(case.setup.device, case.setup.engine, case.intervals, dict.fromkeys(FIGURES, "load")),
        "figures": {name: json_data(of(findings)) for name, of in FIGURES.items()},
        **json_select(findings, "metrics"),
        "classes": {name: _class(findings, name) for name in findings.metrics.classes},
        **json_select(findings, "capacity"),
        "advised": None if findings.advised is None else _advised(findings.advised),
        **json_select(findings, "division", "together=colocated", "law", "loop"),
        "per_request": _per_request(findings.log),
        "steps": {"per_second": per_second(findings.log) if findings.log.end <= LONGEST_SERIES else None},
        "replicas": _replicas(findings.log),
    }


def _class(findings: SimulationFindings, name: str) -> dict[str, Any]:
    own, figures = findings.metrics.classes[name], findings.class_figures(name)
    slo = None if findings.query.slo is None else replace(findings.query.slo.of(name), classes={})
    share = figures["good_share"]
    assert share is not None, "a run with requests has a good share"
    return {
        **json_select(own, "requests", "answered"),
        "slo": json_data(slo),
        "verdict": findings.verdict if findings.verdict == "overloaded" else class_verdict(share) if slo else None,
        "figures": json_data(figures),
    }


def _advised(found: Advice) -> dict[str, Any]:
    options = [
        {
            **json_select(option, "limits", "memory_utilization=memory", "good_share=share", "overloaded"),
            "pareto": option in found.pareto,
            **json_select(option, "metrics"),
        }
        for option in found.options
    ]
    own = json_select(found, "sentence", "worth=is_significant", "gain", "own=current.limits", "best=best.limits")
    return own | {"flags": found.flags, "options": options}


def _inputs(findings: SimulationFindings) -> dict[str, Any]:
    query, machine, setup = findings.query, findings.query.machine, findings.query.machine.case.setup
    price = setup.device.price
    return {
        "model": query.model,
        **json_select(setup, "device=device.name", "devices", "engine=engine.name"),
        **json_select(machine, "case.weights", "case.kv", "limits", "context", "layout.pages", "layout.page_size"),
        **json_select(machine, "prefix_cache", "between_steps=host_overhead"),
        **json_select(query, "traffic", "open_loop", "seed", "slo", "price_error=error"),
        "disturbed": setup.device.sources.get("disturbed"),
        "fleet": _fleet(query.fleet),
        "dollars_per_hour": query.dollars_per_hour,
        "price": None if price is None else json_select(price, "dollars", "date", "of=asked_by"),
    }


def _fleet(fleet: SimulatedFleet) -> dict[str, Any]:
    return {
        "replicas": fleet.replicas,
        "others": [machine.case.setup.device.name for machine in fleet.others],
        **json_select(fleet, "router", "age", "seed", "split", "scaling", "front=api_server"),
    }


def _per_request(log: RunLog) -> dict[str, list[Any]]:
    """Return the per-request columns of all requests."""
    requests = Columns(log)
    ok, several = requests.ok, requests.ok & (requests.made > 1)

    def seconds(values: Any, there: Any) -> list[float | None]:
        return [
            value / 1e9 if is_there else None for value, is_there in zip(values.tolist(), there.tolist(), strict=True)
        ]

    return {
        "index": list(range(len(requests.arrived))),
        "replica": log.requests.replica.tolist(),
        "outcome": [OUTCOMES[code] for code in requests.outcome.tolist()],
        "reason": [log.requests.reasons.get(row, "") for row in range(len(requests.arrived))],
        "intended": seconds(requests.arrived, np.ones_like(ok)),
        "scheduled": seconds(requests.scheduled, ok),
        "first_token": seconds(requests.first, ok),
        "last_token": seconds(requests.last, ok),
        "input_tokens": requests.input.tolist(),
        "output_tokens": requests.made.tolist(),
        "cached_tokens": requests.cached.tolist(),
        "ttft": seconds(requests.first - requests.arrived, ok),
        "tpot": seconds(requests.tpot, several),
        "e2e": seconds(requests.last - requests.arrived, ok),
        "worst_gap": seconds(requests.worst_gap, several),
    }


def _replicas(log: RunLog) -> list[dict[str, Any]]:
    """Return for each replica the requests and tokens it handled and the share of its lifetime spent in steps."""
    requests, steps = Columns(log), log.steps
    sent, prompted = np.asarray(log.requests.replica), np.asarray(log.requests.prompted)
    stepping, took = np.asarray(steps.replica), np.asarray(steps.took)
    firsts = np.minimum(requests.made, prompted != sent)  # the first token, if another replica decodes

    def of(place: int) -> dict[str, Any]:
        prefilled, answered, stepped = prompted == place, sent == place, stepping == place
        since, until = log.lives[place]
        return {
            "requests": int((prefilled | answered).sum()),
            "ok": int((requests.ok & (prefilled | answered)).sum()),
            "input_tokens": int(requests.input[prefilled].sum()),
            "output_tokens": int(firsts[prefilled].sum() + (requests.made - firsts)[answered].sum()),
            "cached_tokens": int(requests.cached[prefilled].sum()),
            "steps": int(stepped.sum()),
            "busy": float(took[stepped].sum()) / max(1, until - since),
            "since": since / 1e9,
            "until": until / 1e9,
        }

    return [of(place) for place in range(log.replicas)]


def _overlap(since: int, until: int, seconds: int) -> Any:
    """Return for each second the share that lies between two times."""
    begin = np.arange(seconds) * 10**9
    return np.clip(np.minimum(until, begin + 10**9) - np.maximum(since, begin), 0, None) / 1e9


def per_second(log: RunLog) -> dict[str, list[Any]]:
    """Return time series with one value per second, over all replicas together.

    They hold the average number of replicas and of their pages; arriving and finished requests and tokens; for the
    steps that started in the second, the busy share, the sequences per step and the prompt tokens; the average running
    and waiting requests and pages in use; and the seconds in which requests waited, by reason.
    """
    seconds = max(1, -(-log.end // 10**9))
    requests, steps = Columns(log), log.steps
    started, took = np.asarray(steps.started), np.asarray(steps.took).astype(np.float64)
    at = (started // 10**9).astype(np.int64) if len(started) else np.zeros(0, dtype=np.int64)
    weight = np.bincount(at, took, seconds)
    there = np.array([_overlap(since, until, seconds) for since, until in log.lives])
    replicas = there.sum(axis=0)

    def mean(column: Any) -> Any:
        return np.bincount(at, np.asarray(column) * took, seconds) / np.maximum(weight, 1)

    def together(column: Any) -> list[float]:
        """Return, by second, the sum over replicas of a column's time-weighted average; idle replicas count as 0."""
        found: list[float] = (mean(column) * np.minimum(weight / 1e9, replicas)).tolist()
        return found

    def count(moments: Any) -> list[int]:
        found: list[int] = np.bincount(np.minimum(moments // 10**9, seconds - 1), minlength=seconds).tolist()
        return found

    ends = np.minimum(np.asarray(log.gaps.at) // 10**9, seconds - 1).astype(np.int64)
    tokens = np.bincount(ends, np.asarray(log.gaps.tokens), seconds) if len(ends) else np.zeros(seconds)
    firsts = np.array(count(requests.first[requests.ok]))
    held = np.asarray(steps.held)
    assert log.totals is not None, "the run has not ended"
    return {
        "second": list(range(seconds)),
        "replicas": replicas.tolist(),
        "pool": (np.asarray(log.totals.pages) @ there).tolist(),
        "arrived": count(requests.arrived),
        "finished": count(requests.last[requests.ok]),
        "tokens": (tokens + firsts).tolist(),
        "busy": np.minimum(weight / 1e9 / np.maximum(replicas, 1e-9), 1).tolist(),
        "sequences": mean(steps.sequences).tolist(),
        "running": together(steps.running),
        "waiting": together(steps.waiting),
        "pages": together(steps.pages),
        "prompt_positions": np.bincount(at, np.asarray(steps.prompts), seconds).tolist(),
        **{
            f"held_by_{name}": (np.bincount(at[held == code], took[held == code], seconds) / 1e9).tolist()
            for code, name in enumerate(WAIT_REASONS)
            if name
        },
    }
