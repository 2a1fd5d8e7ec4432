"""What is to be served, and the replicas that it takes: users under way all the time, or requests a second.

A replica is the setup as asked: so many cards that hold one copy of the model. All of it is a steady state: arrivals
are even, so nothing is said of queues, of bursts, or of what one request in a hundred waits.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from ridgeline.price.plan.load_estimate import LoadEstimate, LoadEstimator

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """users: requests under way all the time. rate: requests a second. At most one of them; the other follows from it.

    Raises ValueError naming the option.
    """

    users: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.users is not None and self.rate is not None:
            raise ValueError("--users and --rate follow from each other (users = rate x seconds); give one of them")
        if self.users is not None and self.users < 1:
            raise ValueError(f"--users is {self.users}; it must be at least 1")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"--rate is {self.rate}; it must be requests a second above 0")

    def __bool__(self) -> bool:
        return self.users is not None or self.rate is not None


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """Replicas that serve a demand within the targets.

    load: of the fullest replica. requests_per_second, tokens_per_second: of all of them, as expected. share: of the
    most requests a second that they could serve within the targets. dollars_per_hour and dollars_per_million (tokens
    of output): None where no price is known.
    """

    replicas: int
    cards: int
    load: LoadEstimate
    requests_per_second: float
    tokens_per_second: float
    share: float
    dollars_per_hour: float | None
    dollars_per_million: float | None


def fleet_for(serving: LoadEstimator, demand: Demand) -> ReplicaCount | None:
    """The fewest replicas that serve a demand; None where one cannot serve a single user within the targets."""
    assert demand, "there is nothing to serve"
    if not serving.capacity.users or not serving.memory.fits:
        return None
    return _of_users(serving, demand.users) if demand.users is not None else _of_rate(serving, demand.rate or 0.0)


def _of_users(serving: LoadEstimator, users: int) -> ReplicaCount:
    replicas = math.ceil(users / serving.capacity.users)
    fewer, fuller = divmod(users, replicas)  # so many replicas have one user more than the others
    load = serving.load(fewer + 1 if fuller else fewer)
    others = serving.load(fewer)
    rate = sum(
        count * each.requests_per_second.expected for count, each in ((fuller, load), (replicas - fuller, others))
    )
    return _fleet(serving, replicas, load, rate)


def _of_rate(serving: LoadEstimator, rate: float) -> ReplicaCount:
    most = serving.capacity.load.requests_per_second.expected
    replicas = max(1, math.ceil(rate / most - _ROUNDING))
    enough = rate / replicas * (1 - _ROUNDING)
    fewer = range(1, serving.capacity.users)  # than are surely enough
    users = 1 + bisect_left(fewer, True, key=lambda count: _rate(serving, count) >= enough)
    return _fleet(serving, replicas, serving.load(users), rate)


def _fleet(serving: LoadEstimator, replicas: int, load: LoadEstimate, rate: float) -> ReplicaCount:
    setup, tokens = serving.case.setup, rate * serving.workload.output
    hourly = None if setup.hourly is None else setup.hourly * replicas
    return ReplicaCount(
        replicas,
        replicas * setup.devices,
        load,
        rate,
        tokens,
        rate / (replicas * serving.capacity.load.requests_per_second.expected),
        hourly,
        serving.dollars_per_million(tokens / replicas),
    )


def _rate(serving: LoadEstimator, users: int) -> float:
    return serving.load(users).requests_per_second.expected
