"""What the package states its trust from: price/accuracy.toml, made of all priced rows."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.price.accuracy import NEAR, AccuracyRow

OUT = Path(__file__).resolve().parents[1] / "src" / "ridgeline" / "price" / "accuracy.toml"
_HEAD = "# Made by benchmarks/accuracy.py from benchmarks/measured; see price/accuracy.py. Do not edit.\n"


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
    return [_row(*key, errors) for key, errors in sorted(groups.items())]


def _row(card: str, engine: str, metric: str, errors: list[float]) -> AccuracyRow:
    near = sum(abs(error) <= NEAR for error in errors)
    median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
    return AccuracyRow(card, engine, metric, len(errors), near, round(median, 4), round(worst, 4))


def written(rows: Iterable[AccuracyRow]) -> str:
    """The file."""
    return _HEAD + "".join(
        f'\n[[row]]\ncard = "{r.card}"\nengine = "{r.engine}"\nmetric = "{r.metric}"\n'
        f"rows = {r.rows}\nwithin = {r.within}\nmedian = {r.median}\nworst = {r.worst}\n"
        for r in rows
    )
