"""The plan as a document: the summary and the sections with its details."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ridgeline.price.cold_start import ColdStart, disks
from ridgeline.price.error_interval import ErrorInterval, Kind
from ridgeline.price.interval_text import describe_factors, rate_interval, time_interval
from ridgeline.price.plan.alternatives import Change
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.load_estimate import LoadEstimate
from ridgeline.price.plan.plan_answer import answer, describe_targets
from ridgeline.price.plan.plan_text import (
    DEFINITIONS,
    describe_held,
    describe_users,
    on_each_replica,
    verdict,
    without_kernels,
)
from ridgeline.price.plan.request_phases import ClassRow, Estimate, PhasePrice
from ridgeline.price.plan.short_answer import short_answer
from ridgeline.util.document.elements import (
    Column,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Paragraph,
    TableRow,
    columns,
)
from ridgeline.util.document.humanize import gb, gb_cell, gib, gib_cell, say, say_gb, say_seconds, three_digits

_OF_DEMAND = frozenset(("words", "time", "users", "levers"))
"""The sections that depend on the number of replicas or their load."""
_MORE = "more: --full, --section NAME; other devices: --compare; replicas: --users N, --rate R; JSON: --json"


def plan_document(plan: DeploymentPlan, sections: Iterable[str] | None = None) -> Document:
    """Return the summary of a plan, or the given sections.

    With all sections in the order of `SECTIONS`, the summary comes first.

    Args:
        plan: The plan.
        sections: The names of the sections; None for the summary, followed by the batch sweep if the plan has batch
            sizes.

    Raises:
        ValueError: If there is no section of that name. The message lists the known ones.
    """
    names = None if sections is None else check_sections(sections, SECTIONS)
    whole = names == tuple(SECTIONS)
    blocks: list[DocumentBlock] = [Facts(tuple(answer(plan)))] if names is None or whole else []
    for name in names or (("sweep",) if plan.batches else ()):
        blocks += SECTIONS[name](plan)
    if names is None:
        blocks.append(Paragraph(_MORE, "dim"))
    lead = plan_lead(plan) if names is None or whole else ""
    return Document(plan_title(plan), tuple(blocks), lead)


def short_document(plan: DeploymentPlan) -> Document:
    """Return the five-line summary of a plan as a document."""
    engine = plan.case.setup.engine.title
    origin = f", traced from {plan.case.model.traced_from}" if plan.case.model.traced_from else ""
    more = f"predicted for {engine}{origin}; [a .. b] holds 8 of 10 measurements; without --short, a plan says more"
    return Document(plan_title(plan), (Facts(tuple(short_answer(plan))), Paragraph(more, "dim")))


def check_sections(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the section names without duplicates, in the given order.

    Raises:
        ValueError: If a name is unknown. The message lists the known ones.
    """
    found, known = tuple(dict.fromkeys(names)), tuple(known)
    for name in found:
        if name not in known:
            raise ValueError(f"--section is {name!r}; it must be one or more of {', '.join(known)}")
    return found


def needs_simulation(sections: Iterable[str] | None) -> bool:
    """Return whether the summary (for None) or one of the sections states what the simulation of a demand yields."""
    return sections is None or not _OF_DEMAND.isdisjoint(sections)


def plan_title(plan: DeploymentPlan) -> str:
    """Return the title of a plan: the model, the devices, the formats and the lengths."""
    case, workload = plan.case, plan.workload
    return (
        f"{plan.name} on {case.setup.devices} x {case.setup.device.title}: {case.weights} weights, {case.kv} KV, "
        f"{workload.given:,} tokens in{workload.seen}, {workload.output:,} out"
    )


def plan_lead(plan: DeploymentPlan) -> str:
    """Return the introduction of a plan: the engine, the targets, and what its figures assume."""
    targets = describe_targets(plan.workload)
    held = f"with the targets {targets} on average (--slo)" if targets else "without latency targets (--slo)"
    arrivals = "arrivals are evenly spaced: no queues, no percentiles"
    if plan.demand.within is not None:
        arrivals = "replicas are kept full until the job is done, by formula"
    if plan.queue is not None:
        arrivals = "users, speed, queue and cost are simulated; the rest is for evenly spaced arrivals"
    return f"on {plan.case.setup.engine.title} (--engine), {held}; {arrivals}; [a .. b] holds 8 of 10 measurements"


