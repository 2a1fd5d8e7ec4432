"""A comparison of a deployment on many devices, with one ranking per seller.

Prices of different sellers say nothing about the hardware, so they are not ranked together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ridgeline.price.device import Device
from ridgeline.price.plan.alternatives import CaseOutcome, fewest_devices, outcome_of
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for
from ridgeline.price.plan.deployment_plan import check_context
from ridgeline.price.plan.load_estimate import LoadEstimate, LoadEstimator, dollars_per_million
from ridgeline.price.plan.plan_audio import AudioWorkload, audio_workload
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload
from ridgeline.price.plan.trust import Trust, class_of, trust_in


@dataclass(frozen=True, slots=True)
class Offer:
    """A device in a comparison, at one seller's price or without a price, with its performance and cost."""

    device: Device
    outcome: CaseOutcome
    load: LoadEstimate
    """The performance under load: with the most users within the targets, or of a demand's fullest replica."""
    fleet: ReplicaCount | None
    """The replicas for the demand; None if there is no demand or it cannot be served."""
    trust: Trust
    """The accuracy of predictions for the device under load."""

    @property
    def serves(self) -> bool:
        """Whether the model fits and at least one user is served within the targets."""
        return self.outcome.fits and self.outcome.users > 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """The offers of one seller, or of the devices without a price, the best first."""

    seller: str
    date: str
    source: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A heading and further sellers for the devices without a price in a comparison."""

    words: str
    """The heading of the ranking of devices without a price."""
    elsewhere: tuple[str, ...] = ()
    """The names of further sellers, not included in the comparison, that offer some of these devices."""


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
    devices: Iterable[Device],
    demand: Demand,
    unpriced: Unpriced = Unpriced("No price known"),
) -> DeviceComparison:
    """Compare devices, each with the deployment's number of them or the fewest that hold the model.

    Args:
        name: The name of the model.
        models: The cache of priced models.
        setup: The deployment to repeat on each device.
        workload: The requests.
        devices: The devices, each once per price.
        demand: The load to serve, which may be empty.
        unpriced: The description of the devices without a price.

    Raises:
        ValueError: If the requests exceed the model's context.
    """
    whole = models.whole(setup)
    workload = workload.of(whole.model)
    check_context(whole, workload, models.fields)
    once: dict[str, Offer] = {}  # by device name, at any price
    able = []
    for device in devices:
        if device.name not in once:
            once[device.name] = _offer(models, setup.on(device), workload, demand)
        if once[device.name].serves:
            able.append(_at_price(once[device.name], device))
    unable = sorted((o for o in once.values() if not o.serves), key=lambda offer: offer.outcome.missing_bytes)
    sound = audio_workload(whole.model, workload)
    return DeviceComparison(name, workload, sound, demand, setup, tuple(_rankings(able)), tuple(unable), unpriced)


def _at_price(offer: Offer, device: Device) -> Offer:
    """Return an offer with its cost recomputed at the price of `device`."""
    outcome, fleet, price = offer.outcome, offer.fleet, device.price
    hourly = None if price is None else price.dollars * outcome.devices
    million = dollars_per_million(hourly, outcome.tokens_per_second)
    outcome = replace(outcome, price=price, dollars_per_hour=hourly, dollars_per_million=million)
    if fleet is not None:
        hourly = None if hourly is None else hourly * fleet.replicas
        million = dollars_per_million(hourly, fleet.tokens_per_second)
        fleet = replace(fleet, dollars_per_hour=hourly, dollars_per_million=million)
    return replace(offer, device=device, outcome=outcome, fleet=fleet)


def _offer(models: ModelCache, setup: Deployment, workload: PlanWorkload, demand: Demand) -> Offer:
    if setup.devices > 1 and setup.device.link is None:
        setup = replace(setup, devices=1)
    serving = LoadEstimator(models.scenario(setup), workload)
    if not serving.memory.fits and (fewest := fewest_devices(models, setup, workload)) is not None:
        serving = LoadEstimator(models.scenario(fewest), workload)
    fleet = fleet_for(serving, demand) if demand else None
    outcome, load = outcome_of(serving), serving.capacity.load if fleet is None else fleet.load
    trust = trust_in(setup.device.name, setup.engine.name, class_of("serving", outcome.devices))
    return Offer(setup.device, outcome, load, fleet, trust)


def _rankings(offers: Sequence[Offer]) -> list[Ranking]:
    by_seller: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        price = offer.outcome.price
        key = ("", "", "") if price is None else (price.asked_by, price.date, price.source)
        by_seller.setdefault(key, []).append(offer)
    order = sorted(by_seller, key=lambda key: (key[0] == "", -len(by_seller[key])))
    return [Ranking(*key, tuple(sorted(by_seller[key], key=_cost))) for key in order]


def _cost(offer: Offer) -> tuple[float, float]:
    """Return the ranking key: dollars per hour for a demand, otherwise dollars per token.

    Without a price, the key is the number of devices for a demand, otherwise the speed.
    """
    speed = offer.outcome.tokens_per_second or 0.0
    if offer.fleet is not None:
        cost = offer.fleet.dollars_per_hour
        return (offer.fleet.devices if cost is None else cost), -speed
    cost = offer.outcome.dollars_per_million
    return (-speed if cost is None else cost), 0.0
