"""The deployments of a model on one kind of device that a comparison tries: devices per replica, and number formats.

A comparison takes the cheapest of them. All devices of one kind have the same price, so this is the deployment with the
fewest devices for a demand, or with the fewest seconds of devices for a batch job. Without a demand it is the one with
the most tokens per second and device, at any price.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ridgeline.core.models import ModelRefused
from ridgeline.price.device import Device
from ridgeline.price.plan.alternatives import DEVICES, bits_of, eight_bits, other_eight_bits
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario

_ROUNDING = 1e-9
_GUESSES = 3  # more of them exclude few further deployments


@dataclass(frozen=True, slots=True)
class Served:
    """A deployment that serves users within the targets, and the replicas for a demand."""

    serving: LoadEstimator
    fleet: ReplicaCount | None
    """The replicas for the demand; None if there is none."""

    @property
    def cost(self) -> float:
        """The number of devices for the demand, or their seconds, otherwise the devices per output token and second."""
        if self.fleet is not None:
            return self.fleet.devices * (1.0 if self.fleet.job is None else self.fleet.job.seconds)
        return self.serving.case.setup.devices / self.serving.capacity.load.tokens_per_second.expected

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key: the lowest cost, then the widest formats, then the fastest tokens for a user."""
        case = self.serving.case
        load = self.serving.capacity.load if self.fleet is None else self.fleet.load
        return self.cost, -case.weight_bits - bits_of(case.kv), -load.tokens_per_user.expected


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best deployments of a model on one kind of device."""

    best: Served | None
    """The cheapest deployment; None if none serves a user within the targets."""
    as_stored: Served | None
    """The cheapest deployment in the formats of the model's config, or in the formats that the user stated."""
    unable: LoadEstimator
    """A deployment that serves no user, if all are such: one that fits, otherwise the one that lacks least memory."""


def search(
    models: ModelCache, setup: Deployment, workload: PlanWorkload, demand: Demand, counts: tuple[int, ...] = DEVICES
) -> SearchResult:
    """Return the best deployments on the device of `setup`.

    Args:
        models: The cache of priced models.
        setup: The deployment to vary. Formats that it states are kept, and its number of devices is ignored.
        workload: The requests.
        demand: The load to serve, which may be empty.
        counts: The numbers of devices per replica to try, in ascending order. A device without a link is tried alone.
    """
    best: dict[bool, Served | None] = {True: None, False: None}  # by whether the formats are the stored ones
    fitting: LoadEstimator | None = None
    short: Scenario | None = None
    for one in deployments(models, setup, counts):
        stored = (one.weights, one.kv) == (setup.weights, setup.kv)
        known = [served for served in (best[True], None if stored else best[False]) if served is not None]
        steady = demand and demand.within is None
        if steady and any(served.cost < one.devices for served in known):
            continue  # a single replica has more devices than all replicas of a deployment that is known
        try:
            case = models.scenario(one)
        except ModelRefused:  # heads or experts cannot be split evenly
            continue
        serving = LoadEstimator(case, workload)
        # The weights are checked first, because laying out the pages of a hundred layers takes far longer.
        if case.price.weight_bytes >= case.device.memory or not serving.memory.fits:
            short = case if short is None or case.price.weight_bytes < short.price.weight_bytes else short
            continue
        fitting = fitting or serving
        if not any(_costs_more(serving, demand, served.cost) for served in known) and serving.capacity.users:
            served = Served(serving, fleet_for(serving, demand) if demand else None)
            if demand and served.fleet is None:
                continue  # a batch job would be late on any number of replicas
            kept = best[stored]
            best[stored] = served if kept is None else min(kept, served, key=lambda each: each.rank)
    able = [served for served in best.values() if served is not None]
    cheapest = min(able, key=lambda each: each.rank, default=None)
    return SearchResult(cheapest, best[True], fitting or LoadEstimator(short or models.whole(setup), workload))


def deployments(models: ModelCache, setup: Deployment, counts: tuple[int, ...] = DEVICES) -> Iterator[Deployment]:
    """Yield the deployments that a search tries, with the stored formats first for each number of devices."""
    device = setup.device
    counts = counts if device.link is not None else (1,)
    formats = tuple(formats_to_try(models.whole(setup)))
    for count in counts:
        for weights, kv in formats:
            yield replace(setup, devices=count, weights=weights, kv=kv)


def formats_to_try(case: Scenario) -> Iterator[tuple[str | None, str | None]]:
    """Yield the weight and KV formats that a search tries on a scenario's device, the widest first.

    These are the formats that the deployment states. For those that it does not state, they are the formats of the
    model's config (None), and the narrower ones that the device runs.
    """
    setup, device = case.setup, case.device
    weights: list[str | None] = [setup.weights]
    if setup.weights is None:
        plain = () if setup.kv == "fp32" else ("bf16",)  # KV in fp32 is only stored if weights are in fp32
        weights += [name for name in (*plain, *_eight_bits(device), "int4") if bits_of(name) < case.weight_bits]
    kvs: list[str | None] = [setup.kv]
    if setup.kv is None and case.model.kv_specs and bits_of(case.kv) > 8:
        kvs.append(eight_bits(device))
    for name in weights:
        for kv in kvs:
            yield name, kv


def _eight_bits(device: Device) -> tuple[str, ...]:
    """Return the 8-bit weight formats to try: int8 weights, which kernels upcast, only if the device lacks fp8."""
    native = eight_bits(device)
    return (native, *(name for name in other_eight_bits(device) if name != "int8"))


def _costs_more(serving: LoadEstimator, demand: Demand, cost: float) -> bool:
    """Return whether a deployment is found to cost more than `cost`, which is in the unit of `Served.cost`.

    This takes a few estimates, where the greatest number of users takes a search.
    """
    devices = serving.case.setup.devices
    if demand.users is not None:
        return not serving.serves(math.ceil(demand.users / int(cost // devices)))
    if demand.within is not None:
        cost /= (demand.requests or 0) * serving.workload.output
    elif demand:
        return False
    # More users spend more time each. So for `wanted` tokens per second, users have to grow at least in proportion.
    wanted, users = devices / cost * (1 - _ROUNDING), 1
    for _ in range(_GUESSES):
        users = max(users, math.ceil(users * wanted / serving.load(users).tokens_per_second.expected))
        if not serving.serves(users):
            return True
    return False
