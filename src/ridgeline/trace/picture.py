"""What a roofline picture shows: the device's roofs, and a point for every class of ops of each step.

Both axes are logarithmic: FLOPs a byte, and FLOP/s. A memory is a slope (its bandwidth times the intensity), a number
format is a ceiling (its peak).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline import figures
from ridgeline.roofline.device import Device
from ridgeline.trace.decades import Ends, ends_around
from ridgeline.trace.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Point:
    """A class of ops in a step, or a whole step. measured: whether flops_per_second was measured or is only expected.
    roof: FLOP/s at its bound, with every byte where it lives. share: of the step's time, None for what is no part."""

    kind: str
    step: str
    intensity: float
    flops_per_second: float
    roof: float
    measured: bool
    share: float | None = None

    @property
    def of_roof(self) -> float:
        """Which share of its roof it reaches."""
        return self.flops_per_second / self.roof


@dataclass(frozen=True, slots=True)
class Roof:
    """A memory (bytes a second) or a number format (FLOP/s)."""

    name: str
    rate: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A roofline plot, to be drawn. x, y: the ends of its axes, whole powers of ten. unplaced: classes without a FLOP,
    which have no place on it, and the bandwidth that they reached."""

    title: str
    slopes: tuple[Roof, ...]
    ceilings: tuple[Roof, ...]
    points: tuple[Point, ...]
    unplaced: tuple[str, ...]
    x: Ends
    y: Ends


def picture(ledger: Ledger) -> Picture:
    """The picture of a ledger."""
    points, unplaced = _points(ledger)
    numbers = dict.fromkeys(number for step in ledger.steps for number, flops in step.cost.flops.items() if flops)
    note = "" if ledger.at_hand else "measured on another machine"
    return roofline(ledger.model, ledger.device, numbers, points, unplaced, note)


def roofline(
    model: str,
    device: Device,
    numbers: Iterable[str],
    points: Sequence[Point],
    unplaced: Sequence[str] = (),
    note: str = "",
) -> Picture:
    """Points of a model under a device's roofs: all its memories, and the ceilings of number formats. note: what the
    title should say of the points."""
    ceilings: dict[float, list[str]] = {}
    for number in numbers:
        ceilings.setdefault(device.peak(number), []).append(number)
    peaks = [Roof(" = ".join(names), rate) for rate, names in sorted(ceilings.items(), reverse=True)]
    slopes = [Roof(cache.name, cache.bandwidth) for cache in device.caches] + [Roof("memory", device.bandwidth)]
    slopes.sort(key=lambda roof: -roof.rate)
    x, y = _axes(points, slopes, peaks)
    state = "calibrated" if device.calibrated else "uncalibrated"
    title = f"{model} on {device.title} ({state}{note and f'; {note}'})"
    return Picture(title, tuple(slopes), tuple(peaks), tuple(points), tuple(unplaced), x, y)


def _points(ledger: Ledger) -> tuple[list[Point], list[str]]:
    points: list[Point] = []
    unplaced: list[str] = []
    for step in ledger.steps:
        whole = ledger.whole(step.name)
        for group in ledger.classes():
            total = group.totals[step.name]
            seconds = total.measured or total.expected
            flops, moved = total.cost.total_flops, total.cost.total_bytes
            if flops and moved and seconds:
                measured, at_bound = total.measured > 0, flops / total.bound
                points.append(
                    Point(group.label, step.name, flops / moved, flops / seconds, at_bound, measured, seconds / whole)
                )
            elif moved and seconds:
                unplaced.append(f"{group.label} ({step.name}) {figures.say(moved / seconds, 'B/s')}")
    return points, unplaced


def _axes(points: Sequence[Point], slopes: Sequence[Roof], ceilings: Sequence[Roof]) -> tuple[Ends, Ends]:
    """Whole decades around points and ridges, with room at the ends."""
    top, fastest, slowest = ceilings[0].rate, slopes[0].rate, slopes[-1].rate
    intensities = [*(point.intensity for point in points), top / slowest, ceilings[-1].rate / fastest]
    rates = [*(point.flops_per_second for point in points), top]
    return (
        ends_around([0.9 * min(intensities), 1.5 * max(intensities)]),
        ends_around([0.9 * min(rates), 1.5 * max(rates)]),
    )
