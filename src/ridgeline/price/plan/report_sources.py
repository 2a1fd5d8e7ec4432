"""The sources of a report: of the facts of devices, kernel constants, the engine, prices and the known errors."""

from collections.abc import Iterable, Iterator

from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.device_basis import describe_basis
from ridgeline.price.engine_profile import EngineProfile
from ridgeline.price.interval_text import describe_cases, describe_factors
from ridgeline.price.plan.comparison import DeviceComparison
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.util.document.elements import DocumentBlock, DocumentTable, Facts, Heading, TableRow, columns
from ridgeline.util.document.humanize import gib, say, say_gib, three_digits


def source_blocks(plan: DeploymentPlan | None, comparison: DeviceComparison | None) -> Iterator[DocumentBlock]:
    """Yield the sources of a plan and of a comparison, each under a heading."""
    if plan is not None:
        device, engine = plan.case.device, plan.case.setup.engine
        yield Heading(f"Sources: {device.title}")
        yield _facts(device)
        yield Heading("Sources: predictions compared with measurements")
        found = plan.intervals
        factors = (
            (kind, describe_factors(kind, interval))
            for kind, interval in found.items()
            if kind not in ("memory", "image")
        )
        yield Facts((*factors, ("cases", describe_cases(found["decode"], plan.case.setup.device))))
        yield from _engine(engine)
    if comparison is not None:
        yield Heading("Sources: devices compared")
        yield _devices({offer.device.name: comparison.setup.on(offer.device).device for offer in comparison.offers})
        engines = (comparison.setup.on(offer.device).engine for offer in comparison.offers)
        own = "" if plan is None else plan.case.setup.engine.name
        for engine in {engine.name: engine for engine in engines if engine.name != own}.values():
            yield from _engine(engine)
    prices = _prices(plan, comparison)
    if prices:
        yield Heading("Sources: prices")
        yield Facts(tuple(dict.fromkeys((f"{price.asked_by} ({price.date})", price.source) for price in prices)))


def _facts(device: Device) -> DocumentTable:
    """Return the facts of a device, with the source of each."""
    rows = [TableRow((name, _value(device, name), source)) for name, source in device.sources.items()]
    rows.append(TableRow(("kernels", "", describe_basis(device))))
    return DocumentTable(columns("", "", "source", words=(0, 1, 2)), tuple(rows))


def _value(device: Device, name: str) -> str:
    """Return the value of a fact by its field in a device file; "" for what has no single value."""
    kind, _, number_format = name.partition(".")
    if kind == "tflops":
        return say(device.peaks[number_format], "FLOP/s") if number_format in device.peaks else ""
    if name == "link" and device.link is not None:
        return f"{device.link.name}, {_rate(device.link.bandwidth)}"
    if name == "caches":
        return ", ".join(
            f"{cache.name} {say_gib(gib(cache.nbytes))}, {_rate(cache.bandwidth)}" for cache in device.caches
        )
    values = {
        "bandwidth": _rate(device.bandwidth),
        "memory": say_gib(gib(device.memory)),
        "host_link": "" if device.host_link is None else _rate(device.host_link),
        "watts": "" if device.watts is None else f"{three_digits(device.watts)} W",
        "price": "" if device.price is None else f"${device.price.dollars:.2f} per hour",
    }
    return values.get(name, "")


def _rate(bandwidth: float) -> str:
    return say(bandwidth, "B/s")


def _devices(devices: dict[str, Device]) -> DocumentTable:
    """Return the main facts of the compared devices, with all sources of each."""
    rows = (
        TableRow((
            name, say_gib(gib(device.memory)), _rate(device.bandwidth),
            ", ".join(f"{number_format} {three_digits(peak / 1e12)}" for number_format, peak in device.peaks.items()),
            "" if device.watts is None else three_digits(device.watts),
            "; ".join(dict.fromkeys((*device.sources.values(), describe_basis(device)))),
        ))
        for name, device in devices.items()
    )  # fmt: skip
    heads = ("", "memory", "bandwidth", "dense TFLOP/s", "W", "sources")
    return DocumentTable(columns(*heads, words=(0, 3, 5)), tuple(rows))


def _engine(engine: EngineProfile) -> Iterator[DocumentBlock]:
    yield Heading(f"Sources: {engine.title}")
    yield Facts(tuple(engine.sources.items()))


def _prices(plan: DeploymentPlan | None, comparison: DeviceComparison | None) -> list[HourlyPrice]:
    """Return the prices of a plan and of a comparison."""
    offered: Iterable[HourlyPrice | None] = (
        [] if comparison is None else (offer.outcome.price for offer in comparison.offers)
    )
    own = None if plan is None else plan.case.device.price
    return [price for price in (own, *offered) if price is not None]
