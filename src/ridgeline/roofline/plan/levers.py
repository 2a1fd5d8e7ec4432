"""Levers: what could be different, each priced. And sensitivities: which resource is worth buying."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ridgeline.models import ModelRefused
from ridgeline.ops.formats import FORMATS
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import Setup, Shelf
from ridgeline.roofline.plan.fit import DEVICES, bits_of, eight_bits, narrower_weights
from ridgeline.roofline.plan.outcome import Outcome, outcome_of
from ridgeline.roofline.plan.serving import Serving


@dataclass(frozen=True, slots=True)
class Change:
    """One thing different, and what that brings: factors on the plan as asked, above 1 where more or faster.

    first: of the time to the first token; faster: of a user's tokens a second at the workload's batch; users and
    throughput: at the most users there may be; cost: of dollars a token. None where one side has no such figure.
    """

    name: str
    outcome: Outcome
    first: float
    faster: float
    users: float | None
    throughput: float | None
    cost: float | None


def changes(base: Outcome, named: Sequence[tuple[str, Outcome]]) -> list[Change]:
    """Outcomes beside the plan as asked."""
    return [
        Change(
            name,
            new,
            base.ttft / new.ttft,
            base.itl / new.itl,
            _ratio(new.users, base.users),
            _ratio(new.tokens_per_second, base.tokens_per_second),
            _ratio(new.dollars_per_million, base.dollars_per_million),
        )
        for name, new in named
    ]


def batch_lever(serving: Serving, base: Outcome) -> Change | None:
    """From the workload's batch to the most users; None where that is no more."""
    batch, most = serving.workload.batch, serving.capacity
    if most.users <= batch:
        return None
    before, after = serving.load(batch), most.load
    return Change(
        f"batch {most.users:,} instead of {batch:,}",
        base,
        serving.together(batch).expected / serving.together(most.users).expected,
        serving.itl(batch).expected / serving.itl(most.users).expected,
        most.users / batch,
        after.tokens_per_second.expected / before.tokens_per_second.expected,
        before.tokens_per_second.expected / after.tokens_per_second.expected,
    )


def levers(shelf: Shelf, serving: Serving, base: Outcome, others: Sequence[Outcome]) -> list[Change]:
    """Narrower weights, narrower KV, twice the cards; the fastest and the cheapest of the `others`' cards."""
    found: list[tuple[str, Outcome]] = []
    for name, setup in _setups(serving):
        try:
            found.append((name, outcome_of(Serving(shelf.case(setup), serving.workload))))
        except ModelRefused:  # heads or experts that do not divide
            continue
    named = [(o.card if o.devices == 1 else f"{o.devices} x {o.card}", o) for o in _best(others, base)]
    return changes(base, [*found, *named])


def sensitivities(shelf: Shelf, serving: Serving, base: Outcome) -> list[Change]:
    """The same card with twice of one thing; with twice the link where cards are joined."""
    device, setup = serving.case.device, serving.case.setup
    caches = tuple(dataclasses.replace(cache, bandwidth=2 * cache.bandwidth) for cache in device.caches)
    doubled = {
        "twice the FLOP/s": dataclasses.replace(device, peaks={n: 2 * peak for n, peak in device.peaks.items()}),
        "twice the bandwidth": dataclasses.replace(device, bandwidth=2 * device.bandwidth, caches=caches),
        "twice the memory": dataclasses.replace(device, memory=2 * device.memory),
    }
    if device.link is not None and setup.devices > 1:
        speeds = {cards: (alpha, 2 * beta) for cards, (alpha, beta) in device.link.all_reduce.items()}
        link = dataclasses.replace(device.link, bandwidth=2 * device.link.bandwidth, all_reduce=speeds)
        doubled["twice the link bandwidth"] = dataclasses.replace(device, link=link)
    cases = {name: shelf.case(dataclasses.replace(setup, device=d)) for name, d in doubled.items()}
    return changes(base, [(name, outcome_of(Serving(case, serving.workload))) for name, case in cases.items()])


def _setups(serving: Serving) -> Iterator[tuple[str, Setup]]:
    case, setup, device = serving.case, serving.case.setup, serving.case.device
    full = {known.name for known in FORMATS}
    for narrower in narrower_weights(case):
        yield f"{narrower.weights} weights{' and KV' * (narrower.weights in full)}", narrower
    if bits_of(case.kv) > 8:
        yield f"{eight_bits(device)} KV", dataclasses.replace(setup, kv=eight_bits(device))
    if device.link is not None and 2 * setup.devices in DEVICES:
        yield f"{2 * setup.devices} cards", dataclasses.replace(setup, devices=2 * setup.devices)


def _best(others: Sequence[Outcome], base: Outcome) -> list[Outcome]:
    """The card with most tokens a second and the one with the cheapest, where better than the one asked for."""
    able = [o for o in others if o.tokens_per_second is not None and o.card != base.card]
    fastest = max(able, key=lambda o: o.tokens_per_second or 0, default=None)
    priced = [o for o in able if o.dollars_per_million is not None]
    cheapest = min(priced, key=lambda o: o.dollars_per_million or 0, default=None)
    better = [
        fastest if fastest and (fastest.tokens_per_second or 0) > (base.tokens_per_second or 0) else None,
        cheapest if cheapest and (cheapest.dollars_per_million or 0) < (base.dollars_per_million or 1e9) else None,
    ]
    return [o for o in dict.fromkeys(better) if o is not None]


def catalogue_outcomes(shelf: Shelf, serving: Serving, devices: Sequence[Device]) -> list[Outcome]:
    """The same setup on other cards, at their own prices; those that cannot be joined so are left out."""
    setup = serving.case.setup
    able = [device for device in devices if setup.devices == 1 or device.link is not None]
    return [outcome_of(Serving(shelf.case(setup.on(device)), serving.workload)) for device in able]


def _ratio(new: float | None, base: float | None) -> float | None:
    return new / base if new and base else None
