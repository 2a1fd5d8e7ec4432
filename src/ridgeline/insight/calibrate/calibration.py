"""A calibration: what was measured of a machine and fitted to it, as numbers that a file can hold."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.insight.calibrate.roofs import MemoryStream, peaks
from ridgeline.price.device import Cache, Device, Efficiency, HostTime
from ridgeline.price.slowdown import Slowdown


@dataclass(frozen=True, slots=True)
class FittedClass:
    """The constants of a kernel class and how well they fit: median and worst of the relative errors."""

    efficiency: Efficiency
    observations: int
    median_error: float
    worst_error: float


@dataclass(frozen=True, slots=True)
class Residual:
    """What the kernels of a class took in one step of a trial, and what the constants say."""

    kernel: str
    where: str
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine with so many threads.

    made: when, UTC. seconds: how long it took. pace: of the probes that ran meanwhile, undisturbed, at which all
    figures hold; disturbed: how many times longer they took on average, with all that was in the way, None of a card,
    where nobody else is. products: FLOP/s of matrix products, by format. host: None for a device that the engine does
    not run on; host_error: its median error, relative to whole steps. native: whether it ran our kernels
    (`backends/`).
    """

    title: str
    kind: str
    threads: int
    made: str
    seconds: float
    memory: float
    streams: tuple[MemoryStream, ...]
    bandwidth: float
    caches: tuple[Cache, ...]
    products: Mapping[str, float]
    classes: Mapping[str, FittedClass]
    host: HostTime | None
    host_error: float
    native: bool
    pace: Slowdown
    disturbed: Slowdown | None
    residuals: tuple[Residual, ...]

    def device(self) -> Device:
        """The machine as a Device."""
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
        """As objects that json writes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Calibration":
        """What `as_json` gave. Anything else raises AttributeError, KeyError, TypeError or ValueError."""
        fields = dict(values)
        fields["streams"] = tuple(MemoryStream(**entry) for entry in fields["streams"])
        fields["caches"] = tuple(Cache(**entry) for entry in fields["caches"])
        fields["residuals"] = tuple(Residual(**entry) for entry in fields["residuals"])
        fields["host"] = None if fields["host"] is None else HostTime(**fields["host"])
        fields["pace"] = Slowdown(**fields["pace"])
        fields["disturbed"] = None if fields["disturbed"] is None else Slowdown(**fields["disturbed"])
        fields["classes"] = {
            name: FittedClass(**entry | {"efficiency": Efficiency(**entry["efficiency"])})
            for name, entry in fields["classes"].items()
        }
        return cls(**fields)
