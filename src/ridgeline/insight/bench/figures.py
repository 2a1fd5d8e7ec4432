"""The charts of a server benchmark: latency and goodput over the rate, distributions, and activity over time."""

from collections.abc import Iterator, Sequence

from ridgeline.insight.bench.bench_findings import BenchFindings
from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.series import cumulative
from ridgeline.insight.traffic.summary import middle
from ridgeline.util.document.charts import Chart, Series, Span, Spans

_MAX_ROWS = 60  # rows of a waterfall
_DECADE = 10  # the ratio of values from which an axis is logarithmic


def figures(findings: BenchFindings) -> Iterator[Chart | Spans]:
    """Yield the charts for which there is data; if the load generator was too late, none that shows a latency."""
    if findings.sweep is not None:
        yield from _rates(findings)
    if not findings.refused and findings.run.summary.answered:
        yield from _load(findings)
        yield from _distributions(findings.run)
        yield _waterfall(findings.run)
    if findings.run.records:
        yield from _over_time(findings.run)


# -- over the rate ----------------------------------------------------------------------------------------------------


def _rates(findings: BenchFindings) -> Iterator[Chart]:
    """Yield charts of goodput over the request rate with the knee, and of TTFT and TPOT with predictions."""
    assert findings.sweep is not None
    levels = [level for level in findings.sweep.levels if not level.run.summary.client_late]
    if not levels:
        return
    name = "the knee" if findings.sweep.reached else "the highest good rate"
    marks = () if findings.sweep.knee is None else ((findings.sweep.knee.rate, name),)
    least, most = levels[0].rate, levels[-1].rate
    log_x = most > _DECADE * least
    good = tuple((level.rate, _good_rate(level.run)) for level in levels)
    offered = Series("offered", ((least, least), (most, most)), "dashed")
    what = "goodput" if findings.slo else "answered"
    yield Chart(
        f"{what.capitalize()} by request rate",
        "requests per second",
        f"{what}, requests per second",
        (Series(what, good), offered),
        marks,
        log_x,
        log_y=log_x,
    )
    for latency in ("TTFT", "TPOT"):
        measured = tuple(
            (level.rate, middle(found) * 1e3) for level in levels if (found := level.run.summary.latencies[latency])
        )
        if measured:
            series = [Series(f"{latency}, measured", measured), *_predicted_over_rate(findings, latency, most)]
            title = f"Median {latency} by request rate"
            yield Chart(title, "requests per second", "ms", tuple(series), marks, log_x, log_y=_over_a_decade(series))


def _over_a_decade(series: Sequence[Series]) -> bool:
    """Return whether values span more than a linear axis can show."""
    values = [y for one in series for _, y in one.points if y > 0]
    return bool(values) and max(values) > _DECADE * min(values)


def _good_rate(run: BenchRun) -> float:
    goodput = run.summary.goodput
    return run.summary.requests_per_second if goodput is None else goodput.rate


def _predicted_over_rate(findings: BenchFindings, latency: str, most: float) -> list[Series]:
    """Return the predicted latency against the request rate, as far as rates were measured."""
    if findings.predicted is None:
        return []
    rising, last = [], 0.0
    for point in findings.predicted.points:
        if last < point.requests_per_second <= most:
            rising.append((point.requests_per_second, (point.ttft if latency == "TTFT" else point.tpot) * 1e3))
            last = point.requests_per_second
    return [Series(findings.predicted.label, tuple(rising), "dashed")] if rising else []


def _load(findings: BenchFindings) -> Iterator[Chart]:
    """Yield the chart of throughput against TPOT: what one user loses for what all users gain."""
    runs = [findings.run] if findings.sweep is None else [level.run for level in findings.sweep.levels]
    measured = tuple(
        (run.summary.tokens_per_second, middle(found) * 1e3)
        for run in runs
        if not run.summary.client_late and (found := run.summary.latencies["TPOT"]) is not None
    )
    if not measured:
        return
    series = [Series("measured", measured, "points")]
    if findings.predicted is not None:
        predicted = findings.predicted
        points = tuple((point.tokens_per_second, point.tpot * 1e3) for point in predicted.points)
        series.append(Series(f"{predicted.label}, 1 to {predicted.points[-1].users} users", points, "dashed"))
    if len(measured) > 1 or findings.predicted is not None:
        yield Chart("Throughput against latency", "output tokens per second, all requests", "TPOT, ms", tuple(series))


# -- of one run -------------------------------------------------------------------------------------------------------


def _distributions(run: BenchRun) -> Iterator[Chart]:
    """Yield the cumulative distributions of TTFT and TPOT over requests."""
    answered = [record for record in run.records if record.outcome == "ok"]
    for name, values in (
        ("TTFT", [record.ttft for record in answered]),
        ("TPOT", [record.tpot for record in answered]),
    ):
        found = sorted(value / 1e6 for value in values if value is not None)
        if len(found) > 1:
            series = Series(f"{len(found):,} requests", cumulative(found), "steps")
            yield Chart(f"Distribution of {name}", "ms", f"share of requests with at most this {name}", (series,))


def _waterfall(run: BenchRun) -> Spans:
    """Return a waterfall chart of the phases of each request; of many requests, an evenly spaced selection."""
    step = max(1, -(-len(run.records) // _MAX_ROWS))
    shown = run.records[::step]
    some = "" if step == 1 else f", every {step}th of {len(run.records):,}"
    kinds = ("waiting in the client", "to the first token", "answer", "not answered")
    rows = tuple((str(record.index), _stretches(record)) for record in shown)
    return Spans(f"Requests{some}", "seconds", kinds, rows)


def _stretches(record: RequestRecord) -> tuple[Span, ...]:
    a, s = record.intended / 1e9, (record.intended if record.sent is None else record.sent) / 1e9
    waited = (Span(a, s, 0),) if s > a else ()
    if record.outcome != "ok":
        return (*waited, Span(s, max(s, record.over / 1e9), 3))
    first, last = record.chunks[0] / 1e9, record.chunks[-1] / 1e9
    return (*waited, Span(s, first, 1), Span(first, last, 2))


def _over_time(run: BenchRun) -> Iterator[Chart]:
    """Yield charts of active requests and output tokens per second."""
    seconds = run.seconds
    for title, name, values in (
        ("Requests in flight", "requests", [second.under_way for second in seconds]),
        ("Output tokens", "tokens per second", [second.tokens for second in seconds]),
    ):
        points = tuple((second.second, value) for second, value in zip(seconds, values, strict=True))
        ends = (*points, (len(seconds), values[-1]))
        yield Chart(f"{title} over time", "seconds", name, (Series(name, ends, "steps"),))
