"""A batch job: a number of requests that replicas complete before a deadline, with all of them kept full.

Each replica runs as many requests at a time as memory, a step and the latency targets allow, and starts another one as
soon as one ends. With the steady rate X(users) of `load_estimate.py`, n requests on a replica take

    n / X(users) + (output - 1) (t_decode(users / 2) - t_decode(users) / 2)

or n / X(n) if memory holds all n to their end, so that all start at once. The second term is the end of the job. Once
the last request has started, the number of running requests falls to 0 within output - 1 steps, which take
t_decode(users / 2) on average. They generate half as many tokens as full steps would, so n / X(users) contains half of
them already.

All replicas start at the same time and are paid for until the last one is done.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.price.cold_start import Disk, cold_start, disks
from ridgeline.price.crossovers import first_between
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.plan.load_estimate import LoadEstimate, LoadEstimator
from ridgeline.util.json_data import json_shape


@json_shape(..., "seconds")
@dataclass(frozen=True, slots=True)
class JobRun:
    """The time and the cost of a batch job on a number of replicas."""

    requests: int
    """The number of requests of the job."""
    within: float
    """The seconds in which the job has to be done."""
    start: float
    """The least seconds until the replicas have loaded their weights, during which they are paid for."""
    run: float
    """The expected seconds from the first request to the last token."""
    floor: float
    """The least seconds of the run that are physically possible, at the device's peaks."""
    dollars: float | None
    """The dollars for all replicas from their start to the end; None if the price is unknown."""

    @property
    def seconds(self) -> float:
        """The expected seconds from the start of the replicas to the last token."""
        return self.start + self.run

    def at_hourly(self, hourly: float | None) -> "JobRun":
        """Return the job at another price of all replicas, in dollars per hour."""
        return replace(self, dollars=None if hourly is None else hourly * self.seconds / 3600)

    def seconds_between(self, interval: ErrorInterval) -> tuple[float, float]:
        """Return the seconds between which 8 of 10 measurements lie; the start has no interval."""
        low, high = interval.around_time(self.run, self.floor)
        return self.start + low, self.start + high

    def cost_factors(self, interval: ErrorInterval) -> tuple[float, float]:
        """Return the factors on the cost between which 8 of 10 measurements lie."""
        low, high = self.seconds_between(interval)
        return low / self.seconds, high / self.seconds

    @property
    def slack(self) -> float:
        """The factor by which the run may take longer before the job is late."""
        return (self.within - self.start) / self.run


def start_disk() -> Disk:
    """Return the disk from which the weights of a job's replicas are loaded."""
    return next(disk for disk in disks() if disk.name == "nvme-4")


class JobEstimator:
    """An estimator of the time that replicas of a scenario take for a batch job."""

    def __init__(self, serving: LoadEstimator, requests: int, within: float) -> None:
        """Create an estimator; nothing is computed yet.

        Args:
            serving: The replica.
            requests: The number of requests of the job, at least one.
            within: The seconds in which the job has to be done.
        """
        self.serving, self.requests, self.within = serving, requests, within
        self._endings = dict[int, float]()  # by users; the search for replicas needs it often

    @cached_property
    def start(self) -> float:
        """The least seconds until a replica has its weights; how long the engine itself takes to start is unknown."""
        setup, weights = self.serving.case.setup, self.serving.memory.weights
        copied = 0.0 if setup.device.kind == "cpu" else weights
        return cold_start(weights * setup.devices, copied, start_disk(), setup.device.host_link).overlapped

    def users(self, replicas: int) -> int:
        """Return the number of requests that each of some replicas runs at a time."""
        return min(self.serving.capacity.users, self._share(replicas))

    def on(self, replicas: int) -> JobRun:
        """Return the time of the job on some replicas, each of which gets an equal share, without its dollars."""
        share = self._share(replicas)
        floor = share / self._load(share).requests_per_second.floor
        return JobRun(self.requests, self.within, self.start, self._run(share), floor, None)

    def fewest_replicas(self) -> int | None:
        """Return the fewest replicas that complete the job in time; None if a single request takes too long."""
        enough = 1
        while not self._in_time(enough):
            if enough == self.requests:
                return None
            enough = min(2 * enough, self.requests)
        return first_between(enough // 2 + 1, enough, self._in_time)

    def _in_time(self, replicas: int) -> bool:
        return self.on(replicas).slack >= 1

    def _share(self, replicas: int) -> int:
        return math.ceil(self.requests / replicas)

    def _run(self, requests: int) -> float:
        """Return the expected seconds in which one replica, kept full, completes some requests."""
        users = min(self.serving.capacity.users, requests)
        seconds = requests / self._load(requests).requests_per_second.expected
        if requests == users <= self.serving.memory.max_simultaneous:
            return seconds
        if users not in self._endings:
            self._endings[users] = self._ending(users)
        return seconds + self._endings[users]

    def _load(self, requests: int) -> LoadEstimate:
        """Return the load of one replica that is kept full with some requests."""
        capacity = self.serving.capacity
        return capacity.load if requests >= capacity.users else self.serving.load(requests)

    def _ending(self, users: int) -> float:
        """Return the seconds that the end of the job takes longer than full steps would for the same tokens."""
        step = self.serving.itl(math.ceil(users / 2)).expected - self.serving.itl(users).expected / 2
        return (self.serving.workload.output - 1) * step