# -- the tables -------------------------------------------------------------------------------------------------------


def _headed(heading: str, *blocks: DocumentBlock) -> list[DocumentBlock]:
    return [Heading(heading), *blocks]


def _each(plan: DeploymentPlan) -> str:
    return " (per device)" if plan.case.setup.devices > 1 else ""


def _memory(plan: DeploymentPlan) -> DocumentTable:
    """Return a plan's memory budget of a device as a table of subtractions."""
    m, setup = plan.memory, plan.case.setup
    rows = (
        ("memory", m.total, "as the driver shows it"),
        ("- reserve", m.total - m.budget, f"{1 - setup.utilization:.0%} of memory, which the engine leaves free"),
        ("- weights", m.weights, ""),
        ("- activations", m.activations, _activations(plan)),
        ("- overhead", m.overhead, _overhead(plan)),
        ("= left for KV", m.left, _pages(plan)),
    )
    cells = ((name, *_gib_and_gb(nbytes), note) for name, nbytes, note in rows)
    return DocumentTable(columns("", "GiB", "GB", "", words=(0, 3)), tuple(map(TableRow, cells)))


def _overhead(plan: DeploymentPlan) -> str:
    """Return a text that says what a plan's memory overhead consists of."""
    rule, recorded = plan.case.setup.engine.memory.describe(), plan.memory.recorded
    return f"{rule}; {recorded / 1e6:,.0f} MB of recorded decode steps (CUDA graphs)" if recorded else rule


def _activations(plan: DeploymentPlan) -> str:
    """Return a text that says which computation has the peak activations."""
    if plan.memory.sampler == plan.memory.activations:
        return f"those of the sampler, for the logits of {plan.memory.logit_rows:,} requests"
    return f"those of a step of {max(plan.workload.step_tokens, plan.workload.encoder_step):,} tokens"


def _pages(plan: DeploymentPlan) -> str:
    m = plan.memory
    line = m.layout.taken()
    if not m.fits:
        return line
    # If the model has recurrent states, a page holds a state or positions, so the token capacity depends on the
    # requests.
    pages = f"{m.page_bytes:,} bytes" if m.state_bytes else f"{m.page_size} = {m.kv_tokens:,} tokens"
    return (
        f"{line}: {m.pages:,} pages of {pages}\nmaximum concurrency for {m.request_tokens:,} tokens: "
        f"{m.concurrency:,.2f}x{_concurrent_on(plan)}"
    )


def _concurrent_on(plan: DeploymentPlan) -> str:
    """Return the devices that hold the requests of the maximum concurrency, if there are several; otherwise ""."""
    if plan.memory.ranks > 1:
        return " per device"
    devices = plan.case.setup.devices
    return f", each spread over the {devices} devices" if devices > 1 else ""


def _weights(plan: DeploymentPlan) -> DocumentTable:
    """Return the weights by part and format, with parameters of the whole model and bytes of one device."""
    whole = plan.whole
    rows = []
    for row in plan.weights:
        count = whole.parameters[row.part]
        share, sizes = f"{count / whole.total:.1%}", _gib_and_gb(row.nbytes)
        rows.append(TableRow((row.part, row.format, f"{count:,}", share, *sizes)))
    total = sum(row.nbytes for row in plan.weights)
    rows.append(TableRow(("all", "", f"{whole.total:,}", "", *_gib_and_gb(total)), "strong"))
    if whole.active != whole.total:
        rows.append(TableRow(("active per token", "", f"{whole.active:,}", f"{whole.active / whole.total:.1%}")))
    return DocumentTable(
        columns("part", "format", "parameters", "share", "GiB per device", "GB per device", words=(0, 1)), tuple(rows)
    )


def _gib_and_gb(nbytes: float) -> tuple[str, str]:
    return gib_cell(gib(nbytes)), gb_cell(gb(nbytes))


