"""What could be different, each priced whole: ways to fit, other formats, another card, more of a resource."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.number_formats import FORMATS, KV_FORMATS, WEIGHT_FORMATS
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.plan.device_memory import DeviceMemory, memory_of
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario

DEVICES = (1, 2, 4, 8)
# More than one machine has: said, but not priced, since nothing is known of what joins them.
_MORE_DEVICES = (16, 32)

# -- ways to fit ------------------------------------------------------------------------------------------------------


def ways_to_fit(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> list[Deployment]:
    """What would make the model and one request fit: the widest format with the cards asked for, or if none does, a
    narrower format on fewer cards than the format asked for takes; and those, the fewest. Empty if nothing does.
    """
    narrower = narrower_weights(models.case(setup))
    same = next((s for s in narrower if fits(models, s, workload)), None)
    more = fewest_devices(models, setup, workload, (*DEVICES, *_MORE_DEVICES))
    if same is None:
        most = max(DEVICES) if more is None else min(max(DEVICES), more.devices - 1)
        same = _narrower_on_more(models, narrower, workload, most)
    return [way for way in (same, more) if way is not None]


def _narrower_on_more(
    models: ModelCache, narrower: Sequence[Deployment], workload: PlanWorkload, most: int
) -> Deployment | None:
    """The fewest cards, `most` at most, on which a narrower format fits, and the widest that does. Only what its share
    of the weights leaves room for is built: a build takes longer than all else here.
    """
    held = [(setup, _memory(models, setup, workload)) for setup in narrower]
    tried = (
        dataclasses.replace(setup, devices=count)
        for count in DEVICES
        for setup, memory in held
        if memory is not None
        and setup.devices < count <= most
        and memory.weights * setup.devices / count + memory.overhead < memory.budget
    )
    return next((s for s in tried if s.device.link and fits(models, s, workload)), None)


def fewest_devices(
    models: ModelCache, setup: Deployment, workload: PlanWorkload, counts: Sequence[int] = DEVICES
) -> Deployment | None:
    """The setup over the fewest cards on which it fits; None if it does on none of the `counts`."""
    tried = (dataclasses.replace(setup, devices=count) for count in counts)
    return next((s for s in tried if (s.devices == 1 or s.device.link) and fits(models, s, workload)), None)


def fits(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> bool:
    """Whether the weights and one request fit; False also where the model does not divide so."""
    try:
        case = models.case(setup)
    except ModelRefused:
        return False
    # Asked first, since dealing out the pages of a hundred layers takes far longer.
    return case.price.weight_bytes < case.device.memory and memory_of(case, workload).fits


def eight_bits(device: Device) -> str:
    """The eight-bit weight format that a card has arithmetic for, else the one that is widened on the way."""
    return "fp8" if "fp8" in device.peaks else "int8"


def other_eight_bits(device: Device) -> list[str]:
    """The eight-bit weight formats that people ask about beside that: int8 weights alone, which are widened, and w8a8,
    where the card computes in int8 faster than in anything wider and in fp8.
    """
    faster = device.peaks.get("int8", 0.0) > max(device.peak("bf16"), device.peaks.get("fp8", 0.0))
    return [name for name in ("int8", *(["w8a8"] if faster else [])) if name != eight_bits(device)]


def bits_of(name: str) -> int:
    """Bits of a number in a format of weights or KV."""
    return next(f.bits for f in (*FORMATS, *WEIGHT_FORMATS, *KV_FORMATS) if f.name == name)


def narrower_weights(case: Scenario, *, every: bool = False) -> list[Deployment]:
    """The same with narrower weights, the widest first; every: in all formats of eight bits, not the best alone. KV
    asked for in full is then that of the model as stored so.
    """
    full = {known.name for known in FORMATS}
    eight = [eight_bits(case.device), *(other_eight_bits(case.device) if every else ())]
    order = [name for name in ("bf16", *eight, "int4") if bits_of(name) < case.weight_bits]
    kv = None if case.setup.kv in full else case.setup.kv
    return [dataclasses.replace(case.setup, weights=name, kv=kv) for name in order]


def _memory(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> DeviceMemory | None:
    try:
        return memory_of(models.case(setup), workload)
    except ModelRefused:
        return None


# -- outcomes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What a case comes to, by expected times.

    users: the most at once, by memory, step and targets; limit: what stops one more (memory, step, ttft, tpot).

    Of the workload's batch, all asking at once, as in `DeploymentPlan.prefill` and `.decode`: ttft, until all have
    their first token; itl, a decode step of all. What stands beside it for another batch is `LoadEstimator.together`
    and `LoadEstimator.itl` of that batch, not the times of a Load, whose users ask at different moments, with the
    prefills of others between two tokens.

    linked: whether a link to other cards is known. dollars_per_hour: of all cards; price: of one, with date and source.

    Of `users` users under way: tokens_per_second and dollars_per_million, in all and of output; None where there is not
    one user. Dollars of two outcomes compare where `same_seller`.
    """

    card: str
    devices: int
    weights: str
    kv: str
    fits: bool
    missing_bytes: float
    users: int
    limit: str
    ttft: float
    itl: float
    tokens_per_second: float | None
    dollars_per_million: float | None
    linked: bool
    dollars_per_hour: float | None
    price: HourlyPrice | None


