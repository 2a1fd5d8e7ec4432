"""A comparison of a model's cheapest deployments on many devices, with one ranking per seller.

Prices of different sellers say nothing about the hardware, so they are not ranked together.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.plan.alternatives import DEVICES, CaseOutcome, outcome_of
from ridgeline.price.plan.demand import Demand, ReplicaCount
from ridgeline.price.plan.deployment_plan import check_context
from ridgeline.price.plan.deployment_search import Served, search
from ridgeline.price.plan.load_estimate import LoadEstimate, dollars_per_million
from ridgeline.price.plan.plan_audio import AudioWorkload, audio_workload
from ridgeline.price.plan.request_phases import Estimate
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload


@dataclass(frozen=True, slots=True)
class TargetMargins:
    """The shares of the latency targets that are left by expected times; None without a target."""

    ttft: float | None
    tpot: float | None


@dataclass(frozen=True, slots=True)
class Offer:
    """A device in a comparison, at one seller's price or without a price, with its performance and cost."""

    device: Device
    outcome: CaseOutcome
    load: LoadEstimate
    """The performance under load: with the most users within the targets, or of a demand's fullest replica."""
    fleet: ReplicaCount | None
    """The replicas for the demand; None if there is no demand or it cannot be served."""
    late: bool
    """Whether no number of replicas completes the batch job in time, or meets the targets at the slow end of times."""
    interval: ErrorInterval
    """The interval of predictions under load for the device, the engine and the weight format."""
    margins: TargetMargins

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the interval as multiples of the predicted time of a token, or of the dollars of a batch job.

        The lower one is at least the floor: the devices emit no more tokens than the physical limit allows, however
        fast their kernels are.
        """
        if self.fleet is not None and self.fleet.job is not None:
            return self.fleet.job.cost_factors(self.interval)
        rate = self.load.tokens_per_second
        return self.interval.around_time(1.0, rate.expected / rate.floor)

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """The most kWh per million output tokens under `load`; None if the power limit of the device is unknown."""
        return (self.outcome if self.fleet is None else self.fleet).kwh_per_million_tokens

    @property
    def serves(self) -> bool:
        """Whether the model fits, at least one user is served within the targets, and a number of replicas does it."""
        return self.outcome.fits and self.outcome.users > 0 and not self.late


@dataclass(frozen=True, slots=True)
class Ranking:
    """The offers of one seller, or of the devices without a price, the best first."""

    seller: str
    date: str
    source: str
    offers: tuple[Offer, ...]
    as_stored: Offer | None
    """The best offer in the formats of the model's config, or in the formats that the user stated."""

    @property
    def rows(self) -> tuple[Offer, ...]:
        """The offers, and among them the best one in the stored formats, the best first."""
        if self.as_stored is None or self.as_stored in self.offers:
            return self.offers
        return tuple(sorted((*self.offers, self.as_stored), key=_cost))


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A heading and further sellers for the devices without a price in a comparison."""

    words: str
    """The heading of the ranking of devices without a price."""
    elsewhere: tuple[str, ...] = ()
    """The names of further sellers, not included in the comparison, that offer some of these devices."""


@dataclass(frozen=True, slots=True)
class StoredFormats:
    """The weight and KV formats of the compared model's config, or those that the user stated."""

    weights: str
    kv: str


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """The devices that serve users within the targets, ranked by seller, and those that serve none."""

    name: str
    workload: PlanWorkload
    """The workload as the compared model runs it."""
    sound: AudioWorkload | None
    """The seconds of audio per request and the tokens they yield; None if the model reads no audio."""
    demand: Demand
    setup: Deployment
    stored: StoredFormats
    counts: tuple[int, ...]
    """The numbers of devices per replica that were tried."""
    rankings: tuple[Ranking, ...]
    """The rankings of devices: the seller with the most offers first, devices without a price last."""
    unable: tuple[Offer, ...]
    """The devices that serve no user within the targets."""
    unpriced: Unpriced
    """The heading and the further sellers for the devices without a price."""

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The offers of all rankings, then the devices that serve no user."""
        return (*(offer for ranking in self.rankings for offer in ranking.offers), *self.unable)


def compare(
    name: str,
    models: ModelCache,
    setup: Deployment,
    workload: PlanWorkload,
    devices: Sequence[Device],
    demand: Demand,
    unpriced: Unpriced = Unpriced("No price known"),
    counts: tuple[int, ...] = DEVICES,
    on_progress: Callable[[int], None] = lambda done: None,
) -> DeviceComparison:
    """Compare devices, each with its cheapest deployment of those that `deployment_search.py` tries.

    Args:
        name: The name of the model.
        models: The cache of priced models.
        setup: The deployment to vary. Formats that it states are kept, and its number of devices is ignored.
        workload: The requests.
        devices: The devices, each once per price.
        demand: The load to serve, which may be empty.
        unpriced: The description of the devices without a price.
        counts: The numbers of devices per replica to try, in ascending order.
        on_progress: A function that is called with the number of the devices that have been priced.

    Raises:
        ValueError: If the requests exceed the model's context.
    """
    whole = models.whole(setup)
    workload = workload.of(whole.model)
    check_context(whole, workload, models.fields)
    once: dict[str, _DeviceOffers] = {}  # by device name, at any price
    with _uncollected():
        for done, device in enumerate(devices):
            on_progress(done)
            if device.name not in once:
                once[device.name] = _offers_on(models, setup.on(device), workload, demand, counts)
    able = [(once[device.name].best, once[device.name].as_stored, device) for device in devices]
    rankings = _rankings(
        [
            (_at_price(best, device), None if stored is None else _at_price(stored, device))
            for best, stored, device in able
            if best.serves
        ]
    )
    unable = sorted(
        (each.best for each in once.values() if not each.best.serves), key=lambda offer: offer.outcome.missing_bytes
    )
    sound, stored = audio_workload(whole.model, workload), StoredFormats(whole.weights, whole.kv)
    return DeviceComparison(
        name, workload, sound, demand, setup, stored, counts, tuple(rankings), tuple(unable), unpriced
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector, which takes a third of the time of building models, inside the context."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _at_price(offer: Offer, device: Device) -> Offer:
    """Return an offer with its cost recomputed at the price of `device`."""
    outcome, fleet, price = offer.outcome, offer.fleet, device.price
    hourly = None if price is None else price.dollars * outcome.devices
    million = dollars_per_million(hourly, outcome.tokens_per_second)
    outcome = replace(outcome, price=price, dollars_per_hour=hourly, dollars_per_million=million)
    return replace(offer, device=device, outcome=outcome, fleet=None if fleet is None else fleet.at_hourly(hourly))


@dataclass(frozen=True, slots=True)
class _DeviceOffers:
    """The offers of one device: the best, and the best in the stored formats, or None."""

    best: Offer
    as_stored: Offer | None


def _offers_on(
    models: ModelCache, setup: Deployment, workload: PlanWorkload, demand: Demand, counts: tuple[int, ...]
) -> _DeviceOffers:
    found = search(models, setup, workload, demand, counts)
    if found.best is None:
        return _DeviceOffers(_offer(Served(found.unable, None), late=bool(demand)), None)
    return _DeviceOffers(_offer(found.best), None if found.as_stored is None else _offer(found.as_stored))


def _offer(served: Served, *, late: bool = False) -> Offer:
    serving, fleet = served.serving, served.fleet
    setup, workload = serving.case.setup, serving.workload
    outcome, load = outcome_of(serving), serving.capacity.load if fleet is None else fleet.load
    margins = TargetMargins(_left(load.ttft, workload.ttft), _left(load.tpot, workload.tpot))
    return Offer(setup.device, outcome, load, fleet, late, serving.case.intervals["load"], margins)


def _left(seconds: Estimate, target: float | None) -> float | None:
    return None if target is None else 1 - seconds.expected / target


def _rankings(offers: Sequence[tuple[Offer, Offer | None]]) -> list[Ranking]:
    """Return the rankings of pairs of a device's best offer and its best one in the stored formats."""
    by_seller: dict[tuple[str, str, str], list[tuple[Offer, Offer | None]]] = {}
    for pair in offers:
        price = pair[0].outcome.price
        key = ("", "", "") if price is None else (price.asked_by, price.date, price.source)
        by_seller.setdefault(key, []).append(pair)
    order = sorted(by_seller, key=lambda key: (key[0] == "", -len(by_seller[key])))
    return [_ranking(key, by_seller[key]) for key in order]


def _ranking(key: tuple[str, str, str], pairs: Sequence[tuple[Offer, Offer | None]]) -> Ranking:
    stored = min((offer for _, offer in pairs if offer is not None), key=_cost, default=None)
    return Ranking(*key, tuple(sorted((offer for offer, _ in pairs), key=_cost)), stored)


def _cost(offer: Offer) -> tuple[float, float]:
    """Return the ranking key: dollars of a batch job, dollars per hour for another demand, otherwise dollars per token.

    Without a price, the key is the number of devices for a demand, otherwise the speed.
    """
    speed = offer.outcome.tokens_per_second or 0.0
    if offer.fleet is not None and offer.fleet.job is not None and offer.fleet.job.dollars is not None:
        return offer.fleet.job.dollars, -speed
    if offer.fleet is not None:
        cost = offer.fleet.dollars_per_hour
        return (offer.fleet.devices if cost is None else cost), -speed
    cost = offer.outcome.dollars_per_million
    return (-speed if cost is None else cost), 0.0
