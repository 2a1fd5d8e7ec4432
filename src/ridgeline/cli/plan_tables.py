"""The tables of a plan."""

import math
from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from ridgeline.document.numbers import say, say_seconds, three
from ridgeline.roofline.plan import Plan
from ridgeline.roofline.plan.estimate import Estimate
from ridgeline.roofline.plan.levers import Change
from ridgeline.roofline.plan.memory import OVERHEAD_RULE
from ridgeline.roofline.plan.outcome import Outcome
from ridgeline.roofline.plan.phases import Phase
from ridgeline.roofline.plan.units import gb, gib, show_gb
from ridgeline.roofline.plan.words import users_in_words


def sections(plan: Plan) -> Iterator[tuple[str, Table]]:
    """Each table with its title."""
    cards = plan.case.setup.devices
    each = " (of one card)" if cards > 1 else ""
    yield f"Memory{each}", memory(plan)
    yield "Weights", weights(plan)
    yield "Time", times(plan)
    yield f"What a step does{each}", phases(plan)
    yield "By class of operation, and the roof it is under", classes(plan)
    yield "Where it turns", crossings(plan)
    yield (
        f"Batch sweep: a decode step at {plan.workload.context:,} tokens of context; gain in bound over batch 1",
        sweep(plan),
    )
    yield "What would change it (factors on the plan as asked, expected)", changes(plan)
    if plan.cards is not None:
        yield "Every card of the catalogue, cheapest tokens first (expected)", catalogue(plan.cards, cards)


def memory(plan: Plan) -> Table:
    """Subtraction by subtraction."""
    m, setup = plan.memory, plan.case.setup
    table = _table("", "GiB", "GB", "", left=(0, 3))
    kept = f"{1 - setup.utilization:.0%} of it, kept for others"
    rows = (
        ("memory", m.total, "as the driver shows it"),
        ("- reserve", m.total - m.budget, kept),
        ("- weights", m.weights, ""),
        ("- activations", m.activations, f"of a step of {plan.workload.step_tokens:,} tokens"),
        ("- overhead", m.overhead, OVERHEAD_RULE),
        ("= left for KV", m.left, _pages(plan)),
    )
    for name, nbytes, note in rows:
        table.add_row(name, f"{gib(nbytes):,.2f}", f"{gb(nbytes):,.2f}", note)
    return table


def _pages(plan: Plan) -> str:
    m = plan.memory
    line = f"{m.kv_bytes_per_token:,.0f} bytes a token"
    if not m.fits:
        return line
    return (
        f"{line}: {m.pages:,} pages of {m.page_size} = {m.kv_tokens:,} tokens\n"
        f"maximum concurrency for {m.request_tokens:,} tokens: {m.concurrency:,.2f}x"
    )


def weights(plan: Plan) -> Table:
    """By part and format: parameters of the whole model, bytes of one card."""
    whole = plan.whole
    table = _table("part", "format", "parameters", "share", "GiB a card", "GB a card", left=(0, 1))
    for row in plan.weights:
        count = whole.parameters[row.part]
        table.add_row(
            row.part, row.format, f"{count:,}", f"{count / whole.total:.1%}",
            f"{gib(row.nbytes):,.2f}", f"{gb(row.nbytes):,.2f}",
        )  # fmt: skip
    total = sum(row.nbytes for row in plan.weights)
    table.add_row("all", "", f"{whole.total:,}", "", f"{gib(total):,.2f}", f"{gb(total):,.2f}", style="bold")
    if whole.active != whole.total:
        table.add_row("active for a token", "", f"{whole.active:,}", f"{whole.active / whole.total:.1%}")
    return table


