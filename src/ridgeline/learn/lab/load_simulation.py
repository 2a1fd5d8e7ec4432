"""Simulated traffic on a GPU in one call, as in `ridgeline simulate`, for the experiments on load."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ridgeline.core.checkpoint import open_source
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.load_law import LoadLaw, load_law
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_verdict import verdict
from ridgeline.insight.traffic.arrivals import SECOND, gamma
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.slo import SLO, parse_slo
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.devices import load_device
from ridgeline.price.plan.scenario import Deployment, ModelCache

TARGETS = parse_slo("ttft=1s,tpot=50ms")


@dataclass(frozen=True, slots=True)
class RequestMix:
    """The number, lengths and arrival pattern of a simulation's requests."""

    tokens: int = 1024
    """The approximate number of prompt tokens of each request."""
    answer: int = 128
    """The approximate number of output tokens of each request."""
    count: int = 600
    """The number of requests in the simulation."""
    burstiness: float = 1.0
    """The shape of the gaps between arrivals: 1 for Poisson arrivals, less for bursts."""
    seed: int = 1
    """The seed of the arrivals and lengths."""


USUAL = RequestMix()


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The outcome of simulated requests to one replica."""

    metrics: SimulationMetrics
    """The metrics of the simulated requests (rates, latencies, goodput), as `ridgeline simulate` reports them."""
    law: LoadLaw
    """The load law's prediction for the simulated requests."""
    log: RunLog = field(repr=False)
    """The log of all requests and steps of the simulated run."""

    @property
    def verdict(self) -> str:
        """The verdict on whether the replica kept up with the arrivals."""
        return verdict(self.metrics, open_loop=True)

    @property
    def responses_per_second(self) -> float:
        """The responses per second after the warm-up and while requests arrive.

        They are counted as tokens after the first, divided by their mean number per response.
        """
        since, until = round(self.metrics.warm_up * SECOND), self.log.requests.arrived[-1]
        gaps = zip(self.log.gaps.at, self.log.gaps.tokens, strict=True)
        tokens = sum(count for at, count in gaps if since < at <= until)
        return tokens / (self.metrics.output - 1) / (until - since) * SECOND

    @property
    def good(self) -> float:
        """The responses per second that meet the targets, from the share of good requests among all."""
        return self.responses_per_second * self.metrics.good_share

    @property
    def longest(self) -> float:
        """The seconds of the longest engine step in the simulation."""
        return self.metrics.steps.longest

    def latency(self, name: str, percent: int) -> float:
        """Return a percentile of a latency in seconds; infinite if there are too few samples."""
        found = self.metrics.latency(name, percent)
        return float("inf") if found is None else found.mid


class OneGpuReplica:
    """A simulated model on one GPU, behind the engine's own scheduler."""

    def __init__(self, model: str = "llama-3-8b", gpu: str = "h100-sxm", budget: int = 2048) -> None:
        case = ModelCache(open_source(model).config).scenario(Deployment(load_device(gpu)))
        self.machine: Machine = machine_of(case, Limits(tokens=budget))

    def serve(self, rate: float, mix: RequestMix = USUAL, targets: SLO = TARGETS) -> LoadOutcome:
        """Simulate requests that arrive at `rate` per second on average."""
        log = run(self.machine, OpenLoop(bounded(_requests(rate, mix), mix.count, None)))
        law = load_law(self.machine, rate, mix.tokens, mix.answer)
        return LoadOutcome(measure(log, targets, open_loop=True), law, log)


def _requests(rate: float, mix: RequestMix) -> Iterator[TraceRequest]:
    moments = gamma(rate, mix.burstiness, mix.seed)
    return draw_requests(moments, jittered(Fixed(mix.tokens)), jittered(Fixed(mix.answer)), mix.seed)
