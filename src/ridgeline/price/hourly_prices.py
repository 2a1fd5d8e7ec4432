"""Hourly prices of devices: one dated snapshot per seller, from prices.toml or a user's file of the same form."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.device_fields import TableReader
from ridgeline.util.untrusted import read_toml

_DATE = re.compile(r"20\d\d(-\d\d){0,2}")
_FORM = "title, date, source and dollars = { h100-sxm = 2.5 }"


@dataclass(frozen=True, slots=True)
class PriceSnapshot:
    """The hourly prices of devices that one seller asked at one date, which may be a day, a month or a year."""

    seller: str
    """The seller's key in the price file, in lower case."""
    title: str
    """The seller and the offer, as shown to users."""
    date: str
    source: str
    dollars: Mapping[str, float]
    """The dollars per device and hour, by device name."""

    def price_of(self, device: str) -> HourlyPrice | None:
        """Return the seller's price of a device, or None if the seller does not offer it."""
        dollars = self.dollars.get(device)
        return None if dollars is None else HourlyPrice(dollars, self.date, self.source, self.title)


@cache
def builtin_snapshots() -> tuple[PriceSnapshot, ...]:
    """Return the price snapshots that come with the package, in order of preference."""
    text = resources.files("ridgeline.price").joinpath("prices.toml").read_text(encoding="utf-8")
    return _snapshots(tomllib.loads(text), "prices.toml")


def read_prices(path: Path) -> tuple[PriceSnapshot, ...]:
    """Return the price snapshots of a user's file.

    Raises:
        ValueError: If the file is invalid or empty. The message has one line and names the file and the field.
    """
    found = _snapshots(read_toml(path), str(path))
    if not found:
        raise ValueError(f"{path} names no seller; write [my-seller] with {_FORM}")
    return found


def seller_named(sellers: Sequence[PriceSnapshot], wanted: str) -> PriceSnapshot:
    """Return the seller called `wanted`.

    Raises:
        ValueError: If there is no such seller. The message lists the known ones.
    """
    named = next((each for each in sellers if each.seller == wanted.lower()), None)
    if named is None:
        raise ValueError(f"--seller is {wanted!r}; it must be one of {', '.join(each.seller for each in sellers)}")
    return named


def seller_of(
    sellers: Sequence[PriceSnapshot], devices: Iterable[str], wanted: str | None = None
) -> PriceSnapshot | None:
    """Return the seller called `wanted`, by default the first one that offers the most of the given devices.

    Return None if no seller offers any of them.

    Raises:
        ValueError: If there is no seller called `wanted`.
    """
    if wanted is not None:
        return seller_named(sellers, wanted)
    names = set(devices)
    most = max(sellers, key=lambda each: len(names & each.dollars.keys()), default=None)
    return most if most is not None and names & most.dollars.keys() else None


def with_prices(devices: Iterable[Device], seller: PriceSnapshot | None, *, over: bool = False) -> tuple[Device, ...]:
    """Return the devices with a seller's prices.

    Args:
        devices: The devices to price.
        seller: The seller; None leaves all devices unchanged.
        over: Whether the seller's price replaces a price from the user's own device file.
    """
    return tuple(devices) if seller is None else quotes(devices, (seller,), over=over)


def quotes(devices: Iterable[Device], sellers: Sequence[PriceSnapshot], *, over: bool = False) -> tuple[Device, ...]:
    """Return each device once per seller that offers it, at that seller's price, or once unchanged if none does.

    Args:
        devices: The devices to price.
        sellers: The sellers to ask.
        over: Whether sellers' prices replace a price from the user's own device file.
    """
    return tuple(quote for device in devices for quote in _quotes(device, sellers, over))


def _quotes(device: Device, sellers: Sequence[PriceSnapshot], over: bool) -> list[Device]:
    quotes = [price for each in sellers if (price := each.price_of(device.name)) is not None]
    if not quotes or (device.price is not None and not over):
        return [device]
    return [replace(device, price=price) for price in quotes]


def _snapshots(tables: Mapping[str, Any], source: str) -> tuple[PriceSnapshot, ...]:
    return tuple(_snapshot(name, TableReader(table, source, f"{name}.")) for name, table in tables.items())


def _snapshot(name: str, table: TableReader) -> PriceSnapshot:
    table.forbid_unknown("title", "date", "source", "dollars")
    date, prices = table.text("date"), table.table("dollars")
    if not _DATE.fullmatch(date):
        raise table.field_error("date", date, "a day, a month or a year, like 2026-11-20")
    dollars = {device: prices.positive(device) for device in prices.values}
    return PriceSnapshot(name.lower(), table.text("title"), date, table.text("source"), dollars)