def times(plan: Plan) -> Table:
    """floor, bound and expected side by side."""
    batch, workload, load = plan.workload.batch, plan.workload, plan.capacity.load
    prompts = "a prompt" if batch == 1 else f"{batch:,} prompts at once"
    table = _table("", "floor", "bound", "expected", "", left=(0, 4))
    step, first = plan.decode.seconds, plan.prefill.seconds
    _seconds(table, f"TTFT, {prompts} of {workload.input:,}", first)
    _seconds(table, f"ITL, batch {batch:,}", step)
    _rate(table, "tok/s a user", step.per_second(1))
    if batch > 1:
        _rate(table, "tok/s in total, decode alone", step.per_second(batch))
        _rate(table, "tok/s in total, prefill included", plan.request.per_second(batch * workload.output))
    _seconds(table, f"all {workload.output:,} tokens", plan.request)
    if not plan.capacity.users or not plan.memory.fits:
        return table
    who = users_in_words(load.users)
    table.add_row()
    _seconds(table, f"TTFT, {who} under way", load.ttft)
    _seconds(table, "ITL, no prefill in between", load.itl)
    _seconds(table, "TPOT, prefills in between", load.tpot)
    _rate(table, "tok/s a user", load.tokens_per_user)
    _rate(table, "tok/s in total", load.tokens_per_second)
    _rate(table, "requests/s", load.requests_per_second)
    return table


def phases(plan: Plan) -> Table:
    """Prefill and decode: FLOPs, bytes, intensity, roof."""
    p, d = plan.prefill, plan.decode
    steps = f" in {p.steps:,} steps" if p.steps > 1 else ""
    prompts = f"{plan.workload.batch:,} x {plan.workload.input:,} tokens{steps}"
    table = _table("", f"prefill, {prompts}", f"decode, {d.tokens:,} x 1 token at {d.context:,}", left=(0,))
    rows = (
        ("arithmetic", say(p.flops, "FLOP"), say(d.flops, "FLOP")),
        ("weights read", show_gb(gb(p.weight_bytes)), show_gb(gb(d.weight_bytes))),
        ("KV read", show_gb(gb(p.kv_read_bytes)), show_gb(gb(d.kv_read_bytes))),
        ("KV written", say(p.kv_write_bytes, "B"), say(d.kv_write_bytes, "B")),
        ("activations", say(p.activation_bytes, "B"), say(d.activation_bytes, "B")),
        ("between cards", say(p.communication_bytes, "B"), say(d.communication_bytes, "B")),
        ("FLOP a byte", *(f"{three(x.intensity)} (ridge {three(x.ridge)})" for x in (p, d))),
        ("roof", _roof(p), _roof(d)),
    )
    for name, *cells in rows:
        if name != "between cards" or plan.case.setup.devices > 1:
            table.add_row(name, *cells)
    return table


def _roof(phase: Phase) -> str:
    if phase.limit == "memory":
        return f"memory, {three(1 / phase.balance)} x under the ridge"
    return f"compute, {three(phase.balance)} x over the ridge" if phase.limit == "compute" else "the link between cards"


def classes(plan: Plan) -> Table:
    """Where the time goes."""
    table = _table("", "prefill bound", "expected", "roof", "decode bound", "expected", "roof", left=(0, 3, 6))
    decode = {row.kind: row for row in plan.decode.classes}
    for row in plan.prefill.classes:
        cells: list[str] = []
        for one in (row, decode[row.kind]):
            cells += [say_seconds(one.bound), say_seconds(one.expected), one.limit]
        table.add_row(row.kind, *cells)
    return table


def crossings(plan: Plan) -> Table:
    """Critical batch, prompt and context."""
    c, context = plan.crossings, f"{plan.workload.context:,} tokens of context"
    table = _table("", "", left=(0, 1))
    table.show_header = False
    batch, prompt, outweighs = c.critical_batch, c.compute_bound_prompt, c.kv_outweighs_weights
    decode = f"never at {context}: every sequence brings KV of its own"
    if batch is not None:
        decode = f"from batch {math.ceil(batch):,} on at {context}"
    table.add_row("decode reaches the ridge", decode)
    table.add_row("prefill reaches the ridge", "never" if prompt is None else f"from a prompt of {prompt:,} tokens on")
    kv = "never: windows keep it below"
    if outweighs is not None:
        kv = f"from {outweighs:,} tokens of context on, batch 1"
        if outweighs > plan.case.model.context:
            kv += f" (beyond the model's {plan.case.model.context:,})"
    table.add_row("KV read outweighs weights", kv)
    return table


