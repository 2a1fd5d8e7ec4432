"""How far to trust a figure: what measurements of the very card said of figures of its class, and whose kernel times
the price rests on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from ridgeline.price.accuracy import METRICS, AccuracyRow, accuracy_rows
from ridgeline.price.device import Basis, Device

PLAN_METRICS = ("memory", "prefill", "decode", "serving")
"""The classes that a plan's figures belong to; of eight cards all but memory are tp8."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Measurements of one card that figures of one class were held against. within: how many of the rows were predicted
    within `accuracy.NEAR`. median: of the absolute errors; worst: signed; both None where there are no rows. others:
    the engines that they are of, none for the one asked about.
    """

    metric: str
    rows: int
    within: int
    median: float | None
    worst: float | None
    others: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        if self.median is None:
            return "not measured"
        rows = f"{self.rows} {'row' if self.rows == 1 else 'rows'}"
        return f"{self.median:.0%} off ({rows}{' of ' if self.others else ''}{', '.join(self.others)})"


def class_of(metric: str, devices: int) -> str:
    """The class of a figure: over eight cards and more the all-reduce decides, and times are tp8."""
    assert metric in METRICS, metric
    return "tp8" if devices >= 8 and metric != "memory" else metric


def trust_in(card: str, engine: str, metric: str, rows: Sequence[AccuracyRow] | None = None) -> Trust:
    """What is known of a card under an engine in one class: that engine's rows; where it has none, all others'."""
    known = accuracy_rows() if rows is None else rows
    of_card = [row for row in known if (row.card, row.metric) == (card, metric)]
    own = [row for row in of_card if row.engine == engine]
    return _together(metric, own, ()) if own else _together(metric, of_card, tuple(row.engine for row in of_card))


def classes_of(card: str, engine: str, devices: int) -> list[Trust]:
    """Of every class that the plan of so many of a card has figures of."""
    return [trust_in(card, engine, metric) for metric in dict.fromkeys(class_of(m, devices) for m in PLAN_METRICS)]


def basis_of(device: Device) -> Basis | Literal["calibrated"]:
    """Whose kernel times the constants of a card are."""
    return "calibrated" if device.calibrated else device.basis


def describe_basis(device: Device) -> str:
    """`kernel times of h100-sxm, of the same family`."""
    match basis_of(device):
        case "calibrated":
            return "calibrated on this machine"
        case "own":
            return "its own kernel times"
        case "alike":
            return f"kernel times of {device.measured_on}, of the same family"
        case "kind":
            return "no kernel times of this card: constants of its kind"
        case "file":
            return "efficiencies as the card's file states them"
        case "probe":
            return "no kernel times of this machine: a probe of its roofs, and common constants"


def describe_trust(device: Device, found: Iterable[Trust]) -> str:
    """Say how far predictions for a card were off, what its constants are, and what was not measured on it."""
    found = list(found)
    if device.calibrated:
        return describe_basis(device)
    measured = [f"{trust.metric} {trust}" for trust in found if trust.rows]
    missing = [trust.metric for trust in found if not trust.rows]
    if not measured:
        return f"no measurement of this card; {describe_basis(device)}"
    unmeasured = [f"not measured on it: {', '.join(missing)}"] if missing else []
    return "; ".join((", ".join(measured), describe_basis(device), *unmeasured))


def _together(metric: str, rows: Sequence[AccuracyRow], others: tuple[str, ...]) -> Trust:
    """Of several engines the median is the mean of theirs, weighted by rows."""
    if not rows:
        return Trust(metric, 0, 0, None, None)
    count = sum(row.rows for row in rows)
    median = sum(row.rows * row.median for row in rows) / count
    within = sum(row.within for row in rows)
    return Trust(metric, count, within, median, max((row.worst for row in rows), key=abs), others)
