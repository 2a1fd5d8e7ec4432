"""The comparison of devices as a document: one table with a ranking per seller and the accuracy in each row."""

import math
from collections.abc import Iterator

from ridgeline.price.device_basis import basis_of
from ridgeline.price.plan.batch_job import start_disk
from ridgeline.price.plan.comparison import DeviceComparison, Offer, Ranking
from ridgeline.price.plan.demand import Demand, ReplicaCount
from ridgeline.price.plan.energy import ASSUMED, watt_hours_cell
from ridgeline.price.plan.plan_answer import describe_load, describe_targets
from ridgeline.price.plan.scenario import describe_own_attention
from ridgeline.util.document.elements import Column, Document, DocumentTable, TableRow
from ridgeline.util.document.humanize import digits, gib, gib_cell, say_duration, say_seconds, three_digits

# The label of each origin of kernel times; NONE is in capitals to be noticed.
_MARKS = {"calibrated": "here", "own": "own", "alike": "family", "kind": "NONE", "file": "file", "probe": "probe"}


def compare_document(comparison: DeviceComparison) -> Document:
    """Return a document that ranks devices per seller, the best first, with notes on those that cannot serve."""
    workload, stored = comparison.workload, comparison.stored
    title = (
        f"{comparison.name}: {stored.weights} weights, {stored.kv} KV{' or narrower' * _narrows(comparison)}, "
        f"{workload.given:,} tokens in{workload.seen}, {workload.output:,} out"
    )
    targets = describe_targets(workload)
    within = f" within {targets} on average" if targets else ""
    arrivals = "arrivals are evenly spaced: no queues"
    if comparison.demand.within is not None:
        arrivals = "replicas are kept full until the job is done"
    lead = f"{_query_text(comparison)}{within}, {_under(comparison)}; {arrivals}"
    rows: list[TableRow | str] = []
    for ranking in comparison.rankings:
        rows += [*([""] if rows else []), _heading(comparison, ranking)]
        rows += [_row(offer, comparison) for offer in ranking.rows]
    return Document(title, (DocumentTable(_columns(comparison), tuple(rows), tuple(_notes(comparison))),), lead)


def _under(comparison: DeviceComparison) -> str:
    """Return the engines, the most frequent first: `on vLLM 0.14 and later, this on Ridgeline`."""
    by_engine: dict[str, list[str]] = {}
    for name, device in {offer.device.name: offer.device for offer in comparison.offers}.items():
        by_engine.setdefault(comparison.setup.on(device).engine.title, []).append(name)
    first, *others = sorted(by_engine, key=lambda title: -len(by_engine[title]))
    return ", ".join((f"on {first}", *(f"{' and '.join(by_engine[title])} on {title}" for title in others)))


def _query_text(comparison: DeviceComparison) -> str:
    demand = comparison.demand
    if demand.within is not None:
        return f"devices for {describe_load(demand)}"
    if demand.rate is not None:
        return f"devices for {three_digits(demand.rate)} requests/s"
    return "the most users" if demand.users is None else f"devices for {demand.users:,} concurrent users"


def _heading(comparison: DeviceComparison, ranking: Ranking) -> str:
    by = "cheapest first" if comparison.demand else "cheapest tokens first"
    if comparison.demand.within is not None:
        by = "cheapest job first"
    if not ranking.seller:
        return f"{comparison.unpriced.words}: {'fewest devices' if comparison.demand else 'fastest'} first"
    return f"{ranking.seller} ({ranking.date}): {by}"


def _narrows(comparison: DeviceComparison) -> bool:
    """Return whether the comparison was free to choose a format."""
    return comparison.setup.weights is None or comparison.setup.kv is None


def _energetic(comparison: DeviceComparison) -> bool:
    """Return whether the energy of any ranked device is known."""
    return any(offer.kwh_per_million_tokens is not None for ranking in comparison.rankings for offer in ranking.offers)


