"""The report of a server benchmark as a document: results, their basis, and definitions."""

from collections.abc import Iterator

from ridgeline.insight.bench.bench_findings import BenchFindings, describe_load
from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.bench.figures import figures
from ridgeline.insight.bench.sweep import ATTAIN, MIN_REQUESTS, SweepLevel
from ridgeline.insight.traffic.percentiles import SHOWN, Distribution, Interval, needed
from ridgeline.insight.traffic.stationarity import MIN_SAMPLES
from ridgeline.insight.traffic.summary import CLIENTS_OWN, DEFINITIONS, SYMBOLS, Summary, middle
from ridgeline.util.document.elements import (
    Bullets,
    Cell,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Paragraph,
    TableRow,
    columns,
)
from ridgeline.util.document.humanize import percent, say_difference, say_seconds, three_digits

_FEW = "n too small"
_ROWS = ("TTFT", "service TTFT", "server TTFT", "ITL", "chunk gap", "TPOT", "E2E", "worst gap", "queue delay")
_INTERVALS = ("TTFT", "TPOT", "E2E")


def report(findings: BenchFindings, *, with_charts: bool) -> Document:
    """Return the report of a server benchmark as a document.

    Args:
        findings: The results of the benchmark.
        with_charts: Whether to include charts and the definitions of the figures. A terminal cannot show these
            charts, and the definitions would fill its screen.
    """
    blocks: list[DocumentBlock] = [Bullets(tuple(_answers(findings)))]
    if findings.reasons:
        blocks.append(Bullets(findings.reasons, "warning"))
    if findings.sweep is not None:
        blocks += [Heading("Rates"), _levels(findings)]
    shown = "Latencies" if findings.sweep is None else f"Latencies at {findings.run.job.load.rate:.4g} per second"
    blocks += [Heading(shown), _latencies(findings)]
    if findings.run.summary.reasons:
        blocks += [Heading("Not answered"), _failures(findings.run.summary)]
    blocks += [Heading("The load generator"), Facts(tuple(_client(findings)))]
    if findings.steps:
        blocks += [Heading("The server's steps, predicted and measured"), _steps(findings)]
    if findings.predicted is not None and not findings.refused:
        blocks += [Heading("Predicted"), *_predicted(findings)]
    elif findings.unpredicted:
        blocks += [Heading("Predicted"), Paragraph(findings.unpredicted)]
    if with_charts:
        blocks += [Heading("Figures"), *figures(findings)]
        blocks += [Heading("Definitions"), Paragraph(SYMBOLS), Facts(tuple(DEFINITIONS.items()))]
    else:
        blocks.append(Paragraph("definitions of these figures: --report FILE.html, --json or docs/bench.md", "dim"))
    return Document(_title(findings), tuple(blocks), _lead(findings))


def _title(findings: BenchFindings) -> str:
    how = f"sweep of {len(findings.sweep.levels)} rates" if findings.sweep else describe_load(findings.run.job.load)
    return f"{findings.served.model} at {findings.served.base}: {how}"


def _lead(findings: BenchFindings) -> str:
    data = findings.job.data
    source = {"random": "Random words", "file": f"Prompts of {data.path}", "trace": f"Lengths of {data.path}"}[
        data.kind
    ]
    sizes = findings.run.summary.sizes
    given, made, parts = sizes["input"], sizes["output"], [source]
    if given is not None:
        parts.append(f"{given.mean:,.0f} input tokens on average")
    if made is not None:
        parts.append(f"{made.mean:,.0f} output tokens")
    return f"{', '.join(parts)}; {findings.job.target.url}"


# -- answers ----------------------------------------------------------------------------------------------------------


def _answers(findings: BenchFindings) -> Iterator[str]:
    run, summary = findings.run, findings.run.summary
    if findings.sweep is not None:
        yield _knee(findings)
    yield f"{_outcome(summary)} in {summary.duration:.1f} s: {_verdict(findings)}."
    open_loop = run.job.load.users is None and run.offered
    offered = (
        f"; the offered load was {three_digits(run.offered)} requests per second{_drawn(run)}" if open_loop else ""
    )
    yield (
        f"{three_digits(summary.requests_per_second)} requests and {three_digits(summary.tokens_per_second)} tokens "
        f"per second{offered}."
    )
    good = findings.goodput
    if good is not None:
        apart = f"; {good.unknown} lack a metric" if good.unknown else ""
        apart += f"; {good.uncertain} missed it only because the load generator was late" if good.uncertain else ""
        yield f"Goodput {three_digits(good.rate)} per second: {good.good} of {summary.total} met {findings.slo}{apart}."
    if not findings.refused and summary.answered:
        yield _typical(summary)
    if findings.fitted:
        yield _fitted(findings)


def _drawn(run: BenchRun) -> str:
    """Return why the offered load may differ from --rate: the gaps between few requests are random."""
    load = run.job.load
    return f", with random gaps for a rate of {load.rate:.4g}" if load.arrivals in ("poisson", "gamma") else ""


