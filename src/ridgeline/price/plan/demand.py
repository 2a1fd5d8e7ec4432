"""The load to serve, as concurrent users, requests per second or a batch job, and the replicas that it takes.

A replica is the deployment as given: the devices that hold one copy of the model. The formulas describe a steady state
with even arrivals, without queues, bursts and tail latencies. A simulation (`insight/simulate/demand_simulation.py`)
then overrules them, as a `SimulatedQueue`.
"""

import math
from dataclasses import dataclass, field, replace

from ridgeline.price.crossovers import first_between
from ridgeline.price.plan.batch_job import JobEstimator, JobRun
from ridgeline.price.plan.energy import kwh_per_million
from ridgeline.price.plan.load_estimate import LoadEstimate, LoadEstimator, dollars_per_million
from ridgeline.util.json_data import json_name

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """The load to serve: users or a rate, each of which follows from the other, or a batch job.

    Raises:
        ValueError: If several are given or a value is out of range. The message names the option.
    """

    users: int | None = None
    """The number of requests that are running at any time; None if unspecified."""
    rate: float | None = None
    """The number of requests per second to serve; None if unspecified."""
    requests: int | None = None
    """The total number of requests of a batch job, or of a run such as a benchmark; None for a steady state."""
    within: float | None = None
    """The seconds in which a batch job of `requests` has to be done; None if the load is no batch job."""
    pessimistic: bool = False
    """Whether the replicas have to serve the load even if times are at the slow end of their interval."""

    def __post_init__(self) -> None:
        if self.pessimistic and not self:
            raise ValueError(
                "--pessimistic is for the number of replicas; give the load too: --users, --rate, or --requests and "
                "--within"
            )
        if self.within is not None:
            self._check_job()
            return
        if self.users is not None and self.rate is not None:
            raise ValueError(
                "--users and --rate determine each other (users = rate x seconds per request); give one of them"
            )
        if self.users is not None and self.users < 1:
            raise ValueError(f"--users is {self.users}; it must be at least 1")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"--rate is {self.rate}; it must be a number of requests per second above 0")
        if self.requests is not None and self.users is None and self.rate is None:
            raise ValueError(
                "--requests is the length of a run; give --users or --rate too, which start its requests, or --within "
                "for a batch job"
            )
        if self.requests is not None and self.requests < (least := self.users or 1):
            each = f", one for each of --users {least:,}" if self.users is not None else ""
            raise ValueError(f"--requests is {self.requests:,}; it must be at least {least:,}{each}")

    def _check_job(self) -> None:
        """Raise ValueError for a batch job without its size, or with another load."""
        if self.users is not None or self.rate is not None:
            raise ValueError(
                "--within keeps the replicas full until a batch job is done; leave out --users and --rate, or --within"
            )
        if self.requests is None:
            raise ValueError("--within is the deadline of a batch job; give its size too, like --requests 1M")
        if self.requests < 1:
            raise ValueError(f"--requests is {self.requests:,}; it must be at least 1")

    def __bool__(self) -> bool:
        return self.users is not None or self.rate is not None or self.within is not None


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """The replicas that serve a demand within the latency targets, with their throughput and cost."""

    replicas: int
    devices: int = field(metadata=json_name("cards"))
    """The number of devices of all replicas together."""
    load: LoadEstimate
    """The latency and throughput of the fullest replica."""
    requests_per_second: float
    """The total requests per second that all replicas serve.

    This is the demanded rate, or the rate of the demanded users by expected times.
    """
    tokens_per_second: float
    """The total output tokens per second of all replicas at `requests_per_second`."""
    share: float
    """The utilisation: the served rate over the maximum rate of all replicas within the targets."""
    dollars_per_hour: float | None
    """The dollars per hour of all replicas; None if the price is unknown."""
    dollars_per_million: float | None
    """The dollars per million output tokens; None if the price is unknown."""
    kwh_per_million_tokens: float | None
    """The most kWh per million output tokens; None if the power limit of the devices is unknown."""
    job: JobRun | None = None
    """The time and the cost of the batch job; None for other loads."""

    def at_hourly(self, hourly: float | None) -> "ReplicaCount":
        """Return the same replicas at another price of each, in dollars per hour; None if it is unknown."""
        whole, job = None if hourly is None else hourly * self.replicas, self.job
        if job is not None:
            job = job.at_hourly(whole)
            seconds, made = job.seconds, self.tokens_per_second * job.run
            million = dollars_per_million(whole, made / seconds)  # the start costs, but makes no tokens
        else:
            million = dollars_per_million(whole, self.tokens_per_second)
        return replace(self, dollars_per_hour=whole, dollars_per_million=million, job=job)


