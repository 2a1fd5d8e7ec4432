"""The accuracy of predictions: errors measured on the same device, and the origin of its efficiency constants."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from ridgeline.price.accuracy import METRICS, AccuracyRow, accuracy_rows
from ridgeline.price.device import Basis, Device

PLAN_METRICS = ("memory", "prefill", "decode", "serving")
"""The metrics of `METRICS` whose measured errors apply to the figures of a plan.

For a plan on eight or more devices, the errors of the metric "tp8" apply to all figures except memory.
"""


@dataclass(frozen=True, slots=True)
class Trust:
    """The errors of past predictions of one metric on one device, compared with measurements."""

    metric: str
    rows: int
    """The number of measurements that predictions were compared with."""
    within: int
    """The number of measurements that were predicted within `accuracy.NEAR`."""
    median: float | None
    """The median of the absolute prediction errors; None without measurements.

    For several engines it is the mean of their medians, weighted by their measurements.
    """
    worst: float | None
    """The signed prediction error of the largest magnitude; None without measurements."""
    others: tuple[str, ...] = ()
    """The engines that the measurements are from; empty if they are from the requested engine, or if there are none."""

    @override
    def __str__(self) -> str:
        if self.median is None:
            return "not measured"
        rows = f"{self.rows} {'measurement' if self.rows == 1 else 'measurements'}"
        return f"{self.median:.0%} off ({rows}{' of ' if self.others else ''}{', '.join(self.others)})"


def class_of(metric: str, devices: int) -> str:
    """Return the accuracy metric of a figure on a number of devices.

    On eight or more devices all-reduce dominates, so times count as "tp8".
    """
    assert metric in METRICS, metric
    return "tp8" if devices >= 8 and metric != "memory" else metric


def trust_in(device: str, engine: str, metric: str, rows: Sequence[AccuracyRow] | None = None) -> Trust:
    """Return the known errors of a metric on a device, under the given engine or else under all other engines."""
    known = accuracy_rows() if rows is None else rows
    of_device = [row for row in known if (row.card, row.metric) == (device, metric)]
    own = [row for row in of_device if row.engine == engine]
    return _together(metric, own, ()) if own else _together(metric, of_device, tuple(row.engine for row in of_device))


def classes_of(device: str, engine: str, devices: int) -> list[Trust]:
    """Return the known errors of every metric that a plan on `devices` devices contains."""
    return [trust_in(device, engine, metric) for metric in dict.fromkeys(class_of(m, devices) for m in PLAN_METRICS)]


def basis_of(device: Device) -> Basis | Literal["calibrated"]:
    """Return the origin of a device's efficiency constants, such as "calibrated" or "own"."""
    return "calibrated" if device.calibrated else device.basis


def describe_basis(device: Device) -> str:
    """Return a text on the origin of a device's constants, such as `kernel times of h100-sxm, a device of ...`."""
    match basis_of(device):
        case "calibrated":
            return "calibrated on this machine"
        case "own":
            return "kernel times measured on this device"
        case "alike":
            return f"kernel times of {device.measured_on}, a device of the same family"
        case "kind":
            return "no kernel times of this device: typical constants of its kind"
        case "file":
            return "efficiency constants from the device's file"
        case "probe":
            return "no kernel times of this machine: a short probe of its peak rates, and typical constants"


def describe_trust(device: Device, found: Iterable[Trust]) -> str:
    """Return a text with the errors of predictions for a device, the metrics not measured and the constants' origin."""
    found = list(found)
    if device.calibrated:
        return describe_basis(device)
    measured = [f"{_title(trust)} {trust}" for trust in found if trust.rows]
    missing = [_title(trust) for trust in found if not trust.rows]
    if not measured:
        return f"no measurements on this device; {describe_basis(device)}"
    unmeasured = [f"no measurements of: {', '.join(missing)}"] if missing else []
    return "; ".join((", ".join(measured), describe_basis(device), *unmeasured))


def _title(trust: Trust) -> str:
    """Return the name of a metric in a text; accuracy.toml and the JSON call images and videos `picture`."""
    return "images and videos" if trust.metric == "picture" else trust.metric


def _together(metric: str, rows: Sequence[AccuracyRow], others: tuple[str, ...]) -> Trust:
    """Return the errors of several engines combined. The median is the mean of theirs, weighted by measurements."""
    if not rows:
        return Trust(metric, 0, 0, None, None)
    count = sum(row.rows for row in rows)
    median = sum(row.rows * row.median for row in rows) / count
    within = sum(row.within for row in rows)
    return Trust(metric, count, within, median, max((row.worst for row in rows), key=abs), others)