def _columns(comparison: DeviceComparison) -> tuple[Column, ...]:
    rate, cost, energy = "tok/s", "$/M", "Wh/M"
    if comparison.sound is not None:
        rate, cost, energy = "audio hours/h", "$/h\nof audio", "Wh/h\nof audio"
    demand, workload, job = bool(comparison.demand), comparison.workload, comparison.demand.within is not None
    return (
        Column("device", words=True, whole=True),
        Column("replicas\nx devices" if demand else "devices", words=demand, whole=demand),
        Column("weights\n/KV", words=True, whole=True),
        Column("users\neach" if demand else "users"),
        *([] if job and workload.ttft is None else [Column("TTFT", group="" if workload.ttft is None else "margin")]),
        *([] if workload.tpot is None else [Column("TPOT", group="" if workload.ttft is None else "margin")]),
        *([] if job else [Column("each", group=rate)]),
        Column("all", group=rate),
        *([Column("done in", group="job"), Column("$", group="job")] if job else []),
        Column("$/h", group="cost"),
        *([] if demand and comparison.sound is None else [Column(cost, group="cost")]),
        *([Column(energy, group="cost")] if _energetic(comparison) else []),
        Column("kernels", words=True, whole=True, group="accuracy"),
        Column("8 of 10", words=True, whole=True, group="accuracy"),
    )


def _row(offer: Offer, comparison: DeviceComparison) -> TableRow:
    outcome, load, fleet = offer.outcome, offer.load, offer.fleet
    sound, margins, job = comparison.sound, offer.margins, comparison.demand.within is not None
    hourly = outcome.dollars_per_hour if fleet is None else fleet.dollars_per_hour
    million = outcome.dollars_per_million if fleet is None else fleet.dollars_per_million
    total = load.tokens_per_second.expected if fleet is None else fleet.tokens_per_second
    each, energy = load.tokens_per_user.expected, offer.kwh_per_million_tokens
    if sound is not None:
        each, total = sound.rate(load.tokens_per_second.expected / load.users), sound.rate(total)
        million = None if million is None else sound.per_hour(million)
        energy = None if energy is None else sound.per_hour(energy)
    cost = "" if million is None else three_digits(million)
    return TableRow((
        outcome.device_name,
        f"{outcome.devices}" if fleet is None else f"{fleet.replicas} x {outcome.devices}",
        f"{outcome.weights}/{outcome.kv}",
        f"{load.users:,}",
        *([] if job and margins.ttft is None else [_first_token(offer)]),
        *([] if margins.tpot is None else [_percent(margins.tpot)]),
        *([] if job else [three_digits(each)]),
        three_digits(total),
        *(_job_cells(fleet) if job else []),
        "" if hourly is None else f"{hourly:.2f}",
        *([] if comparison.demand and sound is None else [cost]),
        *(["" if energy is None else watt_hours_cell(energy)] if _energetic(comparison) else []),
        _MARKS[basis_of(offer.device)],
        "-".join(digits(factor, 2) for factor in offer.factors),
    ))  # fmt: skip


def _first_token(offer: Offer) -> str:
    """Return the share of the target for the first token that is left, or the time without a target."""
    margin = offer.margins.ttft
    return say_seconds(offer.load.ttft.expected) if margin is None else _percent(margin)


def _job_cells(fleet: ReplicaCount | None) -> tuple[str, str]:
    """Return the duration and the dollars of a batch job."""
    assert fleet is not None, "an offer of a ranking serves the demand"
    assert fleet.job is not None, "the demand is a batch job"
    dollars = fleet.job.dollars
    return say_duration(fleet.job.seconds), "" if dollars is None else three_digits(dollars)


def _percent(share: float) -> str:
    return f"{math.floor(100 * share)}%"


def _devices_text(name: str, count: int) -> str:
    """Return a number of devices as text: `2 x l40s`."""
    return name if count == 1 else f"{count} x {name}"


