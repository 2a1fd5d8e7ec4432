"""A calibration: the measured and fitted numbers of a machine, which a file can hold."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.insight.calibrate.roofs import MemoryStream, peaks
from ridgeline.price.device import Cache, Device, Efficiency, HostTime
from ridgeline.price.slowdown import Slowdown


@dataclass(frozen=True, slots=True)
class FittedClass:
    """The constants of a kernel class, with the median and the worst relative error of the fit."""

    efficiency: Efficiency
    observations: int
    median_error: float
    worst_error: float


@dataclass(frozen=True, slots=True)
class Residual:
    """The measured and predicted seconds of a kernel class in one step of a trial."""

    kernel: str
    where: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of a machine for a number of threads, or of a GPU."""

    title: str
    kind: str
    threads: int
    made: str
    """The date and time of the calibration in UTC."""
    seconds: float
    """The number of seconds that the calibration took."""
    memory: float
    streams: tuple[MemoryStream, ...]
    bandwidth: float
    caches: tuple[Cache, ...]
    products: Mapping[str, float]
    """The measured FLOP/s of matrix products, by number format."""
    classes: Mapping[str, FittedClass]
    host: HostTime | None
    """The constants of the host (CPU) time per engine step; None if no step was measured."""
    host_error: float
    """The median absolute error of the predicted host (CPU) time per step, relative to whole steps.

    For a GPU, it is the error of the predicted time of whole steps.
    """
    native: bool
    """Whether Ridgeline's own kernels ran (`backends/`)."""
    pace: Slowdown
    """The undisturbed times of the speed probes during calibration; the fitted constants hold at this speed."""
    disturbed: Slowdown | None
    """The average slowdown of the speed probes relative to `pace`, due to other processes for example.

    It is None for a GPU, which has no other users during calibration.
    """
    residuals: tuple[Residual, ...]

    def device(self) -> Device:
        """Return the calibrated machine as a Device, for which the cost model predicts times."""
        basis = f"measured on this machine, {self.made}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        return Device(
            "this",
            self.title,
            self.kind,
            peaks(self.products),
            self.bandwidth,
            self.memory,
            self.caches,
            efficiency={name: fitted.efficiency for name, fitted in self.classes.items()},
            host=self.host,
            calibrated=True,
            disturbed=self.disturbed,
            native=self.native,
            sources={"all": basis, "efficiency": basis},
        )

    def as_json(self) -> dict[str, Any]:
        """Return the calibration as JSON data."""
        return dataclasses.asdict(self)