def sweep(plan: Plan) -> Table:
    """One row a batch."""
    mixture = plan.sweep[0].experts is not None
    head = ("batch", "ITL floor", "bound", "expected", "tok/s each", "total", "gain", "FLOP/B", "KV GiB", "fits")
    table = _table(*head, *(("experts hit",) if mixture else ()), left=())
    for row in plan.sweep:
        table.add_row(
            f"{row.batch:,}",
            *(say_seconds(t) for t in (row.itl.floor, row.itl.bound, row.itl.expected)),
            three(1 / row.itl.expected),
            three(row.tokens_per_second.expected),
            f"x {three(row.gain)}",
            three(row.intensity),
            f"{gib(row.kv_bytes):,.2f}",
            "yes" if row.fits else "no",
            *([three(row.experts)] if row.experts is not None else []),
            style="" if row.fits else "dim",
        )
    return table


def changes(plan: Plan) -> Table:
    """Levers and sensitivities."""
    table = _table("", "TTFT", "tok/s a user", "users", "tok/s in total", "$/M tokens", "", left=(0, 6))
    first = [plan.batching] if plan.batching is not None else []
    for change in (*first, *plan.levers):
        table.add_row(*_change(change))
    table.add_row()
    for change in plan.sensitivities:
        table.add_row(*_change(change))
    return table


def _change(change: Change) -> list[str]:
    cells = [f"x {three(1 / change.first)}", f"x {three(change.faster)}"]
    cells += ["" if value is None else f"x {three(value)}" for value in (change.users, change.throughput, change.cost)]
    note = "" if change.outcome.fits else "does not fit"
    if change.users is None and change.outcome.fits:
        users = change.outcome.users
        note = f"fits {users_in_words(users)}" if users else "fits, but misses the targets"
    return [escape(change.name), *cells, note]


def catalogue(outcomes: Sequence[Outcome], asked: int) -> Table:
    """One row a card on which it fits; `asked` of each, but for those that nothing known joins."""
    table = _table("card", "cards", "users", "TTFT", "ITL", "tok/s in total", "$/h", "$/M tokens", left=(0,))
    for o in (o for o in outcomes if o.fits):
        table.add_row(
            o.card,
            f"{o.devices}" if o.linked or o.devices == asked else f"no link known: {o.devices}",
            f"{o.users:,}",
            say_seconds(o.ttft),
            say_seconds(o.itl),
            "" if o.tokens_per_second is None else three(o.tokens_per_second),
            "" if o.dollars_per_hour is None else f"{o.dollars_per_hour:.2f}",
            "" if o.dollars_per_million is None else three(o.dollars_per_million),
        )
    return table


def prices(outcomes: Sequence[Outcome]) -> str:
    """How far the order by price can be trusted."""
    dates = sorted({o.price.date for o in outcomes if o.price and o.price.date[:2] == "20"})
    when = f" of {dates[0]} to {dates[-1]}" if len(dates) > 1 else ""
    return (
        f"$/h are prices of different sellers{when}, as --json names them: the order ranks these offers, not the "
        "hardware; cards without a price come last"
    )


def unable(outcomes: Sequence[Outcome]) -> str:
    """The others, in a line."""
    lacking = [f"{o.devices} x {o.card} by {gib(o.missing_bytes):,.1f}" for o in outcomes if not o.fits]
    return f"does not fit, by GiB a card: {', '.join(lacking)}" if lacking else "it fits on every card"


def _seconds(table: Table, name: str, e: Estimate) -> None:
    table.add_row(name, *(say_seconds(value) for value in (e.floor, e.bound, e.expected)))


def _rate(table: Table, name: str, e: Estimate) -> None:
    table.add_row(name, *(three(value) for value in (e.floor, e.bound, e.expected)))


def _table(*columns: str, left: Sequence[int]) -> Table:
    """A plain table; columns are flush right but for those in `left`."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right")
    return table
