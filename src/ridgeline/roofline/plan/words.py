"""A plan in words: which resource is the limit, how far, and which lever moves it."""

from collections.abc import Iterator, Sequence

from ridgeline.roofline.plan.case import Setup
from ridgeline.roofline.plan.levers import Change
from ridgeline.roofline.plan.plan import Plan
from ridgeline.roofline.plan.units import gb, gib, show_count, show_gb, show_gib, show_seconds, three

# A factor that changes nothing a user would notice.
_NOTICED = 1.03


def verdict(plan: Plan) -> str:
    """One paragraph."""
    return " ".join((*_fit(plan), *_decode(plan), *_batch(plan), *_load(plan), *_levers(plan)))


def ways_in_words(ways: Sequence[Setup]) -> str:
    """`it would with fp8 weights on 8 cards, or on 16 cards`."""
    if not ways:
        return "neither more cards nor int4 weights make it fit"
    return "it would " + ", or ".join(
        (f"with {way.weights} weights " if way.weights else "") + f"on {way.devices} card{'s' * (way.devices > 1)}"
        for way in ways
    )


def _fit(plan: Plan) -> Iterator[str]:
    if not plan.memory.fits:
        yield (
            f"It does not fit: each card lacks {show_gib(gib(plan.memory.missing))}; {ways_in_words(plan.ways)}. "
            "The rest is what it would do if it did."
        )


def _decode(plan: Plan) -> Iterator[str]:
    phase, batch = plan.decode, plan.workload.batch
    who = "one user" if batch == 1 else f"{batch:,} users"
    work = (
        f"Decoding for {who}, a card computes {show_count(phase.flops, 'FLOP')} and reads "
        f"{show_gb(gb(phase.memory_bytes))} a step: {three(phase.intensity)} FLOP a byte, where it turns at "
        f"{three(phase.ridge)}."
    )
    if phase.limit == "compute":
        yield f"{work} Arithmetic is the limit, {three(phase.balance)} x over the ridge."
    elif phase.limit == "memory":
        yield (
            f"{work} Memory bandwidth is the limit, {three(1 / phase.balance)} x under the ridge: the arithmetic units "
            f"idle {phase.idle:.1%} of the time."
        )
    else:
        yield f"{work} The link between the cards is the limit."


def _batch(plan: Plan) -> Iterator[str]:
    critical, lever = plan.crossings.critical_batch, plan.batching
    context = f"{plan.workload.context:,} tokens of context"
    if plan.decode.limit == "memory" and critical is None:
        yield f"No batch changes that at {context}, because every sequence brings KV of its own."
    elif plan.decode.limit == "memory" and critical is not None:
        yield f"At {context} a batch of {critical:,.0f} would reach the ridge."
    if lever is not None and lever.throughput is not None and plan.memory.fits:
        load = plan.capacity.load
        yield (
            f"Batching is the free lever: {plan.capacity.users:,} users make {three(lever.throughput)} x the tokens "
            f"({three(load.tokens_per_second.expected)} a second), each of them at "
            f"{three(load.tokens_per_user.expected)} a second ({show_seconds(load.tpot.expected)} a token)."
        )


def _load(plan: Plan) -> Iterator[str]:
    scarce = scarcest(plan)
    if scarce is None:
        return
    listed = ", ".join(f"{c.name.removeprefix('twice the ')} x {three(c.throughput or 1)}" for c in plan.sensitivities)
    advice = f"{scarce.name.removeprefix('twice the ')} is what to buy" if _gain(scarce) >= _NOTICED else "none pays"
    yield (
        f"With {_users(plan.capacity.users)} prefill takes {plan.capacity.load.prefill_share:.0%} of the time. "
        f"Twice of one thing would bring, in tokens in all: {listed}; {advice}."
    )


def scarcest(plan: Plan) -> Change | None:
    """What a card with twice of it would gain most by, at the most users; None where there is not one."""
    if not plan.capacity.users:
        return None
    return max(plan.sensitivities, key=lambda change: change.throughput or 0.0)


def _levers(plan: Plan) -> Iterator[str]:
    moved = [change for change in plan.levers if _gain(change) >= _NOTICED]
    own = sorted((c for c in moved if c.outcome.card == plan.case.device.name), key=_gain, reverse=True)
    others = [c for c in moved if c.outcome.card != plan.case.device.name]
    if own:
        yield "On this card: " + "; ".join(_lever(change) for change in own) + "."
    if others:
        yield "Other cards: " + "; ".join(_lever(change) for change in others) + "."


def _lever(change: Change) -> str:
    """`fp8 KV makes x 1.41 tokens in all, x 1.02 a user alone`."""
    alone = f"x {three(change.faster)} for a user alone"
    if change.throughput is not None:
        return f"{change.name} x {three(change.throughput)} tokens in all, {alone}"
    return f"{change.name} {'fits ' + _users(change.outcome.users) + ', ' if change.outcome.fits else ''}{alone}"


def _gain(change: Change) -> float:
    return max(change.throughput or 0.0, change.faster)


def _users(count: int) -> str:
    return "one user" if count == 1 else f"{count:,} users"
