"""`ridgeline plan --list`: the names that a plan knows, with the figures by which one chooses."""

from typing import Any

from rich.console import Console
from rich.table import Table

from ridgeline.checkpoint.source import CATALOGUE, read_config
from ridgeline.models import build
from ridgeline.models.bill import bill
from ridgeline.roofline.cards import cards
from ridgeline.roofline.plan.units import gib


def list_json() -> dict[str, Any]:
    """Models with their parameters, and cards with bytes, bytes a second, FLOP/s and dollars an hour."""
    models = []
    for name in sorted(path.stem for path in CATALOGUE.glob("*.json")):
        counted = bill(build(read_config(name)))
        models.append({"name": name, "parameters": counted.total, "active_parameters": counted.active})
    return {
        "models": models,
        "cards": [
            {
                "name": card.name,
                "title": card.title,
                "memory_bytes": card.memory,
                "bandwidth": card.bandwidth,
                "bf16": card.peaks.get("bf16"),
                "dollars_per_hour": None if card.price is None else card.price.dollars,
            }
            for card in cards()
        ],
    }


def print_list(width: int | None) -> None:
    """Print both tables on standard output."""
    console, listed = Console(highlight=False, width=width), list_json()
    models = _table("model", "parameters", "active", left=1)
    for model in listed["models"]:
        total, active = model["parameters"], model["active_parameters"]
        models.add_row(model["name"], _billions(total), _billions(active) if active != total else "")
    known = _table("card", "title", "GiB", "GB/s", "bf16 TFLOP/s", "$/h", left=2)
    for card in listed["cards"]:
        peak, price = card["bf16"], card["dollars_per_hour"]
        known.add_row(
            card["name"],
            card["title"],
            f"{gib(card['memory_bytes']):,.0f}",
            f"{card['bandwidth'] / 1e9:,.0f}",
            "" if peak is None else f"{peak / 1e12:,.0f}",
            "" if price is None else f"{price:.2f}",
        )
    console.print(models)
    console.print()
    console.print(known)
    console.print("\nMODEL may also be a config.json, --device a card file (docs/plan.md), `this` or `cuda`.")


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.0f} M"


def _table(*columns: str, left: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right")
    return table
