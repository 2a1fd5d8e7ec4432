"""The roofline of a device, to be drawn: its memories and number formats as roofs over points."""

from collections.abc import Iterable, Sequence

from ridgeline.price.device import Device
from ridgeline.util.document.roofline_chart import Point, RoofCurve, Roofline


def roofline(
    model: str,
    device: Device,
    numbers: Iterable[str],
    points: Sequence[Point],
    unplaced: Sequence[str] = (),
    note: str = "",
) -> Roofline:
    """Points of a model under a device's roofs: all its memories, and the ceilings of number formats. note: what the
    title should say of the points.
    """
    ceilings: dict[float, list[str]] = {}
    for number_format in numbers:
        ceilings.setdefault(device.peak(number_format), []).append(number_format)
    peaks = [RoofCurve(" = ".join(names), rate) for rate, names in sorted(ceilings.items(), reverse=True)]
    slopes = [RoofCurve(cache.name, cache.bandwidth) for cache in device.caches] + [
        RoofCurve("memory", device.bandwidth)
    ]
    slopes.sort(key=lambda roof: -roof.rate)
    state = "calibrated" if device.calibrated else "uncalibrated"
    title = f"{model} on {device.title} ({state}{note and f'; {note}'})"
    return Roofline(title, tuple(slopes), tuple(peaks), tuple(points), tuple(unplaced))
