"""The input of a simulation: a machine, its traffic, its objectives, and the expected error of the prices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import ALONE, SimulatedFleet
from ridgeline.insight.traffic.offered import Offered
from ridgeline.insight.traffic.slo import SLO
from ridgeline.price.error_interval import LEVELS
from ridgeline.price.plan.scenario import Scenario
from ridgeline.util.json_data import json_shape


@json_shape("low", "high", "source", "?share")
@dataclass(frozen=True, slots=True)
class PriceUncertainty:
    """The factors on predicted step times between which measured times are expected, and the source of the factors."""

    low: float
    """The factor of the fastest measurements; more than 0 and at most 1."""
    high: float
    """The factor of the slowest measurements; at least 1."""
    source: str
    share: float | None = None
    """The relative error that a user gave; None if the factors come from measurements."""

    @classmethod
    def of_share(cls, share: float, source: str) -> Self:
        """Return the uncertainty of a relative error that is the same in both directions."""
        return cls(1 - share, 1 + share, source, share)

    @property
    def is_none(self) -> bool:
        """Whether the predicted times are taken as exact."""
        return self.low == self.high == 1


def price_error(case: Scenario) -> PriceUncertainty:
    """Return the factors between which 8 of 10 measured steps lie, on a scenario's devices and engine.

    A plan has the same factors on its figures under load. A simulation multiplies the times of steps by them, and
    queues follow from these.
    """
    load = case.intervals["load"]
    return PriceUncertainty(load.low, load.high, f"{load.measurements}; {LEVELS[load.known]}")


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
