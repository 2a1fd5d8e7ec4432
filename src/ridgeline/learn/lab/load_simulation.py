"""Traffic on a card that is not here, in one line: what `ridgeline simulate` does, for the experiments on load."""

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
    """So many, of about `tokens` in and `answer` out. burstiness: 1 for Poisson arrivals, less for bursts."""

    tokens: int = 1024
    answer: int = 128
    count: int = 600
    burstiness: float = 1.0
    seed: int = 1


USUAL = RequestMix()


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What became of requests. metrics: as `ridgeline simulate --json` has them; law: what the load law says."""

    metrics: SimulationMetrics
    law: LoadLaw
    log: RunLog = field(repr=False)

    @property
    def verdict(self) -> str:
        """Whether the replica kept up."""
        return verdict(self.metrics, open_loop=True)

    @property
    def answered(self) -> float:
        """Answers a second: tokens after the first that come while requests do, once the replica has filled up, by as
        many as an answer has.
        """
        since, until = round(self.metrics.warm_up * SECOND), self.log.requests.arrived[-1]
        gaps = zip(self.log.gaps.at, self.log.gaps.tokens, strict=True)
        tokens = sum(count for at, count in gaps if since < at <= until)
        return tokens / (self.metrics.output - 1) / (until - since) * SECOND

    @property
    def good(self) -> float:
        """As many of these as there are good ones among all that were answered."""
        return self.answered * self.metrics.good_share

    @property
    def longest(self) -> float:
        """Seconds of the longest step."""
        return self.metrics.steps.longest

    def latency(self, name: str, percent: int) -> float:
        """Seconds; infinite where there are too few samples for it."""
        found = self.metrics.latency(name, percent)
        return float("inf") if found is None else found.mid


class OneGpuReplica:
    """A model on one card, behind the engine's own scheduler."""

    def __init__(self, model: str = "llama-3-8b", card: str = "h100-sxm", budget: int = 2048) -> None:
        case = ModelCache(open_source(model).config).case(Deployment(load_device(card)))
        self.machine: Machine = machine_of(case, Limits(tokens=budget))

    def serve(self, rate: float, asked: RequestMix = USUAL, targets: SLO = TARGETS) -> LoadOutcome:
        """Let them come, `rate` a second on average."""
        log = run(self.machine, OpenLoop(bounded(_requests(rate, asked), asked.count, None)))
        law = load_law(self.machine, rate, asked.tokens, asked.answer)
        return LoadOutcome(measure(log, targets, open_loop=True), law, log)


def _requests(rate: float, asked: RequestMix) -> Iterator[TraceRequest]:
    moments = gamma(rate, asked.burstiness, asked.seed)
    return draw_requests(moments, jittered(Fixed(asked.tokens)), jittered(Fixed(asked.answer)), asked.seed)
