"""What cards cost an hour: one dated snapshot a seller, of prices.toml or of a user's file of the same form."""

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
    """What one seller asked on one day. dollars: of one card and hour, by the card's name."""

    seller: str
    title: str
    date: str
    source: str
    dollars: Mapping[str, float]

    def price_of(self, card: str) -> HourlyPrice | None:
        """A card's price; None where the seller does not have it."""
        dollars = self.dollars.get(card)
        return None if dollars is None else HourlyPrice(dollars, self.date, self.source, self.title)


@cache
def snapshots() -> tuple[PriceSnapshot, ...]:
    """Those of the package, in the order in which sellers are asked."""
    text = resources.files("ridgeline.price").joinpath("prices.toml").read_text(encoding="utf-8")
    return _snapshots(tomllib.loads(text), "prices.toml")


def read_prices(path: Path) -> tuple[PriceSnapshot, ...]:
    """Those of a user's file. Raises ValueError in one line that names the file and the field."""
    found = _snapshots(read_toml(path), str(path))
    if not found:
        raise ValueError(f"{path}: no seller in it; write [my-seller] with {_FORM}")
    return found


def seller_named(sellers: Sequence[PriceSnapshot], wanted: str) -> PriceSnapshot:
    """The seller called `wanted`. Raises ValueError with the names there are for an unknown one."""
    named = next((each for each in sellers if each.seller == wanted.lower()), None)
    if named is None:
        raise ValueError(f"--seller is {wanted!r}; it must be one of {', '.join(each.seller for each in sellers)}")
    return named


def seller_of(
    sellers: Sequence[PriceSnapshot], cards: Iterable[str], wanted: str | None = None
) -> PriceSnapshot | None:
    """The seller called `wanted`; else the first of those that have most of the `cards`, None where none has one.

    Raises ValueError as `seller_named`.
    """
    if wanted is not None:
        return seller_named(sellers, wanted)
    names = set(cards)
    most = max(sellers, key=lambda each: len(names & each.dollars.keys()), default=None)
    return most if most is not None and names & most.dollars.keys() else None


def priced(devices: Iterable[Device], seller: PriceSnapshot | None, *, over: bool = False) -> tuple[Device, ...]:
    """The cards at a seller's prices. One that has a price of its own, from a user's card file, keeps it, unless what
    the seller asks stands `over` that.
    """
    return tuple(devices) if seller is None else quotes(devices, (seller,), over=over)


def quotes(devices: Iterable[Device], sellers: Sequence[PriceSnapshot], *, over: bool = False) -> tuple[Device, ...]:
    """The cards, each as often as one of the sellers has it, at their prices; once where none does. over: as of
    `priced`.
    """
    return tuple(quote for device in devices for quote in _quotes(device, sellers, over))


def _quotes(device: Device, sellers: Sequence[PriceSnapshot], over: bool) -> list[Device]:
    asked = [price for each in sellers if (price := each.price_of(device.name)) is not None]
    if not asked or (device.price is not None and not over):
        return [device]
    return [replace(device, price=price) for price in asked]


def _snapshots(tables: Mapping[str, Any], source: str) -> tuple[PriceSnapshot, ...]:
    return tuple(_snapshot(name, TableReader(table, source, f"{name}.")) for name, table in tables.items())


def _snapshot(name: str, table: TableReader) -> PriceSnapshot:
    table.only("title", "date", "source", "dollars")
    date, prices = table.text("date"), table.table("dollars")
    if not _DATE.fullmatch(date):
        raise table.wrong("date", date, "a day, a month or a year, like 2026-11-20")
    dollars = {card: prices.positive(card) for card in prices.values}
    return PriceSnapshot(name.lower(), table.text("title"), date, table.text("source"), dollars)
