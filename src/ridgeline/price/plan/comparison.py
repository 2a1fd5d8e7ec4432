"""The same on many cards: a ranking for each seller, since what two of them ask says nothing of the hardware."""

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
    """A card and what it comes to. load: of the most users within the targets, or of the fullest replica of the fleet;
    fleet: the replicas for a demand, None where there is none or they cannot serve it. trust: in its figures under
    load.
    """

    device: Device
    outcome: CaseOutcome
    load: LoadEstimate
    fleet: ReplicaCount | None
    trust: Trust

    @property
    def serves(self) -> bool:
        """Whether it fits, and anybody is served within the targets."""
        return self.outcome.fits and self.outcome.users > 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Offers of one seller, or of cards for which there is no price; the best first."""

    seller: str
    date: str
    source: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Unpriced:
    """What there is to say of cards without a price. elsewhere: names of sellers, not asked, who have some of them."""

    words: str
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """The cards that serve somebody within the targets, by seller, the one that has most of them first and those
    without a price last; and those that do not. workload: as the model runs it. sound: the windows that requests are,
    where it reads sound. unpriced: of the cards without a price.
    """

    name: str
    workload: PlanWorkload
    sound: AudioWorkload | None
    demand: Demand
    setup: Deployment
    rankings: tuple[Ranking, ...]
    unable: tuple[Offer, ...]
    unpriced: Unpriced

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All of them."""
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
    """The cards with as many of each as the setup has, or where that does not do, the fewest that hold the model.

    devices: a card as often as there are prices of it. unpriced: as of `DeviceComparison`. Raises ValueError for
    requests that are longer than the model takes.
    """
    whole = models.whole(setup)
    workload = workload.of(whole.model)
    check_context(whole, workload)
    once: dict[str, Offer] = {}  # what a card comes to, whatever it costs
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
    """The same at the card's price there."""
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
    serving = LoadEstimator(models.case(setup), workload)
    if not serving.memory.fits and (fewest := fewest_devices(models, setup, workload)) is not None:
        serving = LoadEstimator(models.case(fewest), workload)
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
    """What a ranking is by: dollars an hour for a demand, else dollars a token; without a price cards, else speed."""
    speed = offer.outcome.tokens_per_second or 0.0
    if offer.fleet is not None:
        cost = offer.fleet.dollars_per_hour
        return (offer.fleet.cards if cost is None else cost), -speed
    cost = offer.outcome.dollars_per_million
    return (-speed if cost is None else cost), 0.0
