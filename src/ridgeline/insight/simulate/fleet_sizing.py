"""Division: how many cards, and how many of them to a replica, make most good requests a dollar.

More replicas let fewer requests wait, more cards to a replica make its steps shorter; both cost what they cost for the
same requests. Cheaper divisions are run first, and one is not run where all its requests being good would not make up
for its dollars.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from ridgeline.insight.simulate.adviser import TriedSetting, option_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation import Watch
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Interval
from ridgeline.util.document.humanize import percent, three_digits

DEVICES_PER_REPLICA = (1, 2, 4, 8)
"""To a replica: what attention heads can be divided among."""

REPLICAS = (1, 2, 3, 4, 6, 8)

MAX_DEVICES = DEVICES_PER_REPLICA[-1] * REPLICAS[-1]


@dataclass(frozen=True, slots=True, eq=False)
class SizedFleet:
    """So many cards to each of so many replicas, what that came to, what an hour of all of it costs in dollars, and how
    many requests come a second: all at once, how many are answered.
    """

    devices: int
    replicas: int
    option: TriedSetting
    dollars: float
    offered: float

    @property
    def value(self) -> float:
        """The share of good requests a dollar and hour."""
        return self.option.share / self.dollars

    @property
    def thousand(self) -> float:
        """Dollars for a thousand good requests; infinite where none are good, or it falls behind."""
        good = self.option.share * self.offered
        return self.dollars / 3600 / good * 1e3 if good else math.inf

    @property
    def flags(self) -> str:
        """The options that say it."""
        return f"--devices {self.devices} --replicas {self.replicas}"


@dataclass(frozen=True, slots=True)
class FleetSizing:
    """own: as was asked. best: with most good requests a dollar. tried: all that were run, the cheapest first. gain: of
    good requests a dollar, as a share of the own, with the interval that pairs give; None where the own has none.
    """

    own: SizedFleet
    best: SizedFleet
    tried: tuple[SizedFleet, ...]
    gain: Interval | None

    @property
    def worth(self) -> bool:
        """Whether the best is surely better."""
        return self.best is not self.own and (self.gain is None or self.gain.low > 0)

    @property
    def sentence(self) -> str:
        """What to do, and what for."""
        own, best = self.own, self.best
        if not best.option.share:
            return "No division of so many cards keeps up and has good requests."
        if not self.worth:
            return (
                "No other division is worth its cards: yours is "
                f"${three_digits(own.thousand)} a thousand good requests."
            )
        without = "falls behind" if own.option.overloaded else "has none"
        beside = f"yours ${three_digits(own.thousand)}" if own.option.share else f"yours {without}"
        said = f"${three_digits(best.thousand)} a thousand good requests, {percent(best.option.share)} of all; {beside}"
        gain = "" if self.gain is None else f", {self.gain.mid:+.0%} ({self.gain.low:+.0%} .. {self.gain.high:+.0%})"
        return f"{best.flags}: {said}{gain}."


def check_comparable(asked: SimulationQuery) -> None:
    """Raises ValueError where divisions cannot be compared: without objectives, of users, and where no price is
    known.
    """
    if not asked.slo or not asked.open_loop:
        raise ValueError("--divide compares how many requests are good: give --slo, and --rate or --trace")
    if asked.dollars_per_hour is None:
        raise ValueError("--divide compares dollars, and no price is known of this card: give --price")


def divide(
    asked: SimulationQuery,
    most: int,
    on: Callable[[int], Machine],
    progress: Callable[[str], Watch] | None = None,
    own: TriedSetting | None = None,
) -> FleetSizing:
    """Try what up to `most` cards can be, under the requests that were asked about. on: the machine of so many cards.
    own: what the division that was asked about came to, where it has run.

    Raises ValueError as `check_comparable` does.
    """
    check_comparable(asked)

    def divided(machine: Machine, replicas: int, known: TriedSetting | None = None) -> SizedFleet:
        other = replace(asked, machine=machine, fleet=replace(asked.fleet, replicas=replicas))
        devices, dollars = machine.case.setup.devices, other.dollars_per_hour
        watch = None if progress is None else progress(f"{replicas:,} x {devices:,} cards")
        option = known or option_of(other, machine, watch)
        assert dollars is not None
        return SizedFleet(
            devices, replicas, option, dollars, option.metrics.offered or option.metrics.requests_per_second
        )

    here = best = divided(asked.machine, asked.fleet.replicas, own)
    tried = [here]
    per_card = here.dollars / (here.devices * here.replicas)
    for devices, replicas in sorted(
        product(DEVICES_PER_REPLICA, REPLICAS), key=lambda pair: (pair[0] * pair[1], pair[0])
    ):
        cards = devices * replicas
        if cards > most or (devices, replicas) == (here.devices, here.replicas) or 1 / (cards * per_card) <= best.value:
            continue
        try:
            machine = on(devices)
        except ValueError:  # it does not fit, or cannot be divided so
            continue
        other = divided(machine, replicas)
        tried.append(replace(other, option=other.option.beside(here.option), offered=here.offered))
        best = max(best, tried[-1], key=lambda each: each.value)
    return FleetSizing(here, best, tuple(sorted(tried, key=lambda each: each.dollars)), _gain(here, best))


def _gain(own: SizedFleet, best: SizedFleet) -> Interval | None:
    """By pairs: what each request adds to the one and to the other."""
    if not own.value:
        return None
    counted = own.option.counted
    apart = best.option.good[counted] / best.dollars - own.option.good[counted] / own.dollars
    mid, off = float(apart.mean()), DEVIATIONS_95 * float(apart.std()) / math.sqrt(len(apart))
    return Interval((mid - off) / own.value, mid / own.value, (mid + off) / own.value)
