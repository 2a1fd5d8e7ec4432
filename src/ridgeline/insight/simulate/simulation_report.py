"""The printed report of a simulation: verdict, latencies, goodput, limits, cost and the error of all these."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.insight.simulate.advice import advice
from ridgeline.insight.simulate.adviser import Advice
from ridgeline.insight.simulate.capacity import SimulatedCapacity
from ridgeline.insight.simulate.fleet_sizing import FleetSizing
from ridgeline.insight.simulate.simulated_fleet import SimulatedFleet
from ridgeline.insight.simulate.simulation_charts import charts
from ridgeline.insight.simulate.simulation_findings import FIGURES, SimulationFindings
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, SimulationQuery
from ridgeline.insight.simulate.slo_classes import ATTAIN, class_verdict
from ridgeline.insight.traffic.percentiles import Interval, needed
from ridgeline.price.device import HourlyPrice
from ridgeline.price.interval_text import factors_between
from ridgeline.util.document.elements import (
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Paragraph,
    TableRow,
    columns,
)
from ridgeline.util.document.humanize import percent, say_seconds, three_digits

_MORE = (
    "more: --json (figures), --report FILE (charts), --out FILE (result for the web page), --require 'ttft_p99<500ms'"
)
_WAITS = {
    "requests": "requests wait because {requests:,} are running",
    "positions": "prompts wait because the step's token budget is used up",
    "pages": "requests wait for KV pages",
}
_FACTORS = "with the factors of the line trust"
_SHOWN = 0.01  # the share of time from which waiting is reported


def document(findings: SimulationFindings, *, with_charts: bool = False) -> Document:
    """Return the report of a simulation as a document.

    Args:
        findings: The result of the simulation.
        with_charts: Whether to include charts, for output that can show them.
    """
    query, machine = findings.query, findings.query.machine
    case = machine.case
    fleet = query.fleet
    shared = fleet.size > 1 or fleet.scaling is not None
    dealt = f" by {fleet.router} (--router) with load reports up to {fleet.age / 1e6:g} ms old" if shared else ""
    title = (
        f"{_many(fleet)}{query.model} on {case.setup.devices} x {case.device.title}: {case.weights} weights, {case.kv} "
        f"KV, {machine.layout.pages:,} pages of {machine.layout.page_size}{_beside(fleet)}"
    )
    lead = (
        f"{query.traffic}{dealt}; Ridgeline's scheduler with {machine.limits.tokens:,} tokens per step and at most "
        f"{machine.limits.requests:,} requests, with the memory overhead and host time of {case.setup.engine.title} "
        "(--engine)"
    )
    blocks: list[DocumentBlock] = [Facts(tuple(answer(findings)))]
    if findings.metrics.classes:
        blocks += [Heading("Request classes"), _classes(findings)]
    if findings.colocated:
        blocks += [Heading("Prefill and decode on the same GPUs"), _together(findings)]
    if findings.advised is not None:
        blocks += [Heading("Other settings"), Paragraph(findings.advised.sentence), _options(findings.advised)]
    if findings.division is not None:
        blocks += [
            Heading("Other divisions of the GPUs"),
            Paragraph(findings.division.sentence),
            _divisions(findings.division),
        ]
    return Document(title, (*blocks, *charts(findings)) if with_charts else (*blocks, Paragraph(_MORE, "dim")), lead)


def _many(fleet: SimulatedFleet) -> str:
    """Return the number of replicas as a prefix of the title, such as `4 replicas of `."""
    if fleet.scaling is not None:
        return f"{fleet.scaling.least:,} to {fleet.scaling.most:,} replicas of "
    return "" if fleet.replicas == 1 else f"{fleet.replicas:,} replicas of "


def _beside(fleet: SimulatedFleet) -> str:
    """Return the title's description of other replicas, of a prefill/decode split or of autoscaling."""
    if fleet.split is not None:
        rate = f"{fleet.split.bandwidth / 1e9:.3g} GB/s"
        return f"; {fleet.split.prompts:,} for prefill, {fleet.size - fleet.split.prompts:,} for decode, over {rate}"
    if fleet.scaling is not None:
        return f"; a new replica takes requests after {say_seconds(fleet.scaling.start_up / 1e9)}"
    counts = Counter(machine.case.device.title for machine in fleet.others)
    named = [title if count == 1 else f"{count} x {title}" for title, count in counts.items()]
    return f"; also {', '.join(named)}" if named else ""


