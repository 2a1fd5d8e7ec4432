"""A search for the number of replicas and of GPUs per replica that gives the most good requests per dollar.

More replicas shorten queues, more GPUs per replica shorten steps; both cost the same per GPU. The search runs cheaper
fleets first, and skips a fleet if it could not win even with all requests good.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from ridgeline.insight.simulate.adviser import TriedSetting, simulate_setting
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation import Watch
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Interval
from ridgeline.util.document.humanize import percent, three_digits
from ridgeline.util.json_data import json_shape

DEVICES_PER_REPLICA = (1, 2, 4, 8)
"""The GPU counts per replica that the search tries: powers of two, because the GPUs must divide the attention heads."""

REPLICAS = (1, 2, 3, 4, 6, 8)
"""The replica counts that the search tries."""

MAX_DEVICES = DEVICES_PER_REPLICA[-1] * REPLICAS[-1]
"""The largest number of GPUs that the search considers."""


@json_shape(
    "devices", "replicas", "dollars_per_hour=dollars", "dollars_per_thousand_good", "good_share=option.share",
    "option.metrics",
)  # fmt: skip
@dataclass(frozen=True, slots=True, eq=False)
class SizedFleet:
    """A fleet of replicas with a number of GPUs each, with its simulated result and hourly cost."""

    devices: int
    """The number of GPUs per replica."""
    replicas: int
    option: TriedSetting
    """The simulated result of the fleet."""
    dollars: float
    """The cost of the whole fleet in dollars per hour."""
    offered: float
    """The arrivals per second; if all requests arrive at once, completed requests per second."""

    @property
    def good_share_per_dollar(self) -> float:
        """The share of good requests per dollar of hourly cost."""
        return self.option.share / self.dollars

    @property
    def dollars_per_thousand_good(self) -> float:
        """The dollars per thousand good requests; infinite if none is good or the fleet is overloaded."""
        good = self.option.share * self.offered
        return self.dollars / 3600 / good * 1e3 if good else math.inf

    @property
    def flags(self) -> str:
        """The command-line options that select this fleet."""
        return f"--devices {self.devices} --replicas {self.replicas}"


@json_shape("sentence", "worth", "gain", "own=own.flags", "best=best.flags", "tried")
@dataclass(frozen=True, slots=True)
class FleetSizing:
    """The outcome of a search over fleet sizes: the user's fleet, the best one, and all that were simulated."""

    own: SizedFleet
    """The fleet that the user specified."""
    best: SizedFleet
    """The fleet with the most good requests per dollar."""
    tried: tuple[SizedFleet, ...]
    """All simulated fleets, the cheapest first."""
    gain: Interval | None
    """The relative gain in good requests per dollar, with a paired 95 % interval; None if the user's fleet has none."""

    @property
    def worth(self) -> bool:
        """Whether the best fleet is significantly better than the user's."""
        return self.best is not self.own and (self.gain is None or self.gain.low > 0)

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence, with costs."""
        own, best = self.own, self.best
        if not best.option.share:
            return "No division of this number of GPUs keeps up and has good requests."
        if not self.worth:
            return (
                f"No other division costs significantly less: yours costs "
                f"${three_digits(own.dollars_per_thousand_good)} per thousand "
                "good requests."
            )
        without = "falls behind" if own.option.overloaded else "has no good requests"
        beside = f"yours ${three_digits(own.dollars_per_thousand_good)}" if own.option.share else f"yours {without}"
        dollars = three_digits(best.dollars_per_thousand_good)
        sentence = f"${dollars} per thousand good requests, {percent(best.option.share)} of all; {beside}"
        gain = "" if self.gain is None else f", {self.gain.mid:+.0%} ({self.gain.low:+.0%} .. {self.gain.high:+.0%})"
        return f"{best.flags}: {sentence}{gain}."


def check_comparable(query: SimulationQuery) -> None:
    """Check that fleet sizes can be compared for a query.

    Raises:
        ValueError: If the query has no objectives, is a closed loop, or has no known price.
    """
    if not query.slo or not query.open_loop:
        raise ValueError("--divide compares the cost of good requests: give --slo, and --rate or --trace")
    if query.dollars_per_hour is None:
        raise ValueError("--divide compares costs, but no price is known for this GPU: give --price")


def search_fleet_size(
    query: SimulationQuery,
    most: int,
    on: Callable[[int], Machine],
    progress: Callable[[str], Watch] | None = None,
    own: TriedSetting | None = None,
) -> FleetSizing:
    """Simulate fleets of up to `most` GPUs under the requests of a query, and return the best per dollar.

    Args:
        query: The simulation query.
        most: The largest number of GPUs of a fleet.
        on: Builds the machine with a number of GPUs per replica.
        progress: Returns the watcher of a run, given the run's name.
        own: The result of the user's fleet, if it has already been simulated.

    Raises:
        ValueError: If `check_comparable` rejects the query.
    """
    check_comparable(query)

    def divided(machine: Machine, replicas: int, known: TriedSetting | None = None) -> SizedFleet:
        other = replace(query, machine=machine, fleet=replace(query.fleet, replicas=replicas))
        devices, dollars = machine.case.setup.devices, other.dollars_per_hour
        watch = None if progress is None else progress(f"{replicas:,} x {devices:,} GPUs")
        option = known or simulate_setting(other, machine, watch)
        assert dollars is not None
        return SizedFleet(
            devices, replicas, option, dollars, option.metrics.offered or option.metrics.requests_per_second
        )

    here = best = divided(query.machine, query.fleet.replicas, own)
    tried = [here]
    per_device = here.dollars / (here.devices * here.replicas)
    for devices, replicas in sorted(
        product(DEVICES_PER_REPLICA, REPLICAS), key=lambda pair: (pair[0] * pair[1], pair[0])
    ):
        device_count = devices * replicas
        if (
            device_count > most
            or (devices, replicas) == (here.devices, here.replicas)
            or 1 / (device_count * per_device) <= best.good_share_per_dollar
        ):
            continue
        try:
            machine = on(devices)
        except ValueError:  # the model does not fit or cannot be divided among these GPUs
            continue
        other = divided(machine, replicas)
        tried.append(replace(other, option=other.option.comparable_to(here.option), offered=here.offered))
        best = max(best, tried[-1], key=lambda each: each.good_share_per_dollar)
    return FleetSizing(here, best, tuple(sorted(tried, key=lambda each: each.dollars)), _gain(here, best))


def _gain(own: SizedFleet, best: SizedFleet) -> Interval | None:
    """Return the relative gain in good requests per dollar, with a paired 95 % interval over requests."""
    if not own.good_share_per_dollar:
        return None
    counted = own.option.counted
    apart = best.option.good[counted] / best.dollars - own.option.good[counted] / own.dollars
    mid, off = float(apart.mean()), DEVIATIONS_95 * float(apart.std()) / math.sqrt(len(apart))
    return Interval(
        (mid - off) / own.good_share_per_dollar,
        mid / own.good_share_per_dollar,
        (mid + off) / own.good_share_per_dollar,
    )
