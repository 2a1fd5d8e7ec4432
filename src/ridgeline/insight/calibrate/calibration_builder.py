"""The construction of a Calibration from measurements and fitted constants."""

import datetime
from collections.abc import Mapping, Sequence

from ridgeline.insight.calibrate.calibration import Calibration, FittedClass, Residual
from ridgeline.insight.calibrate.fit import Class, FittedConstants, Observation, class_name
from ridgeline.insight.calibrate.roofs import MemoryStream
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device, HostTime
from ridgeline.price.slowdown import Slowdown


def build_calibration(
    roofs: Device,
    timer: Timer,
    begun: float,
    measured: Sequence[MemoryStream],
    multiplied: Mapping[str, float],
    observed: Mapping[Class, Sequence[Observation]],
    fitted: Mapping[str, FittedConstants],
    host: tuple[HostTime | None, float],
    *,
    pace: Slowdown,
    disturbed: Slowdown | None,
) -> Calibration:
    """Combine measurements and fitted constants into a Calibration.

    Args:
        roofs: The machine without constants.
        timer: The timer that measured.
        begun: The wall time at which the calibration started.
        measured: The memory streams behind the roofs.
        multiplied: The FLOP/s of matrix products behind the roofs, by number format.
        observed: The observations by kernel class.
        fitted: The fitted constants by class name.
        host: The host time of a step, with its median error.
        pace: The undisturbed probe times.
        disturbed: The factors by which probes took longer on average; None for a GPU.
    """
    return Calibration(
        title=roofs.title,
        kind=roofs.kind,
        threads=timer.threads,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        seconds=timer.wall() - begun,
        memory=roofs.memory,
        streams=tuple(measured),
        bandwidth=roofs.bandwidth,
        caches=roofs.caches,
        products=multiplied,
        classes={name: _class(one) for name, one in sorted(fitted.items())},
        host=host[0],
        host_error=host[1],
        native=roofs.native,
        pace=pace,
        disturbed=disturbed,
        residuals=_residuals(observed, fitted),
    )


def _class(fitted: FittedConstants) -> FittedClass:
    return FittedClass(fitted.efficiency, len(fitted.errors), fitted.median_error, fitted.worst_error)


def _residuals(
    observed: Mapping[Class, Sequence[Observation]], fitted: Mapping[str, FittedConstants]
) -> tuple[Residual, ...]:
    residuals = []
    for (kernel, number_format), group in observed.items():
        name = class_name(kernel, number_format)
        errors = fitted[name].errors
        residuals += [
            Residual(name, o.where, o.seconds, o.seconds * (1 + e)) for o, e in zip(group, errors, strict=True)
        ]
    return tuple(residuals)