def _classes(findings: SimulationFindings) -> DocumentTable:
    """Return the table of request classes, which share all replicas."""
    rows, slo = [], findings.query.slo
    for name, own in findings.metrics.classes.items():
        figures = findings.class_figures(name)
        share, limits = figures["good_share"], "" if slo is None else str(replace(slo.of(name), classes={}))
        assert share is not None, "a class with requests has a good share"
        class_rows = [
            "" if (found := figures[f"{of}_p{at}"]) is None else say_seconds(found.mid)
            for of in ("ttft", "tpot")
            for at in (50, 99)
        ]
        good = "" if own.goodput is None else _plain(figures["goodput"])
        word = "overloaded" if findings.verdict == "overloaded" else class_verdict(share) if limits else ""
        cells = (name or "others", f"{own.requests:,}", good, _percents(share), *class_rows, limits, word)
        rows.append(TableRow(cells))
    heads = ("class", "requests", "good per second", "good", "TTFT p50", "p99", "TPOT p50", "p99", "within", "")
    notes = (
        f"good per second: {_window(findings.metrics)}",
        f"kept: at least {percent(ATTAIN)} of the class's requests are good, even at the lower end of the interval.",
    )
    return DocumentTable(columns(*heads, words=(0, 8, 9)), tuple(rows), notes)


def _percents(share: Interval) -> str:
    return f"{share.mid:.1%} ({share.low:.1%} .. {share.high:.1%})"


def _together(findings: SimulationFindings) -> DocumentTable:
    """Return the table that compares a prefill/decode split with the same GPUs doing both."""
    apart = "apart", findings.query.machine.limits, findings.metrics
    rows = [
        TableRow(
            (name, f"{limits.tokens:,}", *_cells(metrics, metrics.good_share)), "strong" if name == "apart" else ""
        )
        for name, limits, metrics in (apart, *(("together", each.limits, each.metrics) for each in findings.colocated))
    ]
    heads = ("", "tokens per step", "good", "TTFT", "tail TTFT", "TPOT", "tail ITL", "tokens/s")
    notes = (
        f"tail: the highest percentile with enough samples. tokens/s: {_window(findings.metrics)}. All are expected "
        f"figures, {_FACTORS}.",
    )
    return DocumentTable(columns(*heads, words=(0,)), tuple(rows), notes)


def _cells(metrics: SimulationMetrics, good_share: float) -> tuple[str, ...]:
    """Return the table cells with the share of good requests, the latencies and the throughput of a run."""
    if metrics.overloaded:
        return ("overloaded", "", "", "", "", three_digits(metrics.tokens_per_second))
    good = percent(good_share) if metrics.goodput is not None else ""
    means = {name: "" if (of := metrics.latencies[name]) is None else say_seconds(of.mean) for name in ("TTFT", "TPOT")}
    late = {name: say_seconds(at) if math.isfinite(at := metrics.late(name)) else "" for name in ("TTFT", "ITL")}
    return (good, means["TTFT"], late["TTFT"], means["TPOT"], late["ITL"], three_digits(metrics.tokens_per_second))


def _options(advised: Advice) -> DocumentTable:
    """Return the table of engine settings on the Pareto front, with the best and the user's own."""
    rows = []
    shown = [each for each in advised.options if each in advised.pareto or each in (advised.current, advised.best)]
    for option in shown:
        good, ttft, late_ttft, tpot, late_itl, _ = _cells(option.metrics, option.share)
        name = "best" if option is advised.best else "yours" if option is advised.current else ""
        limits = (f"{option.limits.tokens:,}", f"{option.limits.requests:,}", f"{option.memory:.0%}")
        cells = (*limits, good, ttft, tpot, late_ttft, late_itl, f"{option.metrics.preemptions:,}", name)
        rows.append(TableRow(cells, "strong" if option is advised.best else ""))
    heads = ("tokens per step", "requests", "memory", "good", "TTFT", "TPOT", "tail TTFT", "tail ITL", "preempted", "")
    notes = (
        f"{len(advised.options)} settings were simulated; no other is better than these in goodput, tail TTFT and tail "
        f"ITL at once. tail: the highest percentile with enough samples. All are expected figures, {_FACTORS}.",
    )
    return DocumentTable(columns(*heads, words=(9,)), tuple(rows), notes)