def _times(plan: DeploymentPlan) -> DocumentTable:
    """Return floor, bound and expected times of the requested batch, and of the load that the summary reports."""
    rows: list[TableRow | str] = [*_batch_times(plan)]
    if plan.capacity.users and plan.memory.fits:
        rows += ["", *_load_times(plan, plan.reported_load)]
    return DocumentTable(columns("", "floor", "bound", "expected", "8 of 10 measurements", words=(0, 4)), tuple(rows))


def _batch_times(plan: DeploymentPlan) -> Iterator[TableRow]:
    batch, workload, intervals = plan.workload.batch, plan.workload, plan.intervals
    prompts = "a prompt" if batch == 1 else f"{batch:,} prompts at once"
    step, decode, static = plan.decode.seconds, intervals["decode"], intervals["static"]
    prefill, last = intervals["prefill"], "" if batch == 1 else " of the last"
    if batch > 1:
        yield _seconds(f"mean TTFT, {prompts} of {workload.given:,}", plan.load.ttft_synchronised, prefill)
    yield _seconds(f"TTFT{last}, {prompts} of {workload.given:,}", plan.prefill.seconds, prefill)
    yield _seconds(f"ITL, batch {batch:,}", step, decode)
    yield _rate("tok/s per user", step.per_second(1), decode)
    if batch > 1:
        yield _rate("tok/s in total, decode only", step.per_second(batch), decode)
        yield _rate("tok/s in total, prefill included", plan.request.per_second(batch * workload.output), static)
    yield _seconds(f"all {workload.output:,} tokens", plan.request, static)


def _load_times(plan: DeploymentPlan, load: LoadEstimate) -> Iterator[TableRow]:
    serving, decode = plan.intervals["load"], plan.intervals["decode"]
    users = f"{describe_users(load.users)}{on_each_replica(plan)}"
    yield _seconds(f"mean TTFT, {users}, steady state", load.ttft, serving)
    yield _seconds("mean TTFT, if all arrive at once", load.ttft_synchronised, serving)
    yield _seconds("ITL, no prefill in between", load.itl, decode)
    yield _seconds("TPOT, prefills in between", load.tpot, serving)
    if load.waits is not None:
        yield _seconds("TPOT, prompts on all devices at once", load.waits.tpot_together, serving)
        yield _seconds("TPOT, on one device after the other", load.waits.tpot_apart, serving)
    yield _rate("tok/s per user", load.tokens_per_user, serving)
    replica = " of one replica" * bool(on_each_replica(plan))
    yield _rate(f"tok/s{replica or ' in total'}", load.tokens_per_second, serving)
    yield _rate(f"requests/s{replica}", load.requests_per_second, serving)


def _seconds(name: str, e: Estimate, interval: ErrorInterval) -> TableRow:
    times = (say_seconds(value) for value in (e.floor, e.bound, e.expected))
    return TableRow((name, *times, time_interval(interval, e.expected, e.floor)))


def _rate(name: str, e: Estimate, interval: ErrorInterval) -> TableRow:
    rates = (three_digits(value) for value in (e.floor, e.bound, e.expected))
    return TableRow((name, *rates, rate_interval(interval, e.expected, e.floor)))


def _loading(plan: DeploymentPlan) -> DocumentTable:
    """Return the minimum loading times from the page cache and from each disk."""
    device, whole = plan.case.setup.device, say_gb(gb(plan.whole.nbytes))
    rows = (
        TableRow((f"from {name}", *map(_seconds_or_nothing, (start.read, start.copy)), *_both(start)))
        for name, start in plan.loading.items()
    )
    copy = "the catalogue has no host link of this device"
    if device.kind == "cpu":
        copy = "a CPU uses the mapped file without a copy"
    elif device.host_link is not None:
        copy = f"{say_gb(gb(plan.memory.weights))}{' to each device' * (plan.case.setup.devices > 1)} at "
        copy += f"{three_digits(device.host_link / 1e9)} GB/s"
    speeds = ", ".join(f"{three_digits(disk.bandwidth / 1e9)} GB/s" for disk in disks())
    notes = (f"{whole} from the disk (sequential reads at {speeds}); copy: {copy}",)
    return DocumentTable(
        columns("", "disk", "to the device", "overlapped", "in sequence", words=(0,)), tuple(rows), notes
    )


