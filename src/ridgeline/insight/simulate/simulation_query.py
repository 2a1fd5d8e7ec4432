"""The input of a simulation: a machine, its traffic, its objectives, and the expected error of the prices."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import ALONE, SimulatedFleet
from ridgeline.insight.traffic.offered import Offered
from ridgeline.insight.traffic.slo import SLO
from ridgeline.price.accuracy import accuracy_rows
from ridgeline.price.device import Device

_CALIBRATED = 0.12  # benchmarks/local_accuracy.md: the error of a calibrated machine is lower in four of five rows


@dataclass(frozen=True, slots=True)
class PriceUncertainty:
    """The expected relative error of a price, and the source of that figure."""

    share: float
    source: str


def price_error(device: Device, devices: int) -> PriceUncertainty:
    """Return the expected relative error of predicted step times on a device.

    It is the mean of the published median errors over GPUs and engines, weighted by their numbers of measurements:
    those of decode and prefill, or for 8 GPUs and more those of all runs on 8 GPUs. A calibrated machine has its own
    figure, which four of five of its rows stay within.
    """
    if device.calibrated:
        return PriceUncertainty(
            _CALIBRATED,
            ("on calibrated machines, four of five steps have a smaller error (benchmarks/local_accuracy.md)"),
        )
    metrics = ("tp8",) if devices >= 8 else ("decode", "prefill")
    rows = [row for row in accuracy_rows() if row.metric in metrics]
    count = sum(row.rows for row in rows)
    what = "for 8 GPUs" if devices >= 8 else "for decode and prefill"
    share = sum(row.rows * row.median for row in rows) / count
    return PriceUncertainty(
        share, (f"the median error of {count} published measurements {what} (benchmarks/accuracy.md)")
    )


@dataclass(frozen=True, slots=True)
class SimulationQuery:
    """The machine, traffic and objectives of a simulation."""

    model: str
    machine: Machine
    traffic: str
    """A description of the traffic for the report."""
    open_loop: bool
    """Whether arrivals are independent of responses."""
    offered: Callable[[], Offered]
    """A function that creates the traffic anew, with the same requests each time."""
    slo: SLO | None
    error: PriceUncertainty
    seed: int
    fleet: SimulatedFleet = ALONE
    """The replicas and how requests are distributed over them."""
    rated: str = "requests"
    """The unit of the arrival rate: `requests`, or `conversations` if each has several turns."""

    @property
    def dollars_per_hour(self) -> float | None:
        """The hourly price of all GPUs of all replicas at the start; None if a price is unknown."""
        return self.dollars_of(self.fleet.size)

    def dollars_of(self, replicas: float) -> float | None:
        """Return the hourly price of a number of replicas, those on other GPUs included; None if a price is unknown."""
        others = self.fleet.others
        hourly = [machine.case.setup.hourly for machine in (self.machine, *others)]
        known = [each for each in hourly if each is not None]
        return None if len(known) < len(hourly) else known[0] * (replicas - len(others)) + sum(known[1:])