def _divisions(division: FleetSizing) -> DocumentTable:
    """Return the table of simulated fleet sizes, the cheapest first."""
    rows = []
    for each in division.tried:
        name = "best" if each is division.best else "yours" if each is division.own else ""
        thousand = "" if each.option.overloaded else "none good"
        if math.isfinite(each.dollars_per_thousand_good):
            thousand = f"${three_digits(each.dollars_per_thousand_good)}"
        cells = _cells(each.option.metrics, each.option.share)
        put = (f"{each.devices:,}", f"{each.replicas:,}", f"${each.dollars:.2f}")
        rows.append(TableRow((*put, thousand, *cells[:-1], name), "strong" if each is division.best else ""))
    heads = ("GPUs each", "replicas", "$/hour", "$/1k good", "good", "TTFT", "tail TTFT", "TPOT", "tail ITL", "")
    notes = (
        f"All are expected figures, {_FACTORS}. A division was not simulated if it would cost more even with all "
        "requests good.",
    )
    return DocumentTable(columns(*heads, words=(9,)), tuple(rows), notes)


def answer(findings: SimulationFindings) -> Iterator[tuple[str, str]]:
    """Yield the lines of a simulation report as name and text; a capacity search adds a capacity line."""
    if findings.capacity is not None:
        yield "capacity", _capacity(findings, findings.capacity)
    yield "verdict", _verdict(findings)
    for name in ("TTFT", "TPOT", "ITL"):
        yield name, _latency(findings, name)
    yield "goodput", _goodput(findings)
    yield "load", _load(findings)
    yield "pages", _pages(findings)
    yield "limit", _limit(findings)
    yield "cost", _cost(findings)
    yield "law", _law(findings)
    yield "trust", _trust(findings)
    yield "advice", advice(findings)


def _capacity(findings: SimulationFindings, found: SimulatedCapacity) -> str:
    rated = findings.query.rated
    within = f"{percent(found.min_good_share)} of the requests within {findings.query.slo}"
    if not found.rate.mid:
        return f"at no rate down to {three_digits(found.levels[0].rate)} {rated} per second are {within}"
    sentence = f"with arrivals of {_plain(found.rate)} {rated} per second, {within}"
    above = found.above
    if above is None:
        return f"{sentence}, and no higher rate was tried"
    why = "it falls behind" if above.verdict == "overloaded" else _worst(above.metrics)
    return f"{sentence}; at {three_digits(above.rate)} {why}; the following figures are for the former rate"


def _worst(metrics: SimulationMetrics) -> str:
    """Return the share of good requests, of all or of the class with the smallest share."""
    shares = {name: own.good_share for name, own in metrics.classes.items() if own.requests}
    name = min(shares, key=lambda each: shares[each], default="")
    if not shares or shares[name] >= metrics.good_share:
        return f"{percent(metrics.good_share)} are"
    return f"{percent(shares[name])} of class {name or 'others'} are"


def _verdict(findings: SimulationFindings) -> str:
    metrics = findings.metrics
    sentence = f"{findings.verdict}: {metrics.counts['ok']:,} of {metrics.total:,} requests answered"
    sentence += "".join(
        f", {metrics.counts[name]:,} {name}" for name in ("rejected", "unfinished") if metrics.counts[name]
    )
    if metrics.limited:
        sentence += f" ({metrics.limited:,} cut short because the context was full)"
    sentence += f"; {three_digits(metrics.requests_per_second)} per second {_window(metrics)}"
    if metrics.offered and findings.query.open_loop:
        sentence += f", of {three_digits(metrics.offered)} offered per second until the last arrival"
    if findings.verdict == "overloaded":
        assert metrics.stationarity is not None
        return f"{sentence}; {60 * metrics.stationarity.growth:,.0f} more are in flight each minute"
    if metrics.left_out:
        sentence += f"; the first {metrics.left_out:,} arrived during the warm-up and are not counted"
    if findings.at_high_price.overloaded:
        sentence += f"; overloaded if steps take x {three_digits(findings.query.error.high)} of their predicted times"
    return sentence