def _notes(comparison: DeviceComparison) -> Iterator[str]:
    if comparison.demand:
        cost = "$/h: of all replicas, prompts included"
        if comparison.demand.within is not None:
            cost = f"job: {_job_note()}; {cost}"
    else:
        cost = "$/M: dollars per million output tokens, prompts included"
    if comparison.sound is not None:
        windows = f"in windows of {comparison.sound.window:g} s with {comparison.sound.tokens:,} tokens each"
        cost = f"audio hours/h and $/h of audio: hours of audio per hour, and dollars per hour of audio, {windows}"
    yield (
        f"{cost}. Price differences between sellers say nothing about the hardware, so each seller has its own "
        "ranking; --seller NAME or --prices FILE chooses the sellers."
    )
    if _energetic(comparison):
        unit, whole = ("M", "million output tokens") if comparison.sound is None else ("h of audio", "hour of audio")
        yield f"Wh/{unit}: Wh per {whole}, {ASSUMED}"
    yield (
        "kernels: the device that the kernel times were measured on: its own, one of its family, or NONE, if typical "
        f"constants of its kind are used. 8 of 10: in 8 of 10 cases like this one, {_uncertain(comparison.demand)} "
        "between these two multiples of the predicted ones; no less than at the physical limit."
    )
    yield from _search_notes(comparison)
    if comparison.unpriced.elsewhere:
        yield (
            "other sellers offer some of the devices without a price: --seller "
            f"{', '.join(comparison.unpriced.elsewhere)}"
        )
    if origins := {offer.interval.traced_from for offer in comparison.offers} - {""}:
        yield f"the model is traced from its class in {origins.pop()}: no family here builds it, so intervals are wider"
    if comparison.setup.engine.own_attention:
        yield describe_own_attention("several")
    unable = (
        comparison.setup.on(offer.device).engine.unsupported_note(offer.device, offer.outcome.devices)
        for offer in comparison.offers
    )
    yield from dict.fromkeys(note for note in unable if note)
    if comparison.demand.pessimistic:
        yield (
            "replicas: the fewest that serve the load even if times are at the slow end of the interval "
            "(--pessimistic); the figures are for expected times"
        )
    yield from _unable(comparison)


def _job_note() -> str:
    return (
        "from the start of the replicas to the last token, and the dollars of all replicas for that time, which "
        f"includes loading the weights from {start_disk().title}"
    )


def _uncertain(demand: Demand) -> str:
    """Return the figures that the factors of an offer are for, with a verb."""
    if demand.within is not None:
        return "the time and the dollars of the job are"
    # A stated rate is served as it comes, so its cost only depends on the number of replicas.
    return "the time and the cost of a token are" if demand.rate is None else "the time of a token is"


def _unable(comparison: DeviceComparison) -> Iterator[str]:
    """Yield the devices that serve no user or not the demand, by the reason."""
    demand = comparison.demand
    late = [offer for offer in comparison.unable if offer.outcome.fits and offer.outcome.users and offer.late]
    if late:
        what = "misses the targets even with one user"
        if demand.within is not None:
            what = "completes no request in time, weights loaded first"
        slow = ", at the slow end of the interval" if demand.pessimistic else ""
        yield f"{what}{slow}: {', '.join(o.outcome.device_name for o in late)}"
    missed = [offer for offer in comparison.unable if offer.outcome.fits and offer not in late]
    lacking = [offer.outcome for offer in comparison.unable if not offer.outcome.fits]
    if missed:
        yield f"serves no user within the targets (missed target): {', '.join(map(_missed, missed))}"
    if lacking:
        short = (f"{_devices_text(o.device_name, o.devices)} {gib_cell(gib(o.missing_bytes))}" for o in lacking)
        yield f"does not fit (missing GiB per device): {', '.join(short)}"


def _search_notes(comparison: DeviceComparison) -> Iterator[str]:
    """Yield what was tried for each device, and what the columns mean that follow from it."""
    narrow = _narrows(comparison)
    tried = [
        *(
            [f"{_listed(comparison.counts)} devices{' per replica' * bool(comparison.demand)}"]
            if len(comparison.counts) > 1
            else []
        ),
        *(["the stored formats and the narrower ones that the device runs"] if narrow else []),
    ]
    if tried:
        fixed = "--devices, --weights and --kv restrict this"
        yield f"each device has its cheapest combination of {', and of '.join(tried)}; {fixed}"
    if narrow:
        yield (
            "the effect of narrower formats on quality is not predicted; each ranking also has the cheapest "
            f"deployment in the stored formats ({comparison.stored.weights}/{comparison.stored.kv})"
        )
    if comparison.demand:
        each = "users and margins" if comparison.demand.within is not None else "users, margins and tok/s of each"
        yield f"{each}: on the fullest replica; tok/s of all: of all replicas"
    if comparison.workload.ttft is not None or comparison.workload.tpot is not None:
        yield "margin: the share of the target that is left by expected mean times"


def _listed(counts: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"


def _missed(offer: Offer) -> str:
    return f"{offer.outcome.device_name} ({offer.outcome.limit.upper()})"
