"""The latencies and the throughput of one replica of a planned demand, by simulation with the engine's scheduler."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, Offered, OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.percentiles import Distribution, Interval, needed
from ridgeline.insight.traffic.stationarity import FALLING_BEHIND
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.error_interval import UNBOUNDED, ErrorInterval
from ridgeline.price.interval_text import times_between
from ridgeline.price.plan.demand import Demand, ReplicaCount
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import say_seconds, three_digits
from ridgeline.util.json_data import json_shape

TOKENS = 300_000
"""The number of output tokens to aim at in the simulation of a steady state, which takes some seconds."""

_SHORT, _LONG = needed(95), 500  # the requests to count: enough for a p95, and for a smaller error of the means
_SHORT_STEPS, _LONG_STEPS = 10_000, 20_000  # a limit for few users, whose requests hardly wait for each other
_ROUNDS, _LEAST = 3, 20  # the requests to count for each user, and in any case
_PLACES = 256  # the default limit of concurrent requests
_BLOCKS, _T = 10, 2.26  # the blocks of a mean's error, and Student's t of 95 % for them
_SEED = 0


@dataclass(frozen=True, slots=True)
class StepTimesRange:
    """The factors on the times of steps and the physical floors that simulated latencies have their intervals from."""

    interval: ErrorInterval
    floors: Mapping[str, float]
    """The least seconds of "TTFT", for one prompt alone, and of "TPOT", for one sequence alone."""
    fast: SimulationMetrics | None = None
    """The metrics with steps at the lower end of their interval; None for a closed loop, which is in proportion."""
    slow: SimulationMetrics | None = None
    """The metrics with steps at the upper end of their interval; None for a closed loop."""

    def around(self, name: str, seconds: float, read: Callable[[Distribution], float | None]) -> tuple[float, float]:
        """Return the interval of a latency, without an upper end if the replica falls behind with slow steps.

        Args:
            name: "TTFT" or "TPOT".
            seconds: The simulated latency.
            read: Returns the same figure of another distribution.
        """
        if self.fast is None or self.slow is None:
            return self.interval.around_time(seconds, self.floors[name])
        fast, slow = (each.latencies[name] for each in (self.fast, self.slow))
        low = None if fast is None else read(fast)
        high = None if slow is None or self.slow.overloaded else read(slow)
        return min(seconds, seconds if low is None else low), UNBOUNDED if high is None else max(seconds, high)


@json_shape("rate", "users", "requests", "verdict", "mean_errors=errors", "intervals", "metrics")
@dataclass(frozen=True, slots=True)
class TailEstimate:
    """The simulated latencies of one replica of a planned fleet.

    It gets its share of Poisson arrivals, or its users in a closed loop without think time. Lengths vary by up to 10 %.
    """

    rate: float | None
    users: int
    running: int
    """The maximum number of requests that ran at the same time."""
    requests: int | None
    """The number of requests of a whole run, ramp-up and drain included; None for a steady state."""
    errors: dict[str, float]
    """The relative sampling error of the mean "ttft" and "tpot" of a steady state, which 95 % of runs do not exceed."""
    metrics: SimulationMetrics
    range: StepTimesRange

    @property
    def intervals(self) -> dict[str, dict[str, tuple[float, float] | None]]:
        """The intervals of the mean and the percentiles of "ttft" and "tpot" in seconds."""
        found = {name: self.metrics.latencies[name] for name in ("TTFT", "TPOT")}
        return {
            name.lower(): {"mean": self.around_mean(name)}
            | {f"p{at}": None if each is None else self._around(name, at, each) for at, each in of.percentiles.items()}
            for name, of in found.items()
            if of is not None
        }

    @override
    def __str__(self) -> str:
        """Describe the load and the latency percentiles in one sentence."""
        many = f"{self.users:,} user{'s' if self.users > 1 else ''} without think time"
        comes = f"{three_digits(self.rate)} requests/s at random times" if self.rate is not None else many
        if self.metrics.overloaded and self.requests is None:
            return f"{comes}: a replica falls behind (simulated)"
        ttft, tpot = (self._percentiles(name) for name in ("TTFT", "TPOT"))
        off = f", means +-{max(self.errors.values()):.0%}" if self.errors else ""
        count = self.metrics.counts["ok"] - self.metrics.left_out
        return f"{comes}: TTFT {ttft}; TPOT {tpot} (simulated, {count:,} requests{off}; ridgeline simulate)"

    def missed(self, workload: PlanWorkload) -> tuple[str, ...]:
        """Return the names of the latency targets that the means miss; all of them if the replica falls behind."""
        wanted = _targets(workload)
        if self.metrics.overloaded and self.requests is None:
            return tuple(wanted)
        means = {name: self.mean(name) for name in wanted}
        return tuple(name for name, mean in means.items() if mean is not None and mean > wanted[name])

    def serves(self, workload: PlanWorkload) -> bool:
        """Return whether the replica keeps up and its means meet the latency targets."""
        return not self.missed(workload) and (self.requests is not None or not self.metrics.overloaded)

    def is_clear(self, workload: PlanWorkload) -> bool:
        """Return whether the answer of `serves` would be the same anywhere within the sampling error."""
        if self.requests is not None:
            return True
        growth = 0.0 if self.metrics.stationarity is None else self.metrics.stationarity.growth
        if self.rate is not None and growth > FALLING_BEHIND * self.rate:
            return False  # a long run tells a growing backlog from one that fluctuates
        for name, target in _targets(workload).items():
            mean = self.mean(name)
            if mean is not None and abs(mean - target) <= self.errors.get(name.lower(), 0.0) * mean:
                return False
        return True

    def mean(self, name: str) -> float | None:
        """Return the mean seconds of "TTFT" or "TPOT"; None if no request has it."""
        found = self.metrics.latencies[name]
        return None if found is None else found.mean

    def around_mean(self, name: str) -> tuple[float, float] | None:
        """Return the interval of the mean of "TTFT" or "TPOT"; None if no request has it."""
        found = self.metrics.latencies[name]
        return None if found is None else self.range.around(name, found.mean, lambda other: other.mean)

    def _percentiles(self, name: str) -> str:
        found = self.metrics.latencies[name]
        if found is None:
            return "none"
        known = [
            f"p{at} {say_seconds(of.mid)} {times_between(*self._around(name, at, of))}"
            for at, of in found.percentiles.items()
            if of is not None and at != 90
        ]
        mean = self.around_mean(name) or (found.mean, found.mean)
        return ", ".join(known) or f"{say_seconds(found.mean)} {times_between(*mean)} on average"

    def _around(self, name: str, percent: int, found: Interval) -> tuple[float, float]:
        def read(other: Distribution) -> float | None:
            figure = other.percentiles[percent]
            return None if figure is None else figure.mid

        return self.range.around(name, found.mid, read)

    @property
    def verdict(self) -> str:
        """The verdict on the simulated run in a word or two, such as `steady`."""
        return verdict(self.metrics, open_loop=self.rate is not None)


def with_range(tail: TailEstimate, serving: LoadEstimator, demand: Demand, fleet: ReplicaCount) -> TailEstimate:
    """Return a tail with the latencies at both ends of the interval of step times.

    The times of a closed loop without think time are in proportion to those of its steps. With a rate of arrivals they
    are not, so two further runs are simulated.
    """
    if demand.rate is None:
        return tail
    around = tail.range.interval
    fast, slow = (tail_of(serving, demand, fleet, factor=each).metrics for each in (around.low, around.high))
    return replace(tail, range=replace(tail.range, fast=fast, slow=slow))


def tail_of(
    serving: LoadEstimator, demand: Demand, fleet: ReplicaCount, *, long: bool = False, factor: float = 1.0
) -> TailEstimate:
    """Simulate the fullest replica of a planned fleet.

    A steady state begins with users who start evenly spaced over the time of a request, and its first round of requests
    does not count. Users who start at once stay in step for dozens of rounds, so that a short run would measure how
    they started. The last round does not count either; it keeps up the load for those before.

    Args:
        serving: The replica.
        demand: The load of the fleet.
        fleet: The fleet.
        long: Whether to count more requests, if the load is to be steady.
        factor: Multiplies the times of steps.

    Raises:
        ValueError: If the simulator does not support the model.
    """
    workload, users = serving.workload, fleet.load.users
    limits = Limits(tokens=workload.step_tokens, requests=max(_PLACES, users))
    # Without cached tokens no two prompts begin alike, so that a prefix cache would only take time.
    prefix_cache = workload.cached > 0
    machine = machine_of(serving.case, limits, page_size=workload.page_size, prefix_cache=prefix_cache)
    rate = None if demand.rate is None else demand.rate / fleet.replicas
    if demand.requests is not None:
        count = math.ceil(demand.requests / fleet.replicas)
        log = run(machine, _offered(workload, rate, users, count, None), factor)
        metrics = measure(log, None, open_loop=rate is not None, window=(0, count))
        running = max(log.steps.running, default=0)
        return TailEstimate(rate, users, running, count, {}, metrics, _range(serving))
    counted = _counted(users, workload.output, long=long)
    stay = round(users / serving.load(users).requests_per_second.expected * factor * 1e9)
    log = run(machine, _offered(workload, rate, users, counted + 2 * users, stay), factor)
    window = users, users + counted
    metrics = measure(log, None, open_loop=rate is not None, window=window)
    running = max(log.steps.running)
    return TailEstimate(rate, users, running, None, _errors(log, window), metrics, _range(serving))


def _range(serving: LoadEstimator) -> StepTimesRange:
    floors = {"TTFT": serving.prefill.floor, "TPOT": serving.itl(1).floor}
    return StepTimesRange(serving.case.intervals["load"], floors)


def _offered(workload: PlanWorkload, rate: float | None, users: int, count: int, stay: int | None) -> Offered:
    """Return the traffic of a replica, the same requests for the same numbers.

    Cached tokens are a prefix that all prompts have; the rest of a prompt and the response vary in length.

    Args:
        workload: The requests.
        rate: The requests per second; None for users.
        users: The number of users.
        count: The number of requests.
        stay: The nanoseconds over which users start; None to start at once.
    """
    given, made = jittered(Fixed(workload.computed)), jittered(Fixed(workload.output))
    drawn = draw_requests(poisson(rate, _SEED) if rate is not None else constant(1.0), given, made, _SEED)
    requests = bounded((_with_prefix(each, workload.cached) for each in drawn), count, None)
    if rate is not None:
        return OpenLoop(requests)
    starts = None if stay is None else [stay * user // users for user in range(users)]
    return ClosedLoop(users, ThinkTime(), requests, None, _SEED, starts)


def _with_prefix(request: TraceRequest, cached: int) -> TraceRequest:
    """Return a request whose prompt begins with a prefix of `cached` tokens that other requests have, too."""
    if not cached:
        return request
    return replace(request, input=cached + request.input, blocks=("prefix",), block=cached)


def _counted(users: int, output: int, *, long: bool) -> int:
    """Return the number of requests to count in a steady state: whole rounds, over which the pace is even."""
    wanted = max(_LONG if long else _SHORT, _ROUNDS * users)
    most = min(TOKENS // output, (_LONG_STEPS if long else _SHORT_STEPS) * users // output) - 2 * users
    return users * math.ceil(max(_LEAST, min(wanted, most)) / users)


def _errors(log: RunLog, window: tuple[int, int]) -> dict[str, float]:
    """Return the relative errors of the means, from the means of consecutive blocks of requests."""
    requests, counted = Columns(log), slice(*window)
    waits = {"ttft": (requests.first - requests.arrived)[counted], "tpot": requests.tpot[counted]}
    errors = {}
    for name, samples in waits.items():
        means = np.array([block.mean() for block in np.array_split(samples, _BLOCKS)])
        if mean := float(means.mean()):
            errors[name] = _T * float(means.std(ddof=1)) / math.sqrt(_BLOCKS) / mean
    return errors


def _targets(workload: PlanWorkload) -> dict[str, float]:
    """Return the latency targets in seconds by name."""
    targets = (("TTFT", workload.ttft), ("TPOT", workload.tpot))
    return {name: seconds for name, seconds in targets if seconds is not None}