def _seconds_or_nothing(value: float | None) -> str:
    return say_seconds(value) if value else ""


def _both(start: ColdStart) -> tuple[str, str]:
    """Return the overlapped and the sequential loading time, or empty cells if the copy time is unknown."""
    if start.copy is None:
        return "", ""
    return _seconds_or_nothing(start.overlapped), _seconds_or_nothing(start.sequential)


def _users(plan: DeploymentPlan) -> DocumentTable:
    """Return the users of each load by Little's law: requests per second times seconds per request."""
    loads = {"within targets": plan.capacity.load} if plan.capacity.users else {}
    if plan.fleet is not None:
        loads["as requested"] = plan.fleet.load
    if plan.memory.fits:
        loads["memory full"] = plan.fullest
    rows = (_little(name, load, plan.workload.output) for name, load in loads.items())
    heads = ("", "users", "=", "requests/s", "x", "seconds each", "TTFT", "TPOT", "tok/s each", "total")
    which = "one replica" if on_each_replica(plan) else "the deployment"
    trusted = describe_factors("under load", plan.intervals["load"])
    note = f"expected figures of {which}; {trusted}; within targets: the most users that meet them"
    if plan.memory.fits:
        note += f"; memory full: {describe_held(plan)}"
    return DocumentTable(columns(*heads), tuple(rows), (note,))


def _little(name: str, load: LoadEstimate, output: int) -> TableRow:
    rate = load.requests_per_second.expected
    return TableRow((
        name, f"{load.users:,}", "=", three_digits(rate), "x", three_digits(load.users / rate),
        say_seconds(load.ttft.expected),
        say_seconds(load.tpot.expected), three_digits(load.tokens_per_user.expected),
        three_digits(load.tokens_per_second.expected),
    ))  # fmt: skip


def phases_table(phases: Sequence[PhasePrice]) -> DocumentTable:
    """Return a table of each phase's FLOPs, bytes, ideal times, intensity and roof.

    The bytes between devices have a row per collective.
    """
    rows = [
        ("arithmetic", *(say(p.flops, "FLOP") for p in phases)),
        ("weights read", *(say_gb(gb(p.weight_bytes)) for p in phases)),
        ("KV read", *(say_gb(gb(p.kv_read_bytes)) for p in phases)),
        ("KV written", *(say(p.kv_write_bytes, "B") for p in phases)),
        ("activations", *(say(p.activation_bytes, "B") for p in phases)),
        ("arithmetic time", *(say_seconds(p.arithmetic) for p in phases)),
        ("weights and KV time", *(say_seconds(p.memory) for p in phases)),
    ]
    for name in dict.fromkeys(name for p in phases for name in p.communication):
        moved = (p.communication.get(name, 0.0) for p in phases)
        rows.append((f"{name.replace('_', '-')} between devices", *(say(nbytes, "B") for nbytes in moved)))
    rows.append(("FLOP per byte", *(f"{three_digits(p.intensity)} (ridge {three_digits(p.ridge)})" for p in phases)))
    rows.append(("roof", *(_roof(p) for p in phases)))
    return DocumentTable(columns("", *(_phase_head(p) for p in phases)), tuple(map(TableRow, rows)))


def _phase_head(phase: PhasePrice) -> str:
    """Return the heading of a phase, such as `decode, 1 x 1 token at 1,152`."""
    return f"{phase.name}, {phase.about}" if phase.about else phase.name


def _roof(phase: PhasePrice) -> str:
    if phase.limit == "memory":
        return f"memory, {three_digits(1 / phase.balance)} x under the ridge"
    if phase.limit == "compute":
        return f"compute, {three_digits(phase.balance)} x over the ridge"
    return "the link between devices"


