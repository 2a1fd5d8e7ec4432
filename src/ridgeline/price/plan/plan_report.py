"""The report of a plan, to read in a browser or on paper: answer, roofline, comparison, all sections and sources."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.price.error_interval import Kind, scaled
from ridgeline.price.interval_text import (
    costs_between,
    durations_between,
    rate_interval,
    rates_between,
    time_interval,
    times_between,
)
from ridgeline.price.plan.comparison import DeviceComparison, Offer, Ranking
from ridgeline.price.plan.comparison_document import compare_document
from ridgeline.price.plan.demand import SimulatedQueue
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.energy import describe_energy
from ridgeline.price.plan.plan_answer import answer, around_users
from ridgeline.price.plan.plan_document import SECTIONS, plan_lead, plan_title
from ridgeline.price.plan.plan_roofline import plan_roofline, roofline_table
from ridgeline.price.plan.plan_text import describe_users, on_each_replica
from ridgeline.price.plan.report_sources import source_blocks
from ridgeline.price.plan.request_phases import Estimate
from ridgeline.util.document.charts import Bar, Bars
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
from ridgeline.util.document.humanize import say_duration, say_seconds, three_digits
from ridgeline.util.version import __version__


def report_document(plan: DeploymentPlan | None, comparison: DeviceComparison | None) -> Document:
    """Return the report of a plan, of a comparison, or of both.

    Args:
        plan: The plan; None for a comparison without a device of its own.
        comparison: The comparison; None for a plan alone.
    """
    assert plan is not None or comparison is not None, "there is nothing to report"
    blocks: list[DocumentBlock] = []
    title = lead = ""
    if plan is not None:
        title, lead = plan_title(plan), plan_lead(plan)
        blocks += answer_blocks(plan)
        blocks += [Heading("Roofline"), plan_roofline(plan), roofline_table(plan)]
    if comparison is not None:
        compared = compare_document(comparison)
        if plan is None:
            title, lead = compared.title, compared.lead
        else:
            blocks += [Heading(f"Comparison of {compared.title}"), Paragraph(compared.lead)]
        blocks += [*compared.blocks, *(_bars(comparison, ranking) for ranking in comparison.rankings)]
    if plan is not None:
        blocks += [Heading("In words"), *(block for section in SECTIONS.values() for block in section(plan))]
    blocks += source_blocks(plan, comparison)
    blocks.append(Paragraph(f"made by Ridgeline {__version__}; nothing was run, all figures are predictions", "dim"))
    return Document(title, tuple(blocks), lead)


# -- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerFigure:
    """One figure of the answer, with the interval that holds 8 of 10 measurements."""

    name: str
    text: str
    """The expected value, with its unit."""
    kind: Kind
    """The kind of the figure, which determines its interval."""
    interval: str
    """The interval as text; "" for counts and upper bounds, which have none."""


def answer_figures(plan: DeploymentPlan) -> tuple[AnswerFigure, ...]:
    """Return the figures of the answer, one by one, in the order of its lines.

    All that a report says of single figures, such as their intervals, is about these.
    """
    load, found, queue = plan.reported_load, plan.intervals, plan.queue
    figures: list[AnswerFigure] = []

    def count(name: str, value: int, kind: Kind) -> None:
        figures.append(AnswerFigure(name, f"{value:,}", kind, ""))

    def seconds(name: str, value: Estimate, kind: Kind) -> None:
        around = time_interval(found[kind], value.expected, value.floor)
        figures.append(AnswerFigure(name, say_seconds(value.expected), kind, around))

    if plan.memory.fits:
        count("users that memory holds", plan.memory.users, "memory")
    if plan.memory.fits and plan.capacity.users:
        users = f"{plan.capacity.users:,}"
        figures.append(AnswerFigure("users within the targets", users, "load", around_users(plan).strip()))
        figures += [] if queue is None else _simulated(plan, queue)
        even = "" if queue is None else ", if arrivals were evenly spaced"
        who = f"{describe_users(load.users)}{on_each_replica(plan)}{even}"
        seconds(f"mean TTFT, {who}", load.ttft, "load")
        seconds(f"TPOT, {who}", load.tpot, "load")
        for name, rate in (
            ("tok/s each", load.tokens_per_user),
            ("tok/s", load.tokens_per_second),
            ("requests/s", load.requests_per_second),
        ):
            around = rate_interval(found["load"], rate.expected, rate.floor)
            figures.append(AnswerFigure(f"{name}, {who}", three_digits(rate.expected), "load", around))
    alone = "a single user" if plan.workload.batch == 1 else f"{plan.workload.batch:,} requests at once"
    seconds(f"TTFT, {alone}", plan.load.ttft_synchronised, "prefill")
    seconds(f"ITL, {alone}", plan.decode.seconds, "decode")
    return (*figures, *_costs(plan))


def _simulated(plan: DeploymentPlan, queue: SimulatedQueue) -> Iterator[AnswerFigure]:
    """Yield the simulated figures of a demand, which are those of the line `speed`."""
    who = f"{describe_users(plan.users_at_a_time)}{on_each_replica(plan)}, simulated"
    yield AnswerFigure(f"mean TTFT, {who}", say_seconds(queue.ttft), "load", times_between(*queue.ttft_interval))
    if queue.tpot is not None and queue.tpot_interval is not None:
        yield AnswerFigure(f"TPOT, {who}", say_seconds(queue.tpot), "load", times_between(*queue.tpot_interval))
    total, around = three_digits(plan.tokens_per_second), rates_between(*plan.tokens_interval)
    yield AnswerFigure("tok/s of all replicas, simulated", total, "load", around)


def _costs(plan: DeploymentPlan) -> Iterator[AnswerFigure]:
    """Yield the dollars and the energy of the answer, as far as they are known; the energy is an upper bound.

    The duration of a batch job comes first.
    """
    job = plan.job
    if job is not None:
        around = durations_between(*job.seconds_between(plan.intervals["load"]))
        yield AnswerFigure("duration of the job", say_duration(job.seconds), "load", around)
        if job.dollars is not None:
            around = costs_between(*scaled(job.dollars, plan.cost_factors))
            yield AnswerFigure("cost of the job", f"${three_digits(job.dollars)}", "load", around)
    dollars, kwh, sound = plan.dollars_per_million, plan.kwh_per_million_tokens, plan.audio
    unit = "hour of audio" if sound is not None else "million output tokens"
    if dollars is not None:
        cost = dollars if sound is None else sound.per_hour(dollars)
        around = costs_between(*scaled(cost, plan.cost_factors))
        yield AnswerFigure(f"cost per {unit}", f"${three_digits(cost)}", "load", around)
    if kwh is not None:
        yield AnswerFigure(
            f"energy per {unit}", describe_energy(kwh, plan.case.device, plan.cost_factors, sound), "load", ""
        )


def answer_blocks(plan: DeploymentPlan) -> Iterator[DocumentBlock]:
    """Yield the lines of the answer, then its figures with their intervals."""
    yield Facts(tuple(answer(plan)))
    rows = (TableRow((each.name, each.text, each.interval, each.kind)) for each in answer_figures(plan))
    yield Heading("Figures of the answer")
    yield DocumentTable(columns("", "expected", "8 of 10 measurements", "kind", words=(0, 1, 2, 3)), tuple(rows))


# -- the comparison ---------------------------------------------------------------------------------------------------


def _bars(comparison: DeviceComparison, ranking: Ranking) -> Bars:
    """Return a ranking as bars: dollars, or without a price the devices of a demand or tokens per second."""
    title = f"{ranking.seller} ({ranking.date})" if ranking.seller else comparison.unpriced.words
    if ranking.seller:
        unit = "$ per million output tokens" if comparison.sound is None else "$ per hour of audio"
        if comparison.demand:
            unit = "$ per hour" if comparison.demand.within is None else "$ for the job"
    else:
        unit = "devices" if comparison.demand else "output tokens per second"
    bars = (_bar(comparison, offer, priced=bool(ranking.seller)) for offer in ranking.rows)
    return Bars(title, unit, tuple(bars))


def _bar(comparison: DeviceComparison, offer: Offer, *, priced: bool) -> Bar:
    outcome, fleet, sound = offer.outcome, offer.fleet, comparison.sound
    if fleet is not None:
        dollars = fleet.dollars_per_hour if fleet.job is None else fleet.job.dollars
        value = dollars if priced else fleet.devices
    else:
        value = outcome.dollars_per_million if priced else outcome.tokens_per_second
        if priced and sound is not None and value is not None:
            value = sound.per_hour(value)
    assert value is not None, "an offer of a ranking serves users"
    count, replicas = (outcome.devices, 1) if fleet is None else (fleet.devices, fleet.replicas)
    many = f" on each of {replicas:,} replicas" if replicas > 1 else ""
    note = f"{outcome.weights}/{outcome.kv}, {describe_users(offer.load.users)}{many}"
    return Bar(f"{count:,} x {outcome.device_name}" if count > 1 else outcome.device_name, value, note)
