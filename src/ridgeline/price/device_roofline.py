"""The data of a roofline chart: the memories and number formats of a device as roofs over a model's points."""

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
    """Return a roofline chart of a model on a device, with a slope per cache and memory and a ceiling per compute peak.

    Number formats with the same peak share a ceiling.

    Args:
        model: The name of the model, for the title.
        device: The device whose roofs are drawn.
        numbers: The number formats whose compute ceilings are drawn.
        points: The points of the model.
        unplaced: Texts for the op classes without FLOPs, which have no place in the chart.
        note: A remark about the points, for the title.
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
