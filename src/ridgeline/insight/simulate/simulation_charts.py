"""The charts of a simulation: results by rate, activity per second, latency distributions, and a request waterfall."""

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.insight.simulate.capacity import SimulatedCapacity
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.load_law import load_curve
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation_export import LONGEST_SERIES, per_second
from ridgeline.insight.simulate.simulation_findings import SimulationFindings
from ridgeline.insight.simulate.simulation_metrics import warm_up
from ridgeline.insight.traffic.series import cumulative
from ridgeline.util.document.charts import Chart, Series, Span, Spans

_MAX_ROWS = 60  # rows of a waterfall


def charts(findings: SimulationFindings) -> Iterator[Chart | Spans]:
    """Yield the charts for which a simulation has data.

    An overloaded run has no latency distributions and no waterfall.
    """
    log = findings.log
    if findings.capacity is not None:
        yield from _rates(findings, findings.capacity)
    if not len(log.steps):
        return
    if log.end <= LONGEST_SERIES:
        yield from _over_time(findings)
    if findings.has_latencies:
        yield from _distributions(log)
        yield _waterfall(log)


def _rates(findings: SimulationFindings, found: SimulatedCapacity) -> Iterator[Chart]:
    """Yield charts of goodput, TPOT and TTFT over the arrival rate, TPOT with the load law's curve."""
    levels = found.levels
    marks = ((found.rate.mid, "capacity"),) if found.rate.mid else ()
    good = tuple((each.rate, each.metrics.goodput.rate) for each in levels if each.metrics.goodput is not None)
    offered = Series("offered", tuple((each.rate, each.metrics.offered) for each in levels), "dashed")
    x = f"{findings.query.rated} per second"
    if good:
        yield Chart("Goodput by rate", x, "good requests per second", (Series("goodput", good, "line"), offered), marks)
    for name in ("TPOT", "TTFT"):
        dots = tuple(
            (each.rate, latency.mean * 1e3)
            for each in levels
            if each.good and (latency := each.metrics.latencies[name]) is not None
        )
        law = _law_curve(findings, levels[-1].rate) if name == "TPOT" else ()
        if dots:
            drawn = (Series(f"{name}, simulated", dots, "points"), *law)
            yield Chart(f"Mean {name} by rate, at rates that meet the objectives", x, "ms", drawn, marks)


def _law_curve(findings: SimulationFindings, most: float) -> tuple[Series, ...]:
    """Return the TPOT curve of the load law, up to 90 % of its saturation rate but no further than the rate `most`."""
    query = findings.query
    if findings.law_saturation_rate is None or query.rated != "requests":
        return ()
    curve = load_curve(query.machine, *findings.metrics.sizes)
    highest, replicas = min(most, 0.9 * findings.law_saturation_rate), query.fleet.replicas
    points = tuple((replicas * rate, tpot * 1e3) for rate, tpot in curve if replicas * rate <= highest)
    return (Series("TPOT by the load law", points, "dashed"),)


def _over_time(findings: SimulationFindings) -> Iterator[Chart]:
    seconds = per_second(findings.log)
    share = [held / pool if pool else 0.0 for held, pool in zip(seconds["pages"], seconds["pool"], strict=True)]
    for title, y, lines in (
        ("Requests over time", "requests", (("running", seconds["running"]), ("waiting", seconds["waiting"]))),
        (
            ("Arrivals and completions"),
            "requests per second",
            (("came", seconds["arrived"]), ("ended", seconds["finished"])),
        ),
        (
            "Tokens over time",
            "tokens per second",
            (("output", seconds["tokens"]), ("prompts", seconds["prompt_positions"])),
        ),
        ("KV memory over time", "share of the pages", (("held", share),)),
    ):
        yield Chart(title, "seconds", y, tuple(_steps(name, values) for name, values in lines))


def _steps(name: str, values: Sequence[float]) -> Series:
    """Return a step series with one value per second, extended to the end of the last second."""
    points = [*enumerate(map(float, values)), (len(values), float(values[-1]))]
    return Series(name, tuple((float(at), value) for at, value in points), "steps")


def _distributions(log: RunLog) -> Iterator[Chart]:
    """Yield the cumulative distributions of TTFT and TPOT over requests and of ITL over tokens.

    They cover the same samples as the percentiles.
    """
    requests = Columns(log)
    since = warm_up(log, requests)
    answered = requests.ok & (requests.arrived >= since)
    tpot = requests.tpot[answered & (requests.made > 1)]
    for name, values in (("TTFT", (requests.first - requests.arrived)[answered]), ("TPOT", tpot)):
        found = sorted((values / 1e6).tolist())
        if len(found) > 1:
            yield _distribution(name, f"{len(found):,} requests", "requests", cumulative(found))
    late = np.asarray(log.gaps.at) >= since
    gaps, tokens = np.asarray(log.gaps.gap)[late], np.asarray(log.gaps.tokens)[late]
    if len(gaps) > 1:
        order = np.argsort(gaps, kind="stable")
        ranks = np.cumsum(tokens[order]) / tokens.sum()
        every = max(1, len(gaps) // 400)
        places = sorted({0, len(gaps) - 1, *range(0, len(gaps), every)})
        points = tuple((float(gaps[order[at]]) / 1e6, float(ranks[at])) for at in places)
        yield _distribution("ITL", f"{int(tokens.sum()):,} tokens", "tokens", points)


def _distribution(name: str, label: str, of: str, points: tuple[tuple[float, float], ...]) -> Chart:
    y = f"share of {of} with at most this {name}"
    return Chart(f"Distribution of {name}", "ms", y, (Series(label, points, "steps"),))


def _waterfall(log: RunLog) -> Spans:
    """Return a waterfall chart of the waiting, prefill and decode times of each completed request.

    Of many requests, it shows an evenly spaced selection.
    """
    requests = Columns(log)
    rows = np.flatnonzero(requests.ok).tolist()
    step = max(1, -(-len(rows) // _MAX_ROWS))
    some = "" if step == 1 else f", every {step}th of {len(rows):,}"
    drawn = tuple(
        (
            str(row),
            tuple(
                Span(start / 1e9, end / 1e9, kind)
                for kind, (start, end) in enumerate(
                    (
                        (requests.arrived[row], requests.scheduled[row]),
                        (requests.scheduled[row], requests.first[row]),
                        (requests.first[row], requests.last[row]),
                    )
                )
                if end > start
            ),
        )
        for row in rows[::step]
    )
    return Spans(f"Requests{some}", "seconds", ("waiting to be scheduled", "prompt", "answer"), drawn)
