"""A plan as a document: the answer first, then what it rests on."""

import math
from collections.abc import Iterator, Sequence

from ridgeline.document.numbers import gb, gib, say, say_gb, say_gib, say_seconds, three
from ridgeline.document.page import Block, Column, Document, Facts, Heading, Paragraph, Row, Table, columns
from ridgeline.roofline.plan.alternatives import CaseOutcome, Change
from ridgeline.roofline.plan.memory import OVERHEAD_RULE
from ridgeline.roofline.plan.phases import ClassRow, Estimate, PhasePrice
from ridgeline.roofline.plan.plan import Plan
from ridgeline.roofline.plan.words import DEFINITIONS, lacking, scarcest, trust, users_in_words, verdict


def plan_document(plan: Plan) -> Document:
    """Everything that a plan says."""
    case, workload = plan.case, plan.workload
    title = (
        f"{plan.name} on {case.setup.devices} x {case.device.title}: {case.weights} weights, {case.kv} KV, "
        f"{workload.input:,} tokens in, {workload.output:,} out"
    )
    sections = (block for heading, table in _sections(plan) for block in (Heading(heading), table))
    blocks: tuple[Block, ...] = (
        Facts(tuple(answer(plan))),
        Paragraph(verdict(plan)),
        *sections,
        Facts(tuple(DEFINITIONS.items()), "dim"),
    )
    return Document(title, blocks, "" if case.device.calibrated else trust(case.device))


# -- the answer -------------------------------------------------------------------------------------------------------


