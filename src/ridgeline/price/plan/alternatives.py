"""The alternatives to a deployment, each fully priced: ways to fit, other formats, other devices, doubled resources."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.number_formats import FORMATS, KV_FORMATS, WEIGHT_FORMATS
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.error_interval import factors_on_cost
from ridgeline.price.plan.device_memory import DeviceMemory, memory_of
from ridgeline.price.plan.energy import kwh_per_million
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.util.json_data import json_name

DEVICES = (1, 2, 4, 8)
# More devices than one machine has. They are mentioned but not priced, because the link between machines is unknown.
_MORE_DEVICES = (16, 32)

# -- ways to fit ------------------------------------------------------------------------------------------------------


def ways_to_fit(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> list[Deployment]:
    """Return deployments that would fit the model and one request; empty if there are none.

    The first is the widest narrower format on the requested devices, or if none fits, a narrower format on fewer
    devices than the requested format needs. The second is the requested format on the fewest devices.
    """
    narrower = narrower_weights(models.scenario(setup))
    same = next((s for s in narrower if fits(models, s, workload)), None)
    more = fewest_devices(models, setup, workload, (*DEVICES, *_MORE_DEVICES))
    if same is None:
        most = max(DEVICES) if more is None else min(max(DEVICES), more.devices - 1)
        same = _narrower_on_more(models, narrower, workload, most)
    return [way for way in (same, more) if way is not None]


def _narrower_on_more(
    models: ModelCache, narrower: Sequence[Deployment], workload: PlanWorkload, most: int
) -> Deployment | None:
    """Return a narrower format on the fewest further devices, at most `most`, with the widest format that fits there.

    Building a model dominates the run time, so only candidates whose share of the weights fits are built.
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
    """Return the deployment on the fewest devices on which it fits, or None if it fits on none of the `counts`.

    Only numbers of devices are tried on which an equal share of the weights fits.
    """
    known = _memory(models, setup, workload)
    tried = (
        dataclasses.replace(setup, devices=count)
        for count in counts
        if known is None or known.weights * setup.devices / count < known.budget
    )
    return next((s for s in tried if (s.devices == 1 or s.device.link) and fits(models, s, workload)), None)