def classes_table(phases: Sequence[PhasePrice], note: str) -> DocumentTable:
    """Return a table of the seconds that each kernel class takes in each phase.

    Args:
        phases: The phases.
        note: A note on the interval of expected times.
    """
    heads = [Column("", words=True)]
    for phase in phases:
        heads += [Column("bound", group=phase.name), Column("expected", group=phase.name)]
        heads.append(Column("roof", words=True, group=phase.name))
    by_kind = [{row.kind: row for row in phase.classes} for phase in phases]
    kinds = dict.fromkeys(kind for rows in by_kind for kind in rows)
    cells = ((kind, *(cell for rows in by_kind for cell in _class_cells(rows.get(kind)))) for kind in kinds)
    return DocumentTable(tuple(heads), tuple(map(TableRow, cells)), (note,))


def factors_note(intervals: Mapping[Kind, ErrorInterval], *kinds: Kind) -> str:
    """Return a note on the intervals of the expected times of a table: `8 of 10 measurements: decode x 0.71 ...`."""
    return f"8 of 10 measurements: {'; '.join(describe_factors(kind, intervals[kind]) for kind in kinds)}"


def _class_cells(row: ClassRow | None) -> tuple[str, str, str]:
    return ("", "", "") if row is None else (say_seconds(row.bound), say_seconds(row.expected), row.limit)


def _crossings(plan: DeploymentPlan) -> DocumentTable:
    """Return the critical batch size, prompt length and context length."""
    c, context = plan.crossings, f"{plan.workload.context:,} tokens of context"
    each = " on each device" * (plan.case.ranks > 1)
    batch, prompt, outweighs = c.critical_batch, c.compute_bound_prompt, c.kv_outweighs_weights
    decode = f"never at {context}: every sequence reads its own KV"
    if batch is not None:
        decode = f"at batch {math.ceil(batch):,} and above, with {context}"
    kv = "never: attention windows limit the KV read"
    if outweighs is not None:
        kv = f"at {outweighs:,} tokens of context and more, batch {plan.case.ranks}"
        if outweighs > plan.case.model.context:
            kv += f" (beyond the model's {plan.case.model.context:,})"
    prefill = "never" if prompt is None else f"at prompts of {prompt:,} tokens and more{each}"
    if plan.audio is not None:  # all audio windows have the same length
        prefill = f"an audio window is {_over(plan)} {'over' if plan.prefill.balance >= 1 else 'under'} the ridge"
    rows = (
        ("decode reaches the ridge", decode),
        ("prefill reaches the ridge", prefill),
        ("KV read outweighs weights", kv),
    )
    return DocumentTable(columns("", "", words=(0, 1)), tuple(map(TableRow, rows)))


def _over(plan: DeploymentPlan) -> str:
    """Return the distance of prefill from the ridge, such as `6.83 times`."""
    balance = plan.prefill.balance
    return f"{three_digits(balance if balance >= 1 else 1 / balance)} times"


def _scores(plan: DeploymentPlan) -> DocumentTable:
    """Return the traffic and time of attention with its score matrix in memory and without."""
    rows = (
        TableRow((
            f"{row.prompt:,}", say(row.flops, "FLOP"), say(row.nbytes, "B"), say_seconds(row.fused),
            say(row.score_bytes, "B"), say_seconds(row.unfused), f"x {three_digits(row.unfused / row.fused)}",
        ))
        for row in plan.scores
    )  # fmt: skip
    heads = ("prompt", "arithmetic", "q, k, v, out", "fused bound", "scores", "unfused bound", "slowdown")
    note = "all layers, one prompt in one pass; a fused kernel does not write the scores of queries and keys to memory"
    return DocumentTable(columns(*heads, words=()), tuple(rows), (note,))


def _sweep(plan: DeploymentPlan) -> DocumentTable:
    """Return the performance of decode steps, one row per batch size."""
    mixture = plan.sweep[0].experts is not None
    heads = ("batch", "ITL floor", "bound", "expected", "tok/s each", "total", "gain", "FLOP/B", "KV GiB", "fits")
    rows = []
    for row in plan.sweep:
        cells = (
            f"{row.batch:,}",
            *(say_seconds(t) for t in (row.itl.floor, row.itl.bound, row.itl.expected)),
            three_digits(1 / row.itl.expected),
            three_digits(row.tokens_per_second.expected),
            f"x {three_digits(row.gain)}",
            three_digits(row.intensity),
            gib_cell(gib(row.kv_bytes)),
            "yes" if row.fits else "no",
            *([three_digits(row.experts)] if row.experts is not None else []),
        )
        rows.append(TableRow(cells, "" if row.fits else "dim"))
    each = " on the fullest device" if plan.case.ranks > 1 else " on each device" if plan.case.setup.devices > 1 else ""
    note = f"KV{each} and fits: of requests that are all at their end, with {plan.memory.request_tokens:,} tokens"
    factors = factors_note(plan.intervals, "decode")
    return DocumentTable(
        columns(*heads, *(("experts read",) if mixture else ()), words=()), tuple(rows), (note, factors)
    )