def _verdict(findings: BenchFindings) -> str:
    """Return the verdict with what it says of the server, if that is not clear from its words."""
    if findings.verdict != "too short to tell":
        return findings.verdict
    return (
        f"too short to tell whether the server keeps up; give more --requests or --duration, for at least "
        f"{MIN_SAMPLES * 3 // 2} requests"
    )


def _fitted(findings: BenchFindings) -> str:
    data, context = findings.job.data, findings.served.context
    return (
        f"Prompts have {data.input} tokens and responses {data.output}, because the default lengths do not fit the "
        f"model's context of {context:,}; set others with --input and --output."
    )


def _outcome(summary: Summary) -> str:
    """Return the requests by outcome, such as `198 of 200 requests answered, 1 rejected, 1 failed`."""
    others = [f"{summary.counts[name]} {name}" for name in ("rejected", "failed", "unfinished") if summary.counts[name]]
    return ", ".join([f"{summary.answered} of {summary.total} requests answered", *others])


def _typical(summary: Summary) -> str:
    parts = []
    for name in ("TTFT", "TPOT", "E2E"):
        found = summary.latencies[name]
        if found is not None:
            which = "mean" if found.percentiles[50] is None else "median"
            parts.append(f"{name} {say_seconds(middle(found))} ({which})")
    return ", ".join(parts) + "."


def _knee(findings: BenchFindings) -> str:
    assert findings.sweep is not None
    met = f"meet {findings.slo}" if findings.slo else "are answered"
    knee = findings.sweep.knee
    if knee is None:
        return (
            f"No rate met the objectives; at the lowest, {findings.sweep.levels[0].rate:.4g} per second: "
            f"{findings.sweep.ended}."
        )
    above = findings.sweep.above
    then = findings.sweep.ended if above is None else f"at {above.rate:.4g} per second: {above.why}"
    name = "The knee" if findings.sweep.reached else "The knee was not reached"
    return f"{name}: at {knee.rate:.4g} requests per second {ATTAIN:.0%} of them {met}; {then}."


# -- tables -----------------------------------------------------------------------------------------------------------


def _latencies(findings: BenchFindings) -> DocumentTable:
    """Return the report's table of latencies: mean, percentiles and maximum of each in milliseconds."""
    rows: list[TableRow] = []
    for name in _ROWS:
        found = findings.run.summary.latencies[name]
        if found is None or (findings.refused and name not in CLIENTS_OWN):
            continue
        rows.append(TableRow((name, _ms(found.mean), *_percentiles(found), _ms(found.most), f"{found.count:,}")))
        if name in _INTERVALS and any(found.percentiles.values()):
            between = [_between(at) for at in found.percentiles.values()]
            rows.append(TableRow(("95 % interval", "", *between), "dim"))
    notes = [f"{_outcome(findings.run.summary)}; averages are over the answered ones."]
    if any(cell == _FEW for row in rows for cell in row.cells):
        few = ", ".join(f"p{percent} {needed(percent):,}" for percent in SHOWN)
        notes.append(f"{_FEW}: a percentile is shown only with at least ten samples beyond it ({few}).")
    heads = columns("ms", "mean", *(f"p{percent}" for percent in SHOWN), "max", "n")
    return DocumentTable(heads, tuple(rows), tuple(notes))


def _percentiles(found: Distribution) -> list[str]:
    return [_FEW if at is None else _ms(at.mid) for at in found.percentiles.values()]


def _between(at: Interval | None) -> str:
    return "" if at is None else f"{_ms(at.low)}..{_ms(at.high)}"


def _ms(seconds: float) -> str:
    return three_digits(seconds * 1e3)


def _failures(summary: Summary) -> DocumentTable:
    rows = sorted(summary.reasons.items(), key=lambda pair: -pair[1])
    return DocumentTable(
        columns("requests", "share", "reason", words=(2,)),
        tuple(
            TableRow((f"{count:,}", percent(count / summary.total), reason or "still running when the run ended"))
            for reason, count in rows
        ),
    )


def _levels(findings: BenchFindings) -> DocumentTable:
    """Return a table with one row for each request rate that a sweep tried."""
    assert findings.sweep is not None
    name = "the knee" if findings.sweep.reached else "the highest good rate"
    rows = [_level(level, name if level is findings.sweep.knee else "") for level in findings.sweep.levels]
    heads = columns(
        "rate/s", "done/s", "good", "goodput/s", "tokens/s", "TTFT p50", "TPOT p50", "not answered", "", words=(8,)
    )
    least = f"A rate is judged from at least {MIN_REQUESTS} requests, for longer than --duration if necessary."
    return DocumentTable(heads, tuple(rows), (f"TTFT and TPOT in ms. {least}",))