def _window(metrics: SimulationMetrics) -> str:
    """Return the time over which requests, good requests and tokens per second are counted."""
    return f"from the first {'counted ' * (metrics.left_out > 0)}arrival to the last token"


def _end_of_steps(metrics: SimulationMetrics) -> str:
    """Return the event up to which the shares of steps are counted."""
    return "the last step" if metrics.steps.draining else "the last arrival"


def _latency(findings: SimulationFindings, name: str) -> str:
    if findings.verdict == "overloaded":
        return "none, because in an overloaded run it grows with the length of the run"
    found = findings.metrics.latencies[name]
    if found is None:
        return "nothing to measure"
    lines = [
        f"p{at} " + (f"n too small ({needed(at):,})" if figure is None else between(figure))
        for at, figure in ((at, findings.latency(name, at)) for at in (50, 99))
    ]
    mean = findings.mean(name)
    return f"{', '.join(lines)}; mean {say_seconds(found.mean) if mean is None else between(mean)}"


def between(figure: Interval) -> str:
    """Return a latency with its interval, such as `228 ms (173 ms .. 277 ms)`."""
    return f"{say_seconds(figure.mid)} ({say_seconds(figure.low)} .. {_end(figure.high)})"


def _end(seconds: float) -> str:
    return "unbounded" if math.isinf(seconds) else say_seconds(seconds)


def _plain(figure: Interval | None, unit: str = "") -> str:
    """Return a figure with its interval, such as `11.0 (10.9 .. 11.1)`."""
    if figure is None:
        return "none"
    ends = (figure.low, figure.mid, figure.high)
    low, mid, high = (f"{unit}{three_digits(each)}" if math.isfinite(each) else "unbounded" for each in ends)
    return mid if low == high else f"{mid} ({low} .. {high})"


def _goodput(findings: SimulationFindings) -> str:
    good, window = findings.metrics.goodput, _window(findings.metrics)
    tokens = f"{_plain(FIGURES['tokens_per_second'](findings))} output tokens per second"
    if good is None:
        return f"not measured without --slo; {tokens} {window}"
    apart = f", {good.unknown:,} lack a metric" if good.unknown else ""
    return (
        f"{_plain(FIGURES['goodput'](findings))} per second, {percent(findings.metrics.good_share)} of all, within "
        f"{findings.query.slo}{apart}; {tokens}; both rates {window}"
    )


def _load(findings: SimulationFindings) -> str:
    steps, longest = findings.metrics.steps, findings.figure(lambda metrics: metrics.steps.longest)
    start = "the end of the warm-up" if findings.metrics.left_out else "the first arrival"
    return (
        f"{three_digits(steps.batch)} sequences per step; steps run {percent(steps.busy)} of the time, "
        f"{percent(steps.prompts)} of that with prompts (from {start} to {_end_of_steps(findings.metrics)}); "
        f"the longest of the run takes {'' if longest is None else between(longest)}{_replicas(findings)}"
    )


def _replicas(findings: SimulationFindings) -> str:
    """Return the average and maximum number of replicas under autoscaling, or ""."""
    if findings.query.fleet.scaling is None:
        return ""
    most = max(sum(since <= at < until for since, until in findings.log.lives) for at, _ in findings.log.lives)
    return f"; {three_digits(findings.metrics.replicas)} replicas on average over the run, {most:,} at most"


def _pages(findings: SimulationFindings) -> str:
    metrics, steps = findings.metrics, findings.metrics.steps
    return (
        f"{percent(steps.pages)} used on average until {_end_of_steps(metrics)}, {percent(steps.most_pages)} at most "
        f"in the run; {percent(metrics.found)} of prompt tokens found in the prefix cache; {metrics.preemptions:,} "
        "preemptions"
    )