def answer(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a reader came for: does it fit, how many users, how fast, what limits, what it costs."""
    memory, capacity = plan.memory, plan.capacity
    yield "fits", _fits(plan)
    if capacity.users:
        rate = capacity.load.requests_per_second.expected
        yield "users", f"{capacity.users:,} at once, {three(rate)} requests/s; {_stops(plan)}{_hint(plan)}"
    elif memory.fits:
        yield "users", f"none within the targets: {_stops(plan)}"
    yield "speed", _speed(plan)
    yield "limit", _limit(plan)
    yield "cost", _cost(plan)
    yield from (("note", note) for note in plan.case.notes)


def _fits(plan: Plan) -> str:
    memory = plan.memory
    if not memory.fits:
        return f"NO: {lacking(plan)}"
    return (
        f"yes: of {say_gib(gib(memory.budget))} usable a card, weights take {say_gib(gib(memory.weights))} and "
        f"{say_gib(gib(memory.left))} are left for KV"
    )


def _hint(plan: Plan) -> str:
    if plan.capacity.users < 2 or plan.workload.ttft or plan.workload.tpot:
        return ""
    return "; targets like --ttft 1s --tpot 50ms give the users of an interactive service"


def _stops(plan: Plan) -> str:
    capacity, workload = plan.capacity, plan.workload
    if capacity.limit == "memory":
        return "one more does not fit in memory"
    if capacity.limit == "step":
        return "a decode step has positions for no more; raise --max-batch-tokens"
    wanted = workload.ttft if capacity.limit == "ttft" else workload.tpot
    assert wanted is not None
    name = capacity.limit.upper()
    if capacity.users:
        return f"one more would miss the {name} target of {say_seconds(wanted)}"
    got = capacity.load.ttft if capacity.limit == "ttft" else capacity.load.tpot
    return f"a single user gets a {name} of {say_seconds(got.expected)}, {say_seconds(wanted)} is wanted"


def _speed(plan: Plan) -> str:
    batch, load = plan.workload.batch, plan.capacity.load
    first, step = plan.prefill.seconds.expected, plan.decode.seconds.expected
    line = f"{users_in_words(batch)}: first token in {say_seconds(first)}, then {three(1 / step)} tok/s"
    if batch > 1:
        whole = batch * plan.workload.output / plan.request.expected
        line += f" each, {three(whole)} in total, prefill included"
    if plan.capacity.users > 1:
        each, everyone = load.tokens_per_user.expected, load.tokens_per_second.expected
        line += f"; {load.users:,} users under way: {three(each)} tok/s each, {three(everyone)} in total"
    return line


def _limit(plan: Plan) -> str:
    phase, scarce = plan.decode, scarcest(plan)
    intensity = f"{three(phase.intensity)} FLOP a byte"
    far = {
        "memory": f"memory bandwidth, {intensity}, {three(1 / phase.balance)} x under the ridge",
        "compute": f"arithmetic, {intensity}, {three(phase.balance)} x over the ridge",
        "communication": "the link between the cards",
    }
    batch, users = plan.workload.batch, plan.capacity.users
    line = f"{users_in_words(batch)}: {far[phase.limit]}"
    if users <= batch:
        return line
    gain = "doubling no one resource would help noticeably"
    if scarce is not None:
        gain = f"{scarce.name} helps most, x {three(scarce.throughput or 1)} tokens"
    return f"{line}; {users:,} users: {gain}"


def _cost(plan: Plan) -> str:
    price = plan.case.setup.price or plan.case.device.price
    if price is None:
        return "no price is known for this card; give --price"
    hourly = f"${price.dollars:g} a card and hour ({price.date}, {price.source})"
    if plan.dollars_per_million is None:
        return hourly
    return f"${three(plan.dollars_per_million)} a million output tokens, prompts included, at that load; {hourly}"


# -- the tables -------------------------------------------------------------------------------------------------------


def _sections(plan: Plan) -> Iterator[tuple[str, Table]]:
    """Each table with its heading."""
    cards = plan.case.setup.devices
    each = " (of one card)" if cards > 1 else ""
    yield f"Memory{each}", _memory(plan)
    yield "Weights", _weights(plan)
    yield "Time", _times(plan)
    yield f"What a step does{each}", phases_table(plan.phases)
    yield "By class of operation, and the roof it is under", classes_table(plan.phases)
    yield "Where it turns", _crossings(plan)
    yield (
        f"Batch sweep: a decode step at {plan.workload.context:,} tokens of context; gain in bound over batch 1",
        _sweep(plan),
    )
    yield "What would change it (factors on the plan as asked, expected)", _changes(plan)
    if plan.cards is not None:
        yield "Every card of the catalogue, cheapest tokens first (expected)", _catalogue(plan.cards, cards)


def _memory(plan: Plan) -> Table:
    """Subtraction by subtraction."""
    m, setup = plan.memory, plan.case.setup
    rows = (
        ("memory", m.total, "as the driver shows it"),
        ("- reserve", m.total - m.budget, f"{1 - setup.utilization:.0%} of it, kept for others"),
        ("- weights", m.weights, ""),
        ("- activations", m.activations, f"of a step of {plan.workload.step_tokens:,} tokens"),
        ("- overhead", m.overhead, OVERHEAD_RULE),
        ("= left for KV", m.left, _pages(plan)),
    )
    cells = ((name, f"{gib(nbytes):,.2f}", f"{gb(nbytes):,.2f}", note) for name, nbytes, note in rows)
    return Table(columns("", "GiB", "GB", "", words=(0, 3)), tuple(map(Row, cells)))


def _pages(plan: Plan) -> str:
    m = plan.memory
    line = f"{m.kv_bytes_per_token:,.0f} bytes a token"
    if not m.fits:
        return line
    return (
        f"{line}: {m.pages:,} pages of {m.page_size} = {m.kv_tokens:,} tokens\n"
        f"maximum concurrency for {m.request_tokens:,} tokens: {m.concurrency:,.2f}x"
    )


def _weights(plan: Plan) -> Table:
    """By part and format: parameters of the whole model, bytes of one card."""
    whole = plan.whole
    rows = []
    for row in plan.weights:
        count = whole.parameters[row.part]
        share, sizes = f"{count / whole.total:.1%}", _gib_and_gb(row.nbytes)
        rows.append(Row((row.part, row.format, f"{count:,}", share, *sizes)))
    total = sum(row.nbytes for row in plan.weights)
    rows.append(Row(("all", "", f"{whole.total:,}", "", *_gib_and_gb(total)), "strong"))
    if whole.active != whole.total:
        rows.append(Row(("active for a token", "", f"{whole.active:,}", f"{whole.active / whole.total:.1%}")))
    return Table(columns("part", "format", "parameters", "share", "GiB a card", "GB a card", words=(0, 1)), tuple(rows))


def _gib_and_gb(nbytes: float) -> tuple[str, str]:
    return f"{gib(nbytes):,.2f}", f"{gb(nbytes):,.2f}"


def _times(plan: Plan) -> Table:
    """floor, bound and expected side by side: of the batch that was asked about, then of the most users."""
    rows: list[Row | str] = [*_batch_times(plan)]
    if plan.capacity.users and plan.memory.fits:
        rows += ["", *_load_times(plan)]
    return Table(columns("", "floor", "bound", "expected"), tuple(rows))


def _batch_times(plan: Plan) -> Iterator[Row]:
    batch, workload = plan.workload.batch, plan.workload
    prompts = "a prompt" if batch == 1 else f"{batch:,} prompts at once"
    step = plan.decode.seconds
    yield _seconds(f"TTFT, {prompts} of {workload.input:,}", plan.prefill.seconds)
    yield _seconds(f"ITL, batch {batch:,}", step)
    yield _rate("tok/s a user", step.per_second(1))
    if batch > 1:
        yield _rate("tok/s in total, decode alone", step.per_second(batch))
        yield _rate("tok/s in total, prefill included", plan.request.per_second(batch * workload.output))
    yield _seconds(f"all {workload.output:,} tokens", plan.request)


def _load_times(plan: Plan) -> Iterator[Row]:
    load = plan.capacity.load
    yield _seconds(f"TTFT, {users_in_words(load.users)} under way", load.ttft)
    yield _seconds("ITL, no prefill in between", load.itl)
    yield _seconds("TPOT, prefills in between", load.tpot)
    yield _rate("tok/s a user", load.tokens_per_user)
    yield _rate("tok/s in total", load.tokens_per_second)
    yield _rate("requests/s", load.requests_per_second)


def _seconds(name: str, e: Estimate) -> Row:
    return Row((name, *(say_seconds(value) for value in (e.floor, e.bound, e.expected))))


def _rate(name: str, e: Estimate) -> Row:
    return Row((name, *(three(value) for value in (e.floor, e.bound, e.expected))))


def phases_table(phases: Sequence[PhasePrice]) -> Table:
    """What each phase does: FLOPs, bytes, intensity, roof. Bytes between cards by collective."""
    rows = [
        ("arithmetic", *(say(p.flops, "FLOP") for p in phases)),
        ("weights read", *(say_gb(gb(p.weight_bytes)) for p in phases)),
        ("KV read", *(say_gb(gb(p.kv_read_bytes)) for p in phases)),
        ("KV written", *(say(p.kv_write_bytes, "B") for p in phases)),
        ("activations", *(say(p.activation_bytes, "B") for p in phases)),
    ]
    for name in dict.fromkeys(name for p in phases for name in p.communication):
        moved = (p.communication.get(name, 0.0) for p in phases)
        rows.append((f"{name.replace('_', '-')} between cards", *(say(nbytes, "B") for nbytes in moved)))
    rows.append(("FLOP a byte", *(f"{three(p.intensity)} (ridge {three(p.ridge)})" for p in phases)))
    rows.append(("roof", *(_roof(p) for p in phases)))
    return Table(columns("", *(_phase_head(p) for p in phases)), tuple(map(Row, rows)))


def _phase_head(phase: PhasePrice) -> str:
    """`decode, 1 x 1 token at 1,152`."""
    return f"{phase.name}, {phase.about}" if phase.about else phase.name


def _roof(phase: PhasePrice) -> str:
    if phase.limit == "memory":
        return f"memory, {three(1 / phase.balance)} x under the ridge"
    return f"compute, {three(phase.balance)} x over the ridge" if phase.limit == "compute" else "the link between cards"


def classes_table(phases: Sequence[PhasePrice]) -> Table:
    """Where the time of each phase goes."""
    heads = [Column("", words=True)]
    for phase in phases:
        heads += [Column("bound", group=phase.name), Column("expected", group=phase.name)]
        heads.append(Column("roof", words=True, group=phase.name))
    by_kind = [{row.kind: row for row in phase.classes} for phase in phases]
    kinds = dict.fromkeys(kind for rows in by_kind for kind in rows)
    cells = ((kind, *(cell for rows in by_kind for cell in _class_cells(rows.get(kind)))) for kind in kinds)
    return Table(tuple(heads), tuple(map(Row, cells)))


def _class_cells(row: ClassRow | None) -> tuple[str, str, str]:
    return ("", "", "") if row is None else (say_seconds(row.bound), say_seconds(row.expected), row.limit)


def _crossings(plan: Plan) -> Table:
    """Critical batch, prompt and context."""
    c, context = plan.crossings, f"{plan.workload.context:,} tokens of context"
    batch, prompt, outweighs = c.critical_batch, c.compute_bound_prompt, c.kv_outweighs_weights
    decode = f"never at {context}: every sequence brings KV of its own"
    if batch is not None:
        decode = f"from batch {math.ceil(batch):,} on at {context}"
    kv = "never: windows keep it below"
    if outweighs is not None:
        kv = f"from {outweighs:,} tokens of context on, batch 1"
        if outweighs > plan.case.model.context:
            kv += f" (beyond the model's {plan.case.model.context:,})"
    rows = (
        ("decode reaches the ridge", decode),
        ("prefill reaches the ridge", "never" if prompt is None else f"from a prompt of {prompt:,} tokens on"),
        ("KV read outweighs weights", kv),
    )
    return Table(columns("", "", words=(0, 1)), tuple(map(Row, rows)))


def _sweep(plan: Plan) -> Table:
    """One row a batch."""
    mixture = plan.sweep[0].experts is not None
    heads = ("batch", "ITL floor", "bound", "expected", "tok/s each", "total", "gain", "FLOP/B", "KV GiB", "fits")
    rows = []
    for row in plan.sweep:
        cells = (
            f"{row.batch:,}",
            *(say_seconds(t) for t in (row.itl.floor, row.itl.bound, row.itl.expected)),
            three(1 / row.itl.expected),
            three(row.tokens_per_second.expected),
            f"x {three(row.gain)}",
            three(row.intensity),
            f"{gib(row.kv_bytes):,.2f}",
            "yes" if row.fits else "no",
            *([three(row.experts)] if row.experts is not None else []),
        )
        rows.append(Row(cells, "" if row.fits else "dim"))
    return Table(columns(*heads, *(("experts hit",) if mixture else ()), words=()), tuple(rows))


def _changes(plan: Plan) -> Table:
    """Levers and sensitivities."""
    first = [plan.batching] if plan.batching is not None else []
    rows: list[Row | str] = [_change(change) for change in (*first, *plan.levers)]
    rows += ["", *map(_change, plan.sensitivities)]
    heads = ("", "TTFT", "tok/s a user", "users", "tok/s in total", "$/M tokens", "")
    return Table(columns(*heads, words=(0, 6)), tuple(rows))


def _change(change: Change) -> Row:
    cells = [f"x {three(1 / change.first)}", f"x {three(change.faster)}"]
    cells += ["" if value is None else f"x {three(value)}" for value in (change.users, change.throughput, change.cost)]
    note = "" if change.outcome.fits else "does not fit"
    if change.users is None and change.outcome.fits:
        users = change.outcome.users
        note = f"fits {users_in_words(users)}" if users else "fits, but misses the targets"
    return Row((change.name, *cells, note))


def _catalogue(outcomes: Sequence[CaseOutcome], devices: int) -> Table:
    """One row a card on which it fits; so many `devices` of each, but for those that nothing known joins."""
    rows = (
        (
            o.card,
            f"{o.devices}" if o.linked or o.devices == devices else f"no link known: {o.devices}",
            f"{o.users:,}",
            say_seconds(o.ttft),
            say_seconds(o.itl),
            "" if o.tokens_per_second is None else three(o.tokens_per_second),
            "" if o.dollars_per_hour is None else f"{o.dollars_per_hour:.2f}",
            "" if o.dollars_per_million is None else three(o.dollars_per_million),
        )
        for o in outcomes
        if o.fits
    )
    heads = columns("card", "cards", "users", "TTFT", "ITL", "tok/s in total", "$/h", "$/M tokens")
    return Table(heads, tuple(map(Row, rows)), (_prices(outcomes), _unable(outcomes)))


def _prices(outcomes: Sequence[CaseOutcome]) -> str:
    """How far the order by price can be trusted."""
    dates = sorted({o.price.date for o in outcomes if o.price and o.price.date[:2] == "20"})
    when = f" of {dates[0]} to {dates[-1]}" if len(dates) > 1 else ""
    return (
        f"$/h are prices of different sellers{when}, as --json names them: the order ranks these offers, not the "
        "hardware; cards without a price come last"
    )


def _unable(outcomes: Sequence[CaseOutcome]) -> str:
    """The others, in a line."""
    lacking = [f"{o.devices} x {o.card} by {gib(o.missing_bytes):,.1f}" for o in outcomes if not o.fits]
    return f"does not fit, by GiB a card: {', '.join(lacking)}" if lacking else "it fits on every card"