def _level(level: SweepLevel, name: str) -> TableRow:
    """Return the table row of one request rate in a sweep.

    Args:
        level: The rate and its run.
        name: The label of the rate that is reported in detail; empty for others.
    """
    summary = level.run.summary
    is_reliable = not summary.client_late
    latencies = [_middle_ms(summary.latencies[name]) if is_reliable else "-" for name in ("TTFT", "TPOT")]
    goodput = "-" if summary.goodput is None else three_digits(summary.goodput.rate)
    cells = (
        f"{level.rate:.4g}",
        three_digits(summary.requests_per_second),
        percent(summary.good_share),
        goodput,
        three_digits(summary.tokens_per_second),
        *latencies,
        str(summary.total - summary.answered),
        Cell(name, "good") if name else level.why,
    )
    return TableRow(cells, "strong" if name else "")


def _middle_ms(found: Distribution | None) -> str:
    return "-" if found is None else _ms(middle(found))


def _client(findings: BenchFindings) -> Iterator[tuple[str, str]]:
    run, late = findings.run, findings.run.summary.latencies["lateness"]
    yield "processes", f"{run.processes}, the busiest used {run.cpu:.0%} of a core"
    if late is not None:
        typical, most = (late.percentiles[p] for p in (50, 99))
        sentences = [
            f"median {say_seconds(typical.mid)}" if typical else f"mean {say_seconds(late.mean)}",
            f"p99 {say_seconds(most.mid)}" if most else f"at most {say_seconds(late.most)}",
        ]
        yield "lateness", f"{', '.join(sentences)} after the time at which a request could have been sent"
    summary = run.summary
    counted = f"counted by the server, {summary.tokens_per_chunk:.3g} per chunk"
    if findings.uncounted:
        counted = "chunks of the streams, because the server reports no token counts"
    yield "tokens", counted
    yield "prompts", _prompts(findings)
    seed = findings.job.data.seed
    yield "seed", f"{seed}; --seed {seed} repeats the same requests at the same times"


def _prompts(findings: BenchFindings) -> str:
    data, summary = findings.job.data, findings.run.summary
    if data.kind == "file":
        return "from the file"
    if data.vocabulary is not None:
        return f"token ids below {data.vocabulary:,}"
    fit = "calibrated with two prompts" if data.wording.measured else ("not calibrated: one word counts as one token")
    cached = f"; {percent(summary.cached_tokens / summary.prompt_tokens)} cached" if summary.cached_tokens else ""
    return f"{data.wording.per_word:.3g} tokens per word, {fit}{cached}"


def _steps(findings: BenchFindings) -> DocumentTable:
    rows = []
    for phase, steps in sorted(findings.steps.items()):
        if steps.count:
            priced = steps.predicted / steps.priced if steps.priced else None
            each = steps.measured / steps.count
            off = "" if priced is None else say_difference(each / priced - 1)
            price = "-" if priced is None else _ms(priced)
            rows.append(TableRow((phase, f"{steps.count:,.0f}", _ms(each), price, off)))
    at = "" if findings.sweep is None else f" at {findings.run.job.load.rate:.4g} per second"
    notes = (f"From the server's own metrics, between the start of the measured run{at} and its end.",)
    return DocumentTable(columns("phase", "steps", "measured ms", "predicted ms", "difference"), tuple(rows), notes)


def _predicted(findings: BenchFindings) -> Iterator[DocumentBlock]:
    """Yield the table of predicted next to measured performance."""
    assert findings.predicted is not None
    runs = [findings.run] if findings.sweep is None else [level.run for level in findings.sweep.levels]
    rows = [_beside(run, findings) for run in runs if not run.summary.client_late and run.summary.answered]
    heads = columns("load", "tokens/s", "predicted", "TTFT ms", "predicted", "TPOT ms", "predicted", "", words=(0, 7))
    prediction = findings.predicted
    note = (
        f"{prediction.label[0].upper()}{prediction.label[1:]}, prompts of {prediction.input:,} tokens and responses of "
        f"{prediction.output:,}. The prediction is the plan's closed loop of users. A request rate is compared with "
        f"the smallest number of users that reaches it, up to {three_digits(prediction.most)} requests per second. "
        "HTTP, text processing and the network are not included."
    )
    yield DocumentTable(heads, tuple(rows), (note,))


def _beside(run: BenchRun, findings: BenchFindings) -> TableRow:
    assert findings.predicted is not None
    users, summary = run.job.load.users, run.summary
    if users is None:
        point = findings.predicted.at_rate(run.offered)
    else:
        point = min(findings.predicted.points, key=lambda one: abs(one.users - users))
    predicted = ("-",) * 3
    if point is not None:
        tokens = point.tokens_per_second if users is not None else run.offered * findings.predicted.output
        predicted = (three_digits(tokens), _ms(point.ttft), _ms(point.tpot))
    latencies = (_middle_ms(summary.latencies[name]) for name in ("TTFT", "TPOT"))
    measured = (three_digits(summary.tokens_per_second), *latencies)
    cells = (cell for pair in zip(measured, predicted, strict=True) for cell in pair)
    load = f"{three_digits(run.offered)}/s" if users is None else f"{users} users"
    return TableRow((load, *cells, "" if point else "above the predicted maximum"))
