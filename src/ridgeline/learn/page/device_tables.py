"""Devices, and the engines that run on them, as data: facts with sources, kernel times, links and prices."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ridgeline.core.ops.number_formats import FORMATS, format_of
from ridgeline.learn.page.model_tables import FORMAT
from ridgeline.price.device import Device, Efficiency
from ridgeline.price.devices import FORMATS as PEAKS
from ridgeline.price.engine_profile import (
    EngineProfile,
    default_engine,
    engines,
    engines_with_own_attention,
    load_engine,
)
from ridgeline.price.error_interval import LEVELS, error_intervals
from ridgeline.price.hourly_prices import PriceSnapshot, builtin_snapshots
from ridgeline.price.interconnect import Interconnect
from ridgeline.price.plan.scenario import computed_in
from ridgeline.util.json_data import json_select


def build_device_tables(devices: Iterable[Device], driving: Iterable[EngineProfile] | None = None) -> dict[str, Any]:
    """Return the data that the page needs to price models: devices and engines by name, in SI units, bytes and seconds.

    The data also has the intervals of figures, by kind and by how well a case is known, and a text on each such level.

    Devices refer to `kernels` (constants by class) and `reductions` (all-reduces by kind and number of GPUs) by list
    index, because many have the same ones.

    Args:
        devices: Devices.
        driving: Engines; by default those of `ridgeline plan`, including the variants with data-parallel attention.
    """
    price_snapshots = builtin_snapshots()
    kernels: list[Mapping[str, Any]] = []
    reductions: list[Mapping[str, Any]] = []
    return {
        "format": FORMAT,
        "cards": {device.name: _device_table(device, price_snapshots, kernels, reductions) for device in devices},
        "engines": {engine.name: _engine(engine) for engine in (_usual() if driving is None else driving)},
        "kernels": kernels,
        "reductions": reductions,
        "intervals": _intervals(),
        "levels": dict(LEVELS),
    }


def _usual() -> Iterator[EngineProfile]:
    return map(load_engine, (*engines(), *engines_with_own_attention()))


def _device_table(
    device: Device,
    sellers: Sequence[PriceSnapshot],
    kernels: list[Mapping[str, Any]],
    reductions: list[Mapping[str, Any]],
) -> Mapping[str, Any]:
    """Return the page's data about a device: peaks, memory, links, prices and kernel constants.

    `speeds` has the peak at which a product in each format runs. `instead` maps a format to the one in which this
    device computes it, if that is another. `engine` is the default engine.
    """
    link = device.link
    return {
        **json_select(device, "name", "title", "kind", "peaks"),
        "speeds": {name: device.peak(name) for name in PEAKS},
        "instead": _instead(device),
        **json_select(device, "bandwidth", "memory", "caches"),
        "link": None
        if link is None
        else {"name": link.name, "bandwidth": link.bandwidth, "all_reduce": _place(reductions, _reductions(link))},
        **json_select(device, "host_link", "watts"),
        "prices": _prices(device, sellers),
        "kernels": _place(kernels, {name: _constants(each) for name, each in device.efficiency.items()}),
        **json_select(device, "host"),
        "engine": default_engine(device).name,
        **json_select(device, "calibrated", "basis", "kernels_of=measured_on", "native", "sources"),
    }


def _intervals() -> Mapping[str, Mapping[str, Any]]:
    """Return the intervals of predicted figures, by kind of figure and level of knowledge."""
    found: dict[str, dict[str, Any]] = {}
    for (kind, known), interval in error_intervals().items():
        found.setdefault(kind, {})[known] = json_select(
            interval, "known", "low", "high", "rows", "sources", "pooled", "development"
        )
    return found


def _instead(device: Device) -> Mapping[str, str]:
    computed = {known.name: format_of(computed_in(known.dtype, device, narrows=False)).name for known in FORMATS}
    return {name: other for name, other in computed.items() if name != other}


def _constants(of: Efficiency) -> list[float | None]:
    """Return an efficiency as a list of its constants, in the order of its fields, as `Efficiency` in formulas.js."""
    return list(dataclasses.astuple(of))


def _reductions(link: Interconnect) -> Mapping[str, Any]:
    """Return the measured all-reduces by kind of kernel and number of GPUs: message sizes in bytes, and seconds."""
    return {
        kind: {str(ranks): [list(curve.nbytes), list(curve.seconds)] for ranks, curve in known.items()}
        for kind, known in link.all_reduce.items()
    }


def _place(pool: list[Mapping[str, Any]], value: Mapping[str, Any]) -> int:
    """Return the index of a value in a pool, to which it is added if it is missing."""
    if value not in pool:
        pool.append(value)
    return pool.index(value)


def _prices(device: Device, sellers: Sequence[PriceSnapshot]) -> list[Mapping[str, Any]]:
    """Return the prices of a device: that in a user's device file, else that of each seller."""
    own = (
        [device.price]
        if device.price is not None
        else [price for each in sellers if (price := each.price_of(device.name))]
    )
    return [dataclasses.asdict(price) for price in own]


def _engine(engine: EngineProfile) -> Mapping[str, Any]:
    """Return the fields of an engine profile, with `overhead` as a description of its memory rule."""
    fields = dataclasses.asdict(engine)
    return fields | {"overhead": engine.memory.describe()}