def same_seller(one: CaseOutcome, other: CaseOutcome) -> bool:
    """Whether the prices of both, as far as they have any, are asked by one seller."""
    return one.price is None or other.price is None or one.price.asked_by == other.price.asked_by


def outcome_of(serving: LoadEstimator) -> CaseOutcome:
    """The outcome of a case under its workload."""
    case, memory, capacity = serving.case, serving.memory, serving.capacity
    batch = serving.workload.batch
    rate = capacity.load.tokens_per_second.expected if capacity.users else None
    return CaseOutcome(
        case.device.name,
        case.setup.devices,
        case.weights,
        case.kv,
        memory.fits,
        memory.missing,
        capacity.users,
        capacity.limit,
        serving.together(batch).expected,
        serving.itl(batch).expected,
        rate,
        None if rate is None else serving.dollars_per_million(rate),
        case.device.link is not None,
        case.setup.hourly,
        case.device.price,
    )


# -- levers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One thing different, and what that brings: factors on the plan as asked, above 1 where more or faster.

    first: of the time to the first token; faster: of a user's tokens a second at the workload's batch; users and
    throughput: at the most users there may be; cost: of dollars a token. None where one side has no such figure.
    """

    name: str
    outcome: CaseOutcome
    first: float
    faster: float
    users: float | None
    throughput: float | None
    cost: float | None

    @property
    def gain(self) -> float:
        """Of tokens a second: all users', or one's, whichever gains more."""
        return max(self.throughput or 0.0, self.faster)


def changes(base: CaseOutcome, named: Sequence[tuple[str, CaseOutcome]]) -> list[Change]:
    """Outcomes beside the plan as asked."""
    return [
        Change(
            name,
            new,
            base.ttft / new.ttft,
            base.itl / new.itl,
            _ratio(new.users, base.users),
            _ratio(new.tokens_per_second, base.tokens_per_second),
            _ratio(new.dollars_per_million, base.dollars_per_million) if same_seller(new, base) else None,
        )
        for name, new in named
    ]


def batch_lever(serving: LoadEstimator, base: CaseOutcome) -> Change | None:
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


def levers(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """The same card with narrower weights, narrower KV, twice the cards."""
    return _changed(models, serving, base, _setups(serving, every=True))


def narrower_levers(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """What costs no money: the next narrower format of the weights, and of KV. Four bits, which cost quality more
    often, are left to `levers`.
    """
    setups = ((name, setup) for name, setup in _setups(serving) if setup.devices == serving.case.setup.devices)
    return _changed(models, serving, base, ((name, s) for name, s in setups if s.weights != "int4"))


def device_levers(others: Sequence[CaseOutcome], base: CaseOutcome) -> list[Change]:
    """The fastest and the cheapest of other cards, where they are better than the one asked for."""
    return changes(base, [(o.card if o.devices == 1 else f"{o.devices} x {o.card}", o) for o in _best(others, base)])


def _changed(
    models: ModelCache, serving: LoadEstimator, base: CaseOutcome, setups: Iterable[tuple[str, Deployment]]
) -> list[Change]:
    found: list[tuple[str, CaseOutcome]] = []
    for name, setup in setups:
        try:
            found.append((name, outcome_of(LoadEstimator(models.case(setup), serving.workload))))
        except ModelRefused:  # heads or experts that do not divide
            continue
    return changes(base, found)


def sensitivities(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """The same card with twice of one thing; with twice the link where cards are joined."""
    device, setup = serving.case.device, serving.case.setup
    caches = tuple(dataclasses.replace(cache, bandwidth=2 * cache.bandwidth) for cache in device.caches)
    doubled = {
        "twice the FLOP/s": dataclasses.replace(device, peaks={n: 2 * peak for n, peak in device.peaks.items()}),
        "twice the bandwidth": dataclasses.replace(device, bandwidth=2 * device.bandwidth, caches=caches),
        "twice the memory": dataclasses.replace(device, memory=2 * device.memory),
    }
    if device.link is not None and setup.devices > 1:
        doubled["twice the link bandwidth"] = dataclasses.replace(device, link=device.link.over(2))
    cases = {name: models.case(dataclasses.replace(setup, device=d)) for name, d in doubled.items()}
    return changes(base, [(name, outcome_of(LoadEstimator(case, serving.workload))) for name, case in cases.items()])


def _setups(serving: LoadEstimator, *, every: bool = False) -> Iterator[tuple[str, Deployment]]:
    """By name; every: as of `narrower_weights`."""
    case, setup, device = serving.case, serving.case.setup, serving.case.device
    full = {known.name for known in FORMATS}
    for narrower in narrower_weights(case, every=every):
        yield f"{narrower.weights} weights{' and KV' * (narrower.weights in full)}", narrower
    if bits_of(case.kv) > 8:
        yield f"{eight_bits(device)} KV", dataclasses.replace(setup, kv=eight_bits(device))
    if device.link is not None and 2 * setup.devices in DEVICES:
        yield f"{2 * setup.devices} cards", dataclasses.replace(setup, devices=2 * setup.devices)


def _best(others: Sequence[CaseOutcome], base: CaseOutcome) -> list[CaseOutcome]:
    """The card with most tokens a second and the one with the cheapest, where better than the one asked for."""
    able = [o for o in others if o.tokens_per_second is not None and o.card != base.card]
    fastest = max(able, key=lambda o: o.tokens_per_second or 0, default=None)
    priced = [o for o in able if o.dollars_per_million is not None and same_seller(o, base)]
    cheapest = min(priced, key=lambda o: o.dollars_per_million or 0, default=None)
    better = [
        fastest if fastest and (fastest.tokens_per_second or 0) > (base.tokens_per_second or 0) else None,
        cheapest if cheapest and (cheapest.dollars_per_million or 0) < (base.dollars_per_million or 1e9) else None,
    ]
    return [o for o in dict.fromkeys(better) if o is not None]


def catalogue_outcomes(models: ModelCache, serving: LoadEstimator, devices: Sequence[Device]) -> list[CaseOutcome]:
    """The same setup on other cards, at their own prices; those that cannot be joined so are left out."""
    setup = serving.case.setup
    able = [device for device in devices if setup.devices == 1 or device.link is not None]
    return [outcome_of(LoadEstimator(models.case(setup.on(device)), serving.workload)) for device in able]


def _ratio(new: float | None, base: float | None) -> float | None:
    return new / base if new and base else None