def fits(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> bool:
    """Return whether the weights and one request fit; False also if the model cannot be split in this way."""
    try:
        case = models.scenario(setup)
    except ModelRefused:
        return False
    # This is checked first, because laying out the pages of a hundred layers takes far longer.
    return case.price.weight_bytes < case.device.memory and memory_of(case, workload).fits


def eight_bits(device: Device) -> str:
    """Return the 8-bit weight format that a device computes in natively, otherwise the one that kernels upcast."""
    return "fp8" if "fp8" in device.peaks else "int8"


def other_eight_bits(device: Device) -> list[str]:
    """Return further 8-bit weight formats that users consider.

    These are int8 weights, which kernels upcast, and w8a8 if the device is faster in int8 than in bf16 and fp8.
    """
    faster = device.peaks.get("int8", 0.0) > max(device.peak("bf16"), device.peaks.get("fp8", 0.0))
    return [name for name in ("int8", *(["w8a8"] if faster else [])) if name != eight_bits(device)]


def bits_of(name: str) -> int:
    """Return the bits per number in a weight or KV format."""
    return next(f.bits for f in (*FORMATS, *WEIGHT_FORMATS, *KV_FORMATS) if f.name == name)


def narrower_weights(case: Scenario, *, every: bool = False) -> list[Deployment]:
    """Return the same deployment with narrower weight formats, the widest first.

    If the user requested a plain KV format such as bf16, the new deployments use the model's own instead.

    Args:
        case: The scenario.
        every: Whether to include all 8-bit formats instead of only the best.
    """
    full = {known.name for known in FORMATS}
    eight = [eight_bits(case.device), *(other_eight_bits(case.device) if every else ())]
    order = [name for name in ("bf16", *eight, "int4") if bits_of(name) < case.weight_bits]
    kv = None if case.setup.kv in full else case.setup.kv
    return [dataclasses.replace(case.setup, weights=name, kv=kv) for name in order]


def _memory(models: ModelCache, setup: Deployment, workload: PlanWorkload) -> DeviceMemory | None:
    try:
        return memory_of(models.scenario(setup), workload)
    except ModelRefused:
        return None


# -- outcomes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The headline figures of a scenario by expected times: users, latency, throughput and cost.

    `ttft` and `itl` are those of the workload's batch, started at once, as in `DeploymentPlan.prefill` and `.decode`.
    For another batch size compare them with `LoadEstimator.prefill_seconds` and `LoadEstimator.itl`, not with the times
    of a LoadEstimate, whose users arrive at different moments and wait for the prefills of others.
    """

    device_name: str = field(metadata=json_name("card"))
    devices: int
    weights: str
    kv: str
    fits: bool
    missing_bytes: float
    users: int
    """The maximum number of concurrent users, by memory, step size and targets."""
    limit: str
    """The reason that one more user is not possible: "memory", "step", "ttft" or "tpot"."""
    ttft: float
    """The seconds until all requests of the workload's batch have their first token."""
    itl: float
    """The seconds of a decode step of the workload's batch."""
    tokens_per_second: float | None
    """The total output tokens per second of `users` users; None without users."""
    tokens_per_second_interval: tuple[float, float] | None
    """The interval of the total output tokens per second, which holds 8 of 10 measurements."""
    dollars_per_million: float | None
    """The dollars per million output tokens with `users` users; None without users or price.

    They are comparable with those of another outcome only if `same_seller` is true.
    """
    linked: bool
    """Whether the device has a known link to others."""
    dollars_per_hour: float | None
    """The dollars per hour of all devices; None if unknown."""
    price: HourlyPrice | None
    """The price of one device, with its date and source; None if unknown."""
    kwh_per_million_tokens: float | None
    """The most kWh per million output tokens with `users` users; None without users or a known power limit."""


def same_seller(one: CaseOutcome, other: CaseOutcome) -> bool:
    """Return whether the prices of two outcomes, if both have one, are from the same seller."""
    return one.price is None or other.price is None or one.price.asked_by == other.price.asked_by


def outcome_of(serving: LoadEstimator) -> CaseOutcome:
    """Return users, latency, throughput and cost of a scenario under its workload, by expected times."""
    case, memory, capacity = serving.case, serving.memory, serving.capacity
    batch = serving.workload.batch
    tokens = capacity.load.tokens_per_second
    rate = tokens.expected if capacity.users else None
    around = case.intervals["load"].around_rate(tokens.expected, tokens.floor) if capacity.users else None
    return CaseOutcome(
        case.device.name,
        case.setup.devices,
        case.weights,
        case.kv,
        memory.fits,
        memory.missing,
        capacity.users,
        capacity.limit,
        serving.prefill_seconds(batch).expected,
        serving.itl(batch).expected,
        rate,
        around,
        None if rate is None else serving.dollars_per_million(rate),
        case.device.link is not None,
        case.setup.hourly,
        case.device.price,
        kwh_per_million(case.setup.watts, rate),
    )


# -- levers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of one change to a deployment, as factors relative to the plan as requested.

    Factors of speed and capacity are above 1 for improvements. A factor is None if one side lacks the figure. If the
    change is a larger batch (`batch_lever`), all factors compare the maximum number of users with the workload's batch.
    """

    name: str
    outcome: CaseOutcome
    """The users, latency, throughput and cost after the change."""
    first: float
    """The time to the first tokens of the workload's batch without the change, divided by that with the change."""
    faster: float
    """The factor by which the change raises one user's tokens per second, at the workload's batch size."""
    users: float | None
    """The factor by which the change raises the maximum number of users."""
    throughput: float | None
    """The factor by which the change raises total tokens per second at the maximum number of users."""
    cost: float | None
    """The factor on dollars per token, below 1 if tokens become cheaper.

    It is None also if the two prices are from different sellers.
    """

    @property
    def cost_factors(self) -> tuple[float, float]:
        """The factors on the dollars per token after the change between which 8 of 10 measurements lie."""
        tokens, around = self.outcome.tokens_per_second, self.outcome.tokens_per_second_interval
        return (1.0, 1.0) if tokens is None or around is None else factors_on_cost(tokens, around)

    @property
    def gain(self) -> float:
        """The larger of two factors: on total tokens per second, and on one user's tokens per second."""
        return max(self.throughput or 0.0, self.faster)

    @property
    def benefit(self) -> tuple[float, float, float]:
        """The sort key of what a change brings at full load: users where there were none, total tokens, users."""
        newly = float(self.outcome.users) if self.throughput is None else 0.0
        return newly, self.throughput or 0.0, self.users or 0.0


def changes(base: CaseOutcome, named: Sequence[tuple[str, CaseOutcome]]) -> list[Change]:
    """Return the named outcomes as changes relative to the plan as requested."""
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
    """Return the effect of as many users as possible instead of the workload's batch; None if they are not more."""
    batch, most = serving.workload.batch, serving.capacity
    if most.users <= batch:
        return None
    before, after = serving.load(batch), most.load
    return Change(
        f"batch {most.users:,} instead of {batch:,}",
        base,
        serving.prefill_seconds(batch).expected / serving.prefill_seconds(most.users).expected,
        serving.itl(batch).expected / serving.itl(most.users).expected,
        most.users / batch,
        after.tokens_per_second.expected / before.tokens_per_second.expected,
        before.tokens_per_second.expected / after.tokens_per_second.expected,
    )


def levers(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """Return the changes to narrower weights, to narrower KV, and to twice as many devices of the same kind."""
    return _changed(models, serving, base, _setups(serving, every=True))


def narrower_levers(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """Return the changes that need no additional hardware: narrower weights down to 8 bits, and 8-bit KV.

    4-bit formats, which reduce quality more often, are among `levers`.
    """
    setups = ((name, setup) for name, setup in _setups(serving) if setup.devices == serving.case.setup.devices)
    return _changed(models, serving, base, ((name, s) for name, s in setups if s.weights != "int4"))


def device_levers(others: Sequence[CaseOutcome], base: CaseOutcome) -> list[Change]:
    """Return the changes to the fastest and the cheapest of other devices, if they beat the requested one."""
    return changes(
        base, [(o.device_name if o.devices == 1 else f"{o.devices} x {o.device_name}", o) for o in _best(others, base)]
    )


def _changed(
    models: ModelCache, serving: LoadEstimator, base: CaseOutcome, setups: Iterable[tuple[str, Deployment]]
) -> list[Change]:
    found: list[tuple[str, CaseOutcome]] = []
    for name, setup in setups:
        try:
            found.append((name, outcome_of(LoadEstimator(models.scenario(setup), serving.workload))))
        except ModelRefused:  # heads or experts cannot be split evenly
            continue
    return changes(base, found)


def sensitivities(models: ModelCache, serving: LoadEstimator, base: CaseOutcome) -> list[Change]:
    """Return the changes to the same device with one resource doubled.

    The link between devices is one of the resources if there are several devices.
    """
    device, setup = serving.case.device, serving.case.setup
    caches = tuple(dataclasses.replace(cache, bandwidth=2 * cache.bandwidth) for cache in device.caches)
    doubled = {
        "twice the FLOP/s": dataclasses.replace(device, peaks={n: 2 * peak for n, peak in device.peaks.items()}),
        "twice the bandwidth": dataclasses.replace(device, bandwidth=2 * device.bandwidth, caches=caches),
        "twice the memory": dataclasses.replace(device, memory=2 * device.memory),
    }
    if device.link is not None and setup.devices > 1:
        doubled["twice the link bandwidth"] = dataclasses.replace(device, link=device.link.over(2))
    cases = {name: models.scenario(dataclasses.replace(setup, device=d)) for name, d in doubled.items()}
    return changes(base, [(name, outcome_of(LoadEstimator(case, serving.workload))) for name, case in cases.items()])


def _setups(serving: LoadEstimator, *, every: bool = False) -> Iterator[tuple[str, Deployment]]:
    """Yield the names and deployments of the changes that a plan suggests on the same kind of device.

    Args:
        serving: The estimator of the deployment under load.
        every: Whether to include all 8-bit formats instead of only the best.
    """
    case, setup, device = serving.case, serving.case.setup, serving.case.device
    full = {known.name for known in FORMATS}
    for narrower in narrower_weights(case, every=every):
        yield f"{narrower.weights} weights{' and KV' * (narrower.weights in full)}", narrower
    if bits_of(case.kv) > 8:
        yield f"{eight_bits(device)} KV", dataclasses.replace(setup, kv=eight_bits(device))
    if device.link is not None and 2 * setup.devices in DEVICES:
        yield f"{2 * setup.devices} devices", dataclasses.replace(setup, devices=2 * setup.devices)


def _best(others: Sequence[CaseOutcome], base: CaseOutcome) -> list[CaseOutcome]:
    """Return the fastest device and the one with the cheapest tokens, if they are better than the current one."""
    able = [o for o in others if o.tokens_per_second is not None and o.device_name != base.device_name]
    fastest = max(able, key=lambda o: o.tokens_per_second or 0, default=None)
    priced = [o for o in able if o.dollars_per_million is not None and same_seller(o, base)]
    cheapest = min(priced, key=lambda o: o.dollars_per_million or 0, default=None)
    better = [
        fastest if fastest and (fastest.tokens_per_second or 0) > (base.tokens_per_second or 0) else None,
        cheapest if cheapest and (cheapest.dollars_per_million or 0) < (base.dollars_per_million or 1e9) else None,
    ]
    return [o for o in dict.fromkeys(better) if o is not None]


def catalogue_outcomes(models: ModelCache, serving: LoadEstimator, devices: Sequence[Device]) -> list[CaseOutcome]:
    """Return the outcomes of the same deployment on other devices, at their own prices.

    If it needs several devices, those without a link are left out.
    """
    setup = serving.case.setup
    able = [device for device in devices if setup.devices == 1 or device.link is not None]
    return [outcome_of(LoadEstimator(models.scenario(setup.on(device)), serving.workload)) for device in able]


def _ratio(new: float | None, base: float | None) -> float | None:
    return new / base if new and base else None
