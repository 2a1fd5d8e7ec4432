"""What the package states its trust from: roofline/accuracy.toml, made of all priced rows."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.roofline.accuracy import AccuracyRow

OUT = Path(__file__).resolve().parents[1] / "src" / "ridgeline" / "roofline" / "accuracy.toml"
_HEAD = "# Made by benchmarks/accuracy.py from benchmarks/measured; see roofline/accuracy.py. Do not edit.\n"


@dataclass(frozen=True, slots=True)
class Miss:
    """The error of one row, and what it counts as."""

    card: str
    engine: str
    metric: str
    error: float


def trust(misses: Iterable[Miss]) -> list[AccuracyRow]:
    """By card, engine and metric, in alphabetical order."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for miss in misses:
        groups.setdefault((miss.card, miss.engine, miss.metric), []).append(miss.error)
    return [
        AccuracyRow(*key, len(errors), round(statistics.median(map(abs, errors)), 4), round(max(errors, key=abs), 4))
        for key, errors in sorted(groups.items())
    ]


def written(rows: Iterable[AccuracyRow]) -> str:
    """The file."""
    return _HEAD + "".join(
        f'\n[[row]]\ncard = "{r.card}"\nengine = "{r.engine}"\nmetric = "{r.metric}"\n'
        f"rows = {r.rows}\nmedian = {r.median}\nworst = {r.worst}\n"
        for r in rows
    )