def _changes(plan: DeploymentPlan) -> DocumentTable:
    """Return a table of the effects of possible changes and of doubled resources."""
    first = [plan.batching] if plan.batching is not None else []
    rows: list[TableRow | str] = [_change(plan, change) for change in (*first, *plan.levers)]
    rows += ["", *(_change(plan, change) for change in plan.sensitivities)]
    heads = ("", "TTFT", "tok/s per user", "users", "tok/s in total", "$/M tokens", "")
    notes = ("users, tok/s in total: of one replica with the most users within the targets",) * bool(
        on_each_replica(plan)
    )
    if plan.workload.batch > 1:
        notes += (f"TTFT: of the last of {plan.workload.batch:,} requests that arrive at once",)
    return DocumentTable(columns(*heads, words=(0, 6)), tuple(rows), notes)


def _factor(value: float) -> str:
    """Return a factor as text, such as `x 1.85`; values that round to 1 are `x 1.00`."""
    return f"x {1 if abs(value - 1) < 0.005 else value:.2f}" if 0.1 < value < 10 else f"x {three_digits(value)}"


def _change(plan: DeploymentPlan, change: Change) -> TableRow:
    factors = (1 / change.first, change.faster, change.users, change.throughput, change.cost)
    cells = ["" if factor is None else _factor(factor) for factor in factors]
    note = ("no kernel times" if without_kernels(plan, change) else "") if change.outcome.fits else "does not fit"
    if change.users is None and change.outcome.fits:
        users = change.outcome.users
        note = f"fits {describe_users(users)}" if users else "fits, but misses the targets"
    return TableRow((change.name, *cells, note))


# -- all of them ------------------------------------------------------------------------------------------------------


def _sweep_heading(plan: DeploymentPlan) -> str:
    what = "Batches" if plan.batches else "Batch sweep"
    return f"{what}: a decode step at {plan.workload.context:,} tokens of context; gain: bound compared with batch 1"


SECTIONS: Mapping[str, Callable[[DeploymentPlan], list[DocumentBlock]]] = MappingProxyType(
    {
        "words": lambda plan: [Paragraph(verdict(plan))],
        "memory": lambda plan: _headed(f"Memory{_each(plan)}", _memory(plan)),
        "weights": lambda plan: _headed("Weights", _weights(plan)),
        "time": lambda plan: _headed("Time", _times(plan)),
        "loading": lambda plan: _headed(
            "Minimum loading time: read and copy overlapped, or one after the other", _loading(plan)
        ),
        "users": lambda plan: _headed("Users = requests per second x seconds per request (Little's law)", _users(plan)),
        "steps": lambda plan: _headed(f"Work of a step{_each(plan)}", phases_table(plan.phases)),
        "classes": lambda plan: _headed(
            "Time by operation class, and the roof that limits it",
            classes_table(plan.phases, factors_note(plan.intervals, "prefill", "decode")),
        ),
        "turns": lambda plan: _headed("Crossover points", _crossings(plan)),
        "attention": lambda plan: _headed(
            f"Attention without (fused kernel) and with its score matrix in memory{_each(plan)}", _scores(plan)
        ),
        "sweep": lambda plan: _headed(_sweep_heading(plan), _sweep(plan)),
        "levers": lambda plan: _headed(
            "Effects of changes (factors relative to this plan, expected times)", _changes(plan)
        ),
        "terms": lambda plan: [Facts(tuple(DEFINITIONS.items()), "dim")],
    }
)
"""The sections that users can request by name, in the order of --full."""