@dataclass(frozen=True, slots=True)
class SimulatedQueue:
    """The result of simulating one replica of a demand, queues included. It overrules the steady state."""

    text: str
    """The load and its latency percentiles."""
    missed: tuple[str, ...]
    """The names of the latency targets that the simulated means miss, such as "TTFT"."""
    fleet: ReplicaCount
    """The replicas whose simulated means meet the targets, with their simulated throughput and cost.

    If no number of replicas that was tried meets them, these are the replicas for even arrivals.
    """
    even: ReplicaCount
    """The replicas for even arrivals, by formulas."""
    ttft: float
    """The mean seconds to the first token."""
    ttft_interval: tuple[float, float]
    """The interval of the mean seconds to the first token; without an upper end if the replica may be overloaded."""
    tpot: float | None
    """The mean seconds per output token after the first; None if responses have only one token."""
    tpot_interval: tuple[float, float] | None
    """The interval of the mean seconds per output token."""
    running: int
    """The maximum number of requests that ran on a replica at the same time."""
    tokens_interval: tuple[float, float] | None = None
    """The interval of the tokens per second of all replicas over a whole run at a rate; None for other loads."""


def fleet_for(serving: LoadEstimator, demand: Demand) -> ReplicaCount | None:
    """Return the fewest replicas that serve a demand within the targets, or complete a batch job in time.

    Return None if a replica cannot serve one user, or if no number of replicas completes the job in time. The figures
    of the result are expected ones, also for a pessimistic number of replicas.
    """
    assert demand, "there is nothing to serve"
    if demand.pessimistic:
        slow = fleet_for(*at_slow_end(serving, demand))
        return None if slow is None else fleet_of(serving, demand, slow.replicas)
    if not serving.capacity.users or not serving.memory.fits:
        return None
    if demand.within is not None:
        job = JobEstimator(serving, demand.requests or 0, demand.within)
        replicas = job.fewest_replicas()
        return None if replicas is None else _of_job(job, replicas)
    if demand.users is not None:
        return fleet_of(serving, demand, math.ceil(demand.users / serving.capacity.users))
    most = serving.capacity.load.requests_per_second.expected
    return fleet_of(serving, demand, max(1, math.ceil((demand.rate or 0.0) / most - _ROUNDING)))


def at_slow_end(serving: LoadEstimator, demand: Demand) -> tuple[LoadEstimator, Demand]:
    """Return the load and the targets that take as many replicas by expected times as a demand takes by slow ones.

    A machine whose times are all x f serves a rate within targets if, and only if, the machine with the expected times
    serves the rate x f within the targets / f. The loading of weights before a batch job is not slower.
    """
    factor, workload = serving.case.intervals["load"].high, serving.workload
    ttft, tpot = (None if target is None else target / factor for target in (workload.ttft, workload.tpot))
    rate = None if demand.rate is None else demand.rate * factor
    within = demand.within
    if within is not None:
        start = JobEstimator(serving, 1, within).start
        within = start + (within - start) / factor
    faster = LoadEstimator(serving.case, replace(workload, ttft=ttft, tpot=tpot))
    return faster, replace(demand, rate=rate, within=within, pessimistic=False)


def fleet_of(serving: LoadEstimator, demand: Demand, replicas: int) -> ReplicaCount:
    """Return the load of a number of replicas that serve a demand together, which must be enough of them."""
    if demand.within is not None:
        return _of_job(JobEstimator(serving, demand.requests or 0, demand.within), replicas)
    if demand.users is not None:
        return _of_users(serving, demand.users, replicas)
    return _of_rate(serving, demand.rate or 0.0, replicas)


def _of_users(serving: LoadEstimator, users: int, replicas: int) -> ReplicaCount:
    fewer, fuller = divmod(users, replicas)  # `fuller` replicas have one user more
    load = serving.load(fewer + 1 if fuller else fewer)
    others = serving.load(fewer)
    rate = sum(
        count * each.requests_per_second.expected for count, each in ((fuller, load), (replicas - fuller, others))
    )
    return _fleet(serving, replicas, load, rate)


def _of_rate(serving: LoadEstimator, rate: float, replicas: int) -> ReplicaCount:
    enough = rate / replicas * (1 - _ROUNDING)
    users = first_between(1, serving.capacity.users, lambda count: _rate(serving, count) >= enough)
    return _fleet(serving, replicas, serving.load(users), rate)


def _of_job(estimator: JobEstimator, replicas: int) -> ReplicaCount:
    serving, job = estimator.serving, estimator.on(replicas)
    return _fleet(serving, replicas, serving.load(estimator.users(replicas)), job.requests / job.run, job)


def _fleet(
    serving: LoadEstimator, replicas: int, load: LoadEstimate, rate: float, job: JobRun | None = None
) -> ReplicaCount:
    setup, tokens = serving.case.setup, rate * serving.workload.output
    busy = 1.0 if job is None else job.run / job.seconds
    return ReplicaCount(
        replicas,
        replicas * setup.devices,
        load,
        rate,
        tokens,
        rate / (replicas * serving.capacity.load.requests_per_second.expected),
        None,
        None,
        kwh_per_million(setup.watts, tokens * busy / replicas),
        job,
    ).at_hourly(setup.hourly)


def _rate(serving: LoadEstimator, users: int) -> float:
    return serving.load(users).requests_per_second.expected
