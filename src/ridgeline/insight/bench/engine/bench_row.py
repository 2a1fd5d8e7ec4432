"""Row: the figures of a workload, each with the ceiling that the roofs set it.

The floor of a step is max(FLOPs / peak, bytes of weights and KV / bandwidth): nothing can beat it. The ceiling of a
figure is what it would be if each step that ran had taken its floor, and its share the part of the seconds that the
floors explain.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ridgeline.core.ops.cost import Cost
from ridgeline.engine.engine import Engine
from ridgeline.insight.bench.engine.engine_run import EngineRun, EngineStep, run
from ridgeline.insight.bench.engine.measured_roofs import RoofMeter
from ridgeline.insight.bench.engine.workload import EngineWorkload
from ridgeline.price.device import Device
from ridgeline.price.op_time import compute_seconds, floor_seconds
from ridgeline.price.price import Price

OUTPUT, PREFILL, DECODE = "output_tok_s", "prefill_tok_s", "decode_tok_s"


@dataclass(frozen=True, slots=True)
class BindingRoof:
    """What binds: a memory (`memory`, `L3`) and its bytes a second, or a number format (`bf16`) and its FLOP/s."""

    name: str
    rate: float
    unit: str


@dataclass(frozen=True, slots=True)
class BenchFigure:
    """Tokens that so many seconds gave. floor: the seconds that nothing can beat. roof: which one most of those are
    under.
    """

    tokens: int
    seconds: float
    floor: float
    roof: BindingRoof

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def ceiling(self) -> float:
        """Tokens a second that the roofs allow."""
        return self.tokens / self.floor

    @property
    def share(self) -> float:
        """Of the ceiling that was reached."""
        return self.floor / self.seconds


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A workload in several rounds: its figures in each, by name, and the machine meanwhile. preemptions: of all
    rounds.
    """

    workload: EngineWorkload
    rounds: tuple[Mapping[str, BenchFigure], ...]
    devices: tuple[Device, ...]
    preemptions: int

    @property
    def names(self) -> list[str]:
        """Of the figures that it has."""
        return list(self.rounds[0])

    def each(self, name: str) -> list[BenchFigure]:
        """A figure in each round."""
        return [figures[name] for figures in self.rounds]

    def median(self, name: str) -> "BenchMedian":
        """The medians of a figure."""
        each = self.each(name)
        rates = [figure.rate for figure in each]
        binding = Counter(figure.roof.name for figure in each).most_common(1)[0][0]
        roofs = [figure.roof for figure in each if figure.roof.name == binding]
        return BenchMedian(
            statistics.median(figure.ceiling for figure in each),
            statistics.median(rates),
            statistics.median(figure.share for figure in each),
            (min(rates), max(rates)),
            BindingRoof(binding, statistics.median(roof.rate for roof in roofs), roofs[0].unit),
        )


@dataclass(frozen=True, slots=True)
class BenchMedian:
    """A figure over rounds, each number the median of its own. spread: the least and the most measured."""

    ceiling: float
    measured: float
    share: float
    spread: tuple[float, float]
    roof: BindingRoof


def measure(
    engine: Engine,
    price: Price,
    workloads: Sequence[EngineWorkload],
    rounds: int,
    roofs: RoofMeter,
    told: Callable[[str], None],
) -> Iterator[BenchRow]:
    """Run workloads in turn, so many rounds: a machine that drifts does so for all of them. A row comes when its last
    round is over. told: of each run that begins, in words.
    """
    kept: dict[str, list[tuple[EngineRun, Device]]] = {workload.name: [] for workload in workloads}
    for number in range(1, rounds + 1):
        for workload in workloads:
            told(f"round {number} of {rounds}: {workload.name}, {workload}")
            runs = kept[workload.name]
            runs.append(roofs.around(partial(run, engine, workload)))
            if number == rounds:
                figures = tuple(figures_of(ran, price, device) for ran, device in runs)
                devices = tuple(device for _, device in runs)
                yield BenchRow(workload, figures, devices, sum(ran.preemptions for ran, _ in runs))


def figures_of(ran: EngineRun, price: Price, device: Device) -> dict[str, BenchFigure]:
    """Of a run: prefill and decode where its requests are alike, decode where they have more than one token."""
    steps, filled, end = ran.steps, ran.steps[ran.filled - 1].ended, ran.steps[-1].ended
    found = {OUTPUT: _figure(steps, sum(step.tokens for step in steps), end, price, device)}
    if ran.workload.mixed:
        return found
    found[PREFILL] = _figure(steps[: ran.filled], ran.prompt_tokens, filled, price, device)
    after = steps[ran.filled :]
    if after:
        found[DECODE] = _figure(after, sum(step.tokens for step in after), end - filled, price, device)
    return found


def _figure(steps: Sequence[EngineStep], tokens: int, seconds: float, price: Price, device: Device) -> BenchFigure:
    under: dict[BindingRoof, float] = defaultdict(float)
    for step in steps:
        cost = price.step(step.work)
        under[_binding(cost, device)] += floor_seconds(cost, device, cost.memory_bytes)
    return BenchFigure(tokens, seconds, sum(under.values()), max(under, key=lambda roof: under[roof]))


def _binding(cost: Cost, device: Device) -> BindingRoof:
    """The roof that sets the floor of a step."""
    nbytes = cost.memory_bytes
    bandwidth = device.bandwidth_of(nbytes)
    if compute_seconds(cost, device) <= nbytes / bandwidth:
        return BindingRoof(device.place_of(nbytes), bandwidth, "B/s")
    busiest = max(cost.flops, key=lambda name: cost.flops[name] / device.peak(name))
    return BindingRoof(busiest, device.peak(busiest), "FLOP/s")
