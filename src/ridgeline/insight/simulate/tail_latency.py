"""The tail latency of a planned load, by simulation, because formulas for steady arrivals cannot predict it."""

import math
from dataclasses import dataclass

from typing_extensions import override

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, Offered, OpenLoop, bounded, draw_requests, jittered
from ridgeline.price.plan.demand import Demand, ReplicaCount, SimulatedQueue
from ridgeline.price.plan.load_estimate import LoadEstimator
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import say_seconds, three_digits
from ridgeline.util.json_data import json_shape

TOKENS = 300_000
"""The maximum number of output tokens to simulate, which takes some seconds."""

_SECONDS, _REQUESTS = 60.0, 1100  # the minimum to simulate if `TOKENS` allows; 1,100 requests have a p99
_PLACES = 256  # the default limit of concurrent requests
_SEED = 0


@json_shape("rate", "users", "verdict", "metrics")
@dataclass(frozen=True, slots=True)
class TailEstimate:
    """The simulated latencies of one replica of a planned fleet.

    It gets its share of Poisson arrivals, or its users in a closed loop without think time. Lengths vary by up to 10 %.
    """

    rate: float | None
    users: int
    metrics: SimulationMetrics

    @override
    def __str__(self) -> str:
        """Describe the load and the latency percentiles in one sentence."""
        many = f"{self.users:,} user{'s' if self.users > 1 else ''} without think time"
        comes = f"{three_digits(self.rate)} requests/s at random times" if self.rate is not None else many
        if self.metrics.overloaded:
            return f"{comes}: a replica falls behind (simulated)"
        ttft, tpot = (self._percentiles(name) for name in ("TTFT", "TPOT"))
        return (
            f"{comes}: TTFT {ttft}; TPOT {tpot} (simulated, {self.metrics.counts['ok']:,} requests; ridgeline simulate)"
        )

    def queue(self, workload: PlanWorkload) -> SimulatedQueue:
        """Return what a plan says of the simulated queue: its latencies, and the targets that their means miss."""
        targets = (("TTFT", workload.ttft), ("TPOT", workload.tpot))
        wanted = {name: seconds for name, seconds in targets if seconds is not None}
        if self.metrics.overloaded:
            return SimulatedQueue(str(self), tuple(wanted))
        found = {name: self.metrics.latencies[name] for name in wanted}
        missed = (name for name, seen in found.items() if seen is not None and seen.mean > wanted[name])
        return SimulatedQueue(str(self), tuple(missed))

    def _percentiles(self, name: str) -> str:
        found = self.metrics.latencies[name]
        if found is None:
            return "none"
        known = [f"p{at} {say_seconds(of.mid)}" for at, of in found.percentiles.items() if of is not None and at != 90]
        return ", ".join(known) or f"{say_seconds(found.mean)} on average"

    @property
    def verdict(self) -> str:
        """The verdict on the simulated run in a word or two, such as `steady`."""
        return verdict(self.metrics, open_loop=self.rate is not None)


def tail_of(serving: LoadEstimator, demand: Demand, fleet: ReplicaCount) -> TailEstimate:
    """Simulate one replica of a planned fleet.

    Raises:
        ValueError: If the simulator does not support the model.
    """
    workload = serving.workload
    limits = Limits(tokens=workload.step_tokens, requests=max(_PLACES, fleet.load.users))
    machine = machine_of(serving.case, limits, page_size=workload.page_size)
    rate = None if demand.rate is None else demand.rate / fleet.replicas
    most = max(1, TOKENS // workload.output)
    metrics = measure(run(machine, _offered(serving, rate, fleet.load.users, most)), None, open_loop=rate is not None)
    return TailEstimate(rate, fleet.load.users, metrics)


def _offered(serving: LoadEstimator, rate: float | None, users: int, most: int) -> Offered:
    workload = serving.workload
    given, made = jittered(Fixed(workload.input)), jittered(Fixed(workload.output))
    if rate is None:
        requests = draw_requests(constant(1.0), given, made, _SEED)
        return ClosedLoop(users, 0, bounded(requests, min(most, max(_REQUESTS, 3 * users)), None), None, _SEED)
    count = min(most, max(_REQUESTS, math.ceil(rate * _SECONDS)))
    return OpenLoop(bounded(draw_requests(poisson(rate, _SEED), given, made, _SEED), count, None))
