"""What is asked of a simulation: a machine, its traffic, what is good, and how far prices may be off."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import ALONE, SimulatedFleet
from ridgeline.insight.traffic.offered import Offered
from ridgeline.insight.traffic.slo import SLO
from ridgeline.price.accuracy import accuracy_rows
from ridgeline.price.device import Device

_CALIBRATED = 0.12  # benchmarks/local_accuracy.md: four of five rows of a calibrated machine are nearer than that


@dataclass(frozen=True, slots=True)
class PriceUncertainty:
    """How far a price is expected to be off, as a share, and whose figure that is."""

    share: float
    source: str


def price_error(device: Device, devices: int) -> PriceUncertainty:
    """The median error of the published rows of steps that a price was held against, the mean over cards and engines by
    their rows: decode and prefill, of eight cards and more those of eight. A calibrated machine has rows of its own, of
    which four of five are within its figure.
    """
    if device.calibrated:
        return PriceUncertainty(
            _CALIBRATED, "four of five steps of a calibrated machine are nearer (benchmarks/local_accuracy.md)"
        )
    metrics = ("tp8",) if devices >= 8 else ("decode", "prefill")
    rows = [row for row in accuracy_rows() if row.metric in metrics]
    count = sum(row.rows for row in rows)
    what = "over 8 cards" if devices >= 8 else "of decode and prefill"
    share = sum(row.rows * row.median for row in rows) / count
    return PriceUncertainty(share, f"the median of {count} published rows {what} (benchmarks/accuracy.md)")


@dataclass(frozen=True, slots=True)
class SimulationQuery:
    """What was simulated. traffic: in words. open_loop: whether requests came by themselves. offered: makes them anew,
    the same each time. fleet: which replicas there are, and how requests are dealt to them. rated: what a rate is of,
    that requests come by: requests themselves, or conversations that begin.
    """

    model: str
    machine: Machine
    traffic: str
    open_loop: bool
    offered: Callable[[], Offered]
    slo: SLO | None
    error: PriceUncertainty
    seed: int
    fleet: SimulatedFleet = ALONE
    rated: str = "requests"

    @property
    def dollars_per_hour(self) -> float | None:
        """Of all cards of all replicas at the start; None where no price is known."""
        return self.dollars_of(self.fleet.size)

    def dollars_of(self, replicas: float) -> float | None:
        """An hour of so many replicas, the others among them; None where no price is known."""
        others = self.fleet.others
        hourly = [machine.case.setup.hourly for machine in (self.machine, *others)]
        known = [each for each in hourly if each is not None]
        return None if len(known) < len(hourly) else known[0] * (replicas - len(others)) + sum(known[1:])
