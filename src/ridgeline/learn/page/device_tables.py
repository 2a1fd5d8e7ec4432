"""Cards, and the engines that drive them, as data: facts with their sources, kernel times, links, prices."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ridgeline.core.ops.number_formats import FORMATS, format_of
from ridgeline.learn.page.model_tables import FORMAT
from ridgeline.price.device import Device, Efficiency
from ridgeline.price.devices import FORMATS as PEAKS
from ridgeline.price.engine_profile import (
    EngineProfile,
    engines,
    engines_with_own_attention,
    load_engine,
    usual_engine,
)
from ridgeline.price.hourly_prices import PriceSnapshot, snapshots
from ridgeline.price.interconnect import Interconnect
from ridgeline.price.plan.scenario import computed_in
from ridgeline.price.plan.trust import PLAN_METRICS, trust_in


def build_device_tables(
    cards: Iterable[Device],
    driving: Iterable[EngineProfile] | None = None,
    sellers: Sequence[PriceSnapshot] | None = None,
) -> dict[str, Any]:
    """What a page prices on: `cards` and `engines` by name, in SI units, bytes and seconds.

    driving: the engines; by default those that plan takes, with attention that is data-parallel too. sellers: whose
    prices the cards have, all of the package's by default. Cards name `kernels` (constants by class) and `reductions`
    (all-reduces by kind and number of cards) by their places in lists, since many have the same.
    """
    asked = snapshots() if sellers is None else sellers
    kernels: list[Mapping[str, Any]] = []
    reductions: list[Mapping[str, Any]] = []
    return {
        "format": FORMAT,
        "cards": {card.name: _card(card, asked, kernels, reductions) for card in cards},
        "engines": {engine.name: _engine(engine) for engine in (_usual() if driving is None else driving)},
        "kernels": kernels,
        "reductions": reductions,
    }


def _usual() -> Iterator[EngineProfile]:
    return map(load_engine, (*engines(), *engines_with_own_attention()))


def _card(
    card: Device,
    sellers: Sequence[PriceSnapshot],
    kernels: list[Mapping[str, Any]],
    reductions: list[Mapping[str, Any]],
) -> Mapping[str, Any]:
    """speeds: the peak at which a product in each format runs. instead: what a model's number format is computed in
    here, where not in itself. engine: the usual one.
    """
    host, link = card.host, card.link
    return {
        "name": card.name,
        "title": card.title,
        "kind": card.kind,
        "peaks": dict(card.peaks),
        "speeds": {name: card.peak(name) for name in PEAKS},
        "instead": _instead(card),
        "bandwidth": card.bandwidth,
        "memory": card.memory,
        "caches": [dataclasses.asdict(cache) for cache in card.caches],
        "link": None
        if link is None
        else {"name": link.name, "bandwidth": link.bandwidth, "all_reduce": _place(reductions, _reductions(link))},
        "host_link": card.host_link,
        "watts": card.watts,
        "prices": _prices(card, sellers),
        "kernels": _place(kernels, {name: _constants(each) for name, each in card.efficiency.items()}),
        "host": None if host is None else dataclasses.asdict(host),
        "engine": usual_engine(card).name,
        "calibrated": card.calibrated,
        "basis": card.basis,
        "kernels_of": card.measured_on,
        "native": card.native,
        "sources": dict(card.sources),
        "trust": _trust(card),
    }


def _trust(card: Device) -> Mapping[str, Any]:
    """What measurements of the card say of the figures of each class, under its usual engine (`plan/trust.py`)."""
    found = [trust_in(card.name, usual_engine(card).name, metric) for metric in (*PLAN_METRICS, "tp8")]
    return {each.metric: {"rows": each.rows, "within": each.within} for each in found if each.rows}


def _instead(card: Device) -> Mapping[str, str]:
    computed = {known.name: format_of(computed_in(known.dtype, card, narrows=False)).name for known in FORMATS}
    return {name: other for name, other in computed.items() if name != other}


def _constants(of: Efficiency) -> list[float | None]:
    """Seconds a launch, shares of peak and bandwidth, what a further call counts, power, seconds a recorded launch."""
    return [of.launch, of.compute, of.memory, of.again, of.blend, of.recorded]


def _reductions(link: Interconnect) -> Mapping[str, Any]:
    """By kind of kernel and number of cards: sizes of messages in bytes, and their seconds."""
    return {
        kind: {str(cards): [list(curve.nbytes), list(curve.seconds)] for cards, curve in known.items()}
        for kind, known in link.all_reduce.items()
    }


def _place(pool: list[Mapping[str, Any]], value: Mapping[str, Any]) -> int:
    """Where a value is in the pool, put there if it is not."""
    if value not in pool:
        pool.append(value)
    return pool.index(value)


def _prices(card: Device, sellers: Sequence[PriceSnapshot]) -> list[Mapping[str, Any]]:
    """What is asked for it: of a user's card what its file says, else what each seller asks."""
    own = [card.price] if card.price is not None else [price for each in sellers if (price := each.price_of(card.name))]
    return [dataclasses.asdict(price) for price in own]


def _engine(engine: EngineProfile) -> Mapping[str, Any]:
    """As EngineProfile has it. overhead: its rule of memory in words."""
    fields = dataclasses.asdict(engine)
    return fields | {"overhead": engine.memory.describe()}
