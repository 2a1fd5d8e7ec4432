"""The figures of an engine workload, each with the ceiling that the roofline sets.

The floor of a step is max(FLOPs / peak, bytes of weights and KV / bandwidth), which no implementation can beat. The
ceiling of a figure is its value if each step had taken its floor; its share is the part of the measured time that the
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
    """The roof that limits an engine step, as a name and a rate.

    It is a memory (`memory`, `L3`) with its bandwidth, or a number format (`bf16`) with its FLOP/s.
    """

    name: str
    rate: float
    unit: str


@dataclass(frozen=True, slots=True)
class BenchFigure:
    """A throughput measurement with its roofline bound."""

    tokens: int
    """The number of tokens that the figure counts: prompt tokens for prefill, otherwise generated tokens."""
    seconds: float
    """The measured time in seconds."""
    floor: float
    """The lower bound of the time in seconds, by the roofline."""
    roof: BindingRoof
    """The hardware limit, a memory bandwidth or peak FLOP/s, that accounts for most of the lower time bound."""

    @property
    def rate(self) -> float:
        """The measured tokens per second."""
        return self.tokens / self.seconds

    @property
    def ceiling(self) -> float:
        """The highest tokens per second that the hardware's bandwidth and peak FLOP/s allow."""
        return self.tokens / self.floor

    @property
    def share(self) -> float:
        """The measured tokens per second as a share of the ceiling that the hardware sets."""
        return self.floor / self.seconds


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A workload that ran in several rounds, with its figures by name in each."""

    workload: EngineWorkload
    rounds: tuple[Mapping[str, BenchFigure], ...]
    devices: tuple[Device, ...]
    """The machine with its measured bandwidth and peak FLOP/s, once per round."""
    preemptions: int
    """The number of preemptions in all rounds."""

    @property
    def names(self) -> list[str]:
        """The names of the figures that were measured, such as prefill and decode throughput."""
        return list(self.rounds[0])

    def each(self, name: str) -> list[BenchFigure]:
        """Return one throughput figure of a workload (output, prefill or decode) in each round."""
        return [figures[name] for figures in self.rounds]

    def median(self, name: str) -> "BenchMedian":
        """Return the medians over all rounds of a throughput figure, its ceiling, and its share of the ceiling."""
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
    """A throughput figure over several rounds, in medians; `spread` is the lowest and highest measured rate."""

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
    on_line: Callable[[str], None],
) -> Iterator[BenchRow]:
    """Run workloads in turn for several rounds, so that drift of the machine affects all of them alike.

    Args:
        engine: The engine.
        price: The price of the model's steps.
        workloads: The workloads.
        rounds: The number of rounds.
        roofs: Measures the roofs of the machine.
        on_line: Called with a message when a run starts.

    Yields:
        The row of each workload after its last round.
    """
    kept: dict[str, list[tuple[EngineRun, Device]]] = {workload.name: [] for workload in workloads}
    for number in range(1, rounds + 1):
        for workload in workloads:
            on_line(f"round {number} of {rounds}: {workload.name}, {workload}")
            runs = kept[workload.name]
            runs.append(roofs.around(partial(run, engine, workload)))
            if number == rounds:
                figures = tuple(figures_of(ran, price, device) for ran, device in runs)
                devices = tuple(device for _, device in runs)
                yield BenchRow(workload, figures, devices, sum(ran.preemptions for ran, _ in runs))


def figures_of(ran: EngineRun, price: Price, device: Device) -> dict[str, BenchFigure]:
    """Return the output, prefill and decode throughput of a workload's run, each with its roofline bound.

    Prefill is included if all requests are alike, and decode if they also have more than one output token.
    """
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
    """Return the hardware limit, a bandwidth or peak FLOP/s, that sets the minimum time of an engine step."""
    nbytes = cost.memory_bytes
    bandwidth = device.bandwidth_of(nbytes)
    if compute_seconds(cost, device) <= nbytes / bandwidth:
        return BindingRoof(device.memory_level_of(nbytes), bandwidth, "B/s")
    busiest = max(cost.flops, key=lambda name: cost.flops[name] / device.peak(name))
    return BindingRoof(busiest, device.peak(busiest), "FLOP/s")