def _limit(findings: SimulationFindings) -> str:
    steps, limits = findings.metrics.steps, findings.query.machine.limits
    if not steps.count:
        return "no step ran"
    roof = "arithmetic" if steps.compute > 1 / 2 else "memory bandwidth"
    share = max(steps.compute, 1 - steps.compute)
    waits = [
        f"{percent(share)} of the time {_WAITS[name].format(requests=limits.requests)}"
        for name, share in steps.held.items()
        if share > _SHOWN
    ]
    sentence = (
        f"{roof}, for {percent(share)} of the steps' time; {', '.join(waits) or 'no request waits for resources'}"
    )
    front, offered = findings.metrics.front, findings.metrics.offered
    if findings.link_saturation_rate < offered:
        sentence = (
            f"the link, which can transfer only {three_digits(findings.link_saturation_rate)} of "
            f"{three_digits(offered)} prompts per second; {sentence}"
        )
    if front is None:
        return sentence
    core = "the API server's CPU core (--front)"
    if findings.is_front_bound:
        return f"{core}, which gets {three_digits(front)} s of work per second; {sentence}"
    if front > 1:
        return f"{sentence}; {core} gets {three_digits(front)} s of work per second"
    return f"{sentence}; {core} is busy {percent(front)} of the run"


def _cost(findings: SimulationFindings) -> str:
    if findings.query.dollars_per_hour is None:
        return "no price is known for this GPU; give --price"
    per_good = FIGURES["dollars_per_thousand_good"](findings)
    good = "" if per_good is None else f", {_plain(per_good, '$')} per thousand good requests"
    return (
        f"{_plain(FIGURES['dollars_per_million_tokens'](findings), '$')} per million output tokens{good}; "
        f"{_query_text(findings.query)}"
    )


def _query_text(query: SimulationQuery) -> str:
    """Return the hourly price of each type of GPU and its source."""
    prices: dict[str, HourlyPrice] = {}
    for machine in (query.machine, *query.fleet.others):
        device = machine.case.setup.device
        assert device.price is not None, "the prices of all GPUs are known"
        prices.setdefault(device.title, device.price)
    if len(prices) == 1:
        (price,) = prices.values()
        return f"${price.dollars:.2f} per GPU and hour ({price.asked_by}, {price.date})"
    return ", ".join(
        f"${price.dollars:.2f} per hour for {title} ({price.asked_by}, {price.date})" for title, price in prices.items()
    )


def _law(findings: SimulationFindings) -> str:
    law, simulated = findings.law, findings.metrics.latencies["TPOT"]
    if findings.verdict == "nothing answered":
        return "none, because no request was answered"
    if findings.query.open_loop and not findings.query.fleet.equal:
        return "none, because the load law applies only to equal replicas that run prefill and decode"
    if findings.loop is not None:
        rate = three_digits(findings.metrics.tokens_per_second)
        tokens = f"{three_digits(findings.loop)} output tokens a second"
        return (
            f"{tokens} by the law of a closed loop without think time, simulated {rate} {_window(findings.metrics)}, "
            f"both {_FACTORS}"
        )
    if findings.shares:
        return "none, because the load law does not cover prefix cache hits"
    if law is None or findings.law_saturation_rate is None:
        return (
            "none, because the load law covers only open-loop requests, or a closed loop without think time whose "
            "users are divided evenly among the replicas and all run at once"
        )
    wall = f"above {three_digits(findings.law_saturation_rate)} requests per second the queue grows without limit"
    if law.tpot is None:
        batch = three_digits(law.max_batch)
        return f"{wall}, by the load law, {_FACTORS}; then {batch} requests decode at the same time"
    beside = "" if simulated is None or not findings.has_latencies else f", simulated {say_seconds(simulated.mean)}"
    return (
        f"TPOT {say_seconds(law.tpot)} on average by the load law{beside}; load {three_digits(law.load)}; {wall}; "
        f"all {_FACTORS}"
    )


def _trust(findings: SimulationFindings) -> str:
    error, disturbed = findings.query.error, findings.query.machine.case.device.sources.get("disturbed")
    beside = "" if disturbed is None else f"; other load on this machine slows the steps: {disturbed}"
    return f"intervals{_sources(error)}; scheduling decisions are those of the real engine{beside}"


def _sources(error: PriceUncertainty) -> str:
    """Return what intervals include: the randomness of requests, and a range of step times unless they are exact."""
    if error.is_none:
        return f" include the randomness of requests, but no error of the predicted step times ({error.source})"
    meant = ", meant to hold 8 of 10 measurements," if error.share is None else ""
    factors = factors_between(error.low, error.high)
    return (
        f"{meant} include step times of {factors} of the predicted ones ({error.source}) and the randomness of requests"
    )
