"""The phases of a request, such as prefill and decode, with the steps they take and their cost on a device."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import Work
from ridgeline.price.crossovers import compute_and_memory_seconds, matrix_intensity
from ridgeline.price.device import Device
from ridgeline.price.op_time import compute_seconds
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.price import Price, StepPrice
from ridgeline.price.priced_op import PricedRow
from ridgeline.util.json_data import json_shape


@dataclass(frozen=True, slots=True)
class Estimate:  # also in plan_formulas.js
    """A time or a rate in three variants: floor, bound and expected.

    Among times the floor is the smallest of the three, among rates derived from them the largest.
    """

    floor: float
    """The roofline limit of whole steps, which nothing can beat."""
    bound: float
    """The time or rate with a perfect kernel for every op."""
    expected: float
    """The time or rate predicted with the kernels that exist."""

    @classmethod
    def of(cls, steps: Iterable[StepPrice]) -> "Estimate":  # also in plan_formulas.js
        """Return the total floor, bound and expected seconds of consecutive steps."""
        total = cls(0.0, 0.0, 0.0)
        for step in steps:
            total += cls(step.floor, step.bound, step.expected)
        return total

    def __add__(self, other: "Estimate") -> "Estimate":  # also in plan_formulas.js
        return Estimate(self.floor + other.floor, self.bound + other.bound, self.expected + other.expected)

    def __sub__(self, other: "Estimate") -> "Estimate":  # also in plan_formulas.js
        return Estimate(self.floor - other.floor, self.bound - other.bound, self.expected - other.expected)

    def __mul__(self, factor: float) -> "Estimate":  # also in plan_formulas.js
        return self.map(lambda value: value * factor)

    def map(self, function: Callable[[float], float]) -> "Estimate":  # also in plan_formulas.js
        """Return an estimate with a function applied to floor, bound and expected value."""
        return Estimate(function(self.floor), function(self.bound), function(self.expected))

    def combine(
        self, other: "Estimate", choose: Callable[[float, float], float]
    ) -> "Estimate":  # also in plan_formulas.js
        """Combine two estimates: apply `choose`, such as min, to both floors, both bounds and both expected values."""
        return Estimate(
            choose(self.floor, other.floor), choose(self.bound, other.bound), choose(self.expected, other.expected)
        )

    def per_second(self, count: float) -> "Estimate":  # also in plan_formulas.js
        """Return the rate of `count` events per the seconds of this estimate."""
        return self.map(lambda seconds: count / seconds)


@dataclass(frozen=True, slots=True)
class Phase:  # also in plan_formulas.js
    """A phase of a request: a sequence of steps that is repeated `count` times."""

    name: str
    """The kind of phase, such as prefill, decode, encode, denoise or decode-latents."""
    works: tuple[Work, ...]
    """The consecutive steps of one repetition of the phase."""
    count: int = 1
    about: str = ""
    """A description for the user of what one repetition runs."""
    context: int | None = None
    """The positions of a sequence at its end (prefill) or on average (decode); None if positions do not apply."""
    ranks: int | None = None
    """The number of data-parallel ranks that have requests in the phase; None for all."""


@dataclass(frozen=True, slots=True)
class ClassRow:  # also in plan_formulas.js
    """The FLOPs, bytes and seconds of the ops of one kernel class in a phase."""

    kind: str
    flops: float
    nbytes: float
    bound: float
    expected: float
    share: float
    """The share of the phase's bound that the kernel class takes."""
    limit: str
    """The roof that limits most of the kernel class's time."""


@json_shape(..., "memory_bytes", "communication_bytes")
@dataclass(frozen=True, slots=True)
class PhasePrice:  # also in plan_formulas.js
    """The cost and the seconds of one repetition of a phase, on one device."""

    name: str
    count: int
    """The number of repetitions of the phase per request."""
    about: str
    steps: int
    """The number of steps in one repetition of the phase."""
    tokens: int
    """The number of positions that all steps of the phase run together."""
    context: int | None
    """The positions of a sequence at its end (prefill) or on average (decode); None if positions do not apply."""
    flops: float
    """The FLOPs of all steps of the phase."""
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    communication: Mapping[str, float]
    """The bytes that all steps of the phase communicate, by collective."""
    arithmetic: float
    """The seconds of the phase's matrix arithmetic at peak FLOP/s."""
    memory: float
    """The seconds to move the phase's weights and KV at full bandwidth."""
    intensity: float
    """The arithmetic intensity: matrix FLOPs per byte of weights and KV."""
    ridge: float
    """The intensity from which this mix of number formats is compute-bound."""
    limit: str
    """The limiting resource: "compute", "memory" or "communication"."""
    idle: float
    """The share of the floor during which the arithmetic units are idle."""
    seconds: Estimate
    """The floor, bound and expected seconds of all steps of the phase."""
    classes: tuple[ClassRow, ...]
    """The costs and times by kernel class, the longest bound first."""
    host: float
    """The part of the expected seconds in which the device waits for the host. It belongs to no kernel class."""

    @property
    def memory_bytes(self) -> float:
        """The bytes of weights and KV that the phase moves."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def communication_bytes(self) -> float:
        """The bytes that the phase communicates in all collectives together."""
        return sum(self.communication.values())

    @property
    def balance(self) -> float:
        """The ratio of arithmetic seconds to memory seconds: above 1 the phase is compute-bound."""
        return self.intensity / self.ridge


def price_phase(price: Price, device: Device, phase: Phase) -> PhasePrice:
    """Return the cost and the seconds of a phase of the priced model on a device."""
    price = price if phase.ranks is None else price.with_active_ranks(phase.ranks)
    return sum_phase(phase, [price.price_step(device, work) for work in phase.works], device)


def sum_phase(phase: Phase, steps: Sequence[StepPrice], device: Device) -> PhasePrice:  # also in plan_formulas.js
    """Return the total of a phase whose steps are already priced, possibly by several models that take turns."""
    cost = sum((step.cost for step in steps), Cost())
    arithmetic = sum(compute_seconds(step.cost, device) for step in steps)
    seconds = Estimate.of(steps)
    intensity = matrix_intensity(cost)
    matrices, memory = compute_and_memory_seconds((step.cost for step in steps), device)
    over = matrices / memory
    classes = _classes(steps)
    talking = sum(row.bound for row in classes if row.limit == "communication")
    return PhasePrice(
        phase.name, phase.count, phase.about,
        len(steps), sum(work.tokens for work in phase.works), phase.context, cost.total_flops,
        cost.weight_bytes, cost.kv_read_bytes, cost.kv_write_bytes, cost.activation_bytes, cost.communication,
        arithmetic=matrices,
        memory=memory,
        intensity=intensity,
        ridge=intensity / over,
        limit="communication" if talking > seconds.bound / 2 else "compute" if over >= 1 else "memory",
        idle=1 - arithmetic / seconds.floor,
        seconds=seconds,
        classes=classes,
        host=sum(step.host for step in steps),
    )  # fmt: skip


def request_seconds(phases: Iterable[PhasePrice]) -> Estimate:
    """Return the total seconds of all phases, each with its number of repetitions."""
    return sum((phase.seconds * phase.count for phase in phases), Estimate(0.0, 0.0, 0.0))


# -- the phases of a decoder, on one rank -----------------------------------------------------------------------------


def decoder_phases(case: Scenario, workload: PlanWorkload) -> list[Phase]:
    """Return the phases, not yet priced, of the workload's batch, started at once: a prefill, then the decode steps.

    There is one decode step per token after the first. With data-parallel ranks these are the steps of the fullest
    rank. A prefill leaves out ranks without a prompt; in a decode step those run a dummy row (vLLM
    docs/serving/data_parallel_deployment.md).
    """
    batch, own = workload.batch, case.requests_per_rank(workload.batch)
    prefill = prefill_phase(case, dataclasses.replace(workload, batch=own))
    decode = decode_phase(case, own, workload.context, workload.output - 1, workload.encoded)
    return [prefill if batch >= case.ranks else dataclasses.replace(prefill, ranks=batch), decode]


def prefill_phase(case: Scenario, workload: PlanWorkload) -> Phase:
    """Return the prefill of the workload's batch, all prompts available at once.

    Prompts are laid end to end and run in steps of at most `PlanWorkload.prompt_step` positions; a chunk attends to all
    earlier positions of its prompt. Cached positions do not run, but the others attend to them. An encoder runs with
    the first positions of a prompt, a vision tower with those of its images.
    """
    positions, step = workload.batch * workload.computed, workload.prompt_step
    works = tuple(prefill_work(case, workload, at, min(at + step, positions)) for at in range(0, positions, step))
    steps = f" in {len(works):,} steps" if len(works) > 1 else ""
    cached = f", {workload.cached:,} cached," if workload.cached else ""
    about = f"{workload.batch:,} x {workload.given:,} tokens{cached}{steps}"
    return Phase("prefill", works, about=about, context=workload.input)


def decode_phase(case: Scenario, batch: int, context: int, count: int = 1, encoded: int = 0) -> Phase:
    """Return the phase of decode steps at a given context length.

    Args:
        case: The scenario.
        batch: The number of sequences.
        context: The positions of each sequence.
        count: The number of decode steps.
        encoded: The encoder positions of each sequence.
    """
    works = (decode_work(case, batch, context, encoded),)
    return Phase("decode", works, count, f"{batch:,} x 1 token at {context:,}", context)


def decode_work(case: Scenario, batch: int, context: int, encoded: int = 0) -> Work:
    """Return the positions that a decode step runs, not yet priced: one new position in each of `batch` sequences."""
    return case.with_adapter_rows(Work.decode([context], case.price.reaches, [encoded]) * batch)


def prefill_work(case: Scenario, workload: PlanWorkload, start: int, end: int) -> Work:
    """Return the work of the step that runs the positions from `start` to `end` of the prompts, laid end to end.

    The cached positions of a prompt are left out of the line. A prompt that ends in the step has its logits computed.
    """
    parts, cached = prompt_parts(workload.computed, start, end), workload.cached
    segments = [case.part(workload, cached + first, cached + stop) for first, stop in parts]
    ends = end // workload.computed - start // workload.computed
    return case.with_adapter_rows(Work.of(segments, case.price.reaches, ends))


def prompt_parts(length: int, start: int, end: int) -> list[tuple[int, int]]:  # also in plan_formulas.js
    """Return the first position and the end, within its prompt, of each part of a prompt that a step runs.

    Args:
        length: The positions of each prompt. The prompts are laid end to end.
        start: The first position that the step runs.
        end: The end of its positions.
    """
    prompts = range(start // length * length, end, length)
    return [(max(start, at) - at, min(end, at + length) - at) for at in prompts]


def decode_step(case: Scenario, batch: int, context: int, encoded: int = 0) -> StepPrice:
    """Return the price of one decode step of `batch` sequences with `context` positions each."""
    return case.price.price_step(case.device, decode_work(case, batch, context, encoded))


def prefill_step(case: Scenario, workload: PlanWorkload, start: int, end: int) -> StepPrice:
    """Return the price of the step that runs the positions from `start` to `end` of the workload's prompts."""
    return case.price.price_step(case.device, prefill_work(case, workload, start, end))


# -- by class ---------------------------------------------------------------------------------------------------------


def _classes(steps: Sequence[StepPrice]) -> tuple[ClassRow, ...]:  # also in plan_formulas.js
    """Return the kernel classes of some steps by the time of their bounds, the longest first."""
    whole = sum(step.bound for step in steps)
    by_kind: dict[str, list[PricedRow]] = {}
    for row in (row for step in steps for row in step.rows):
        by_kind.setdefault(row.priced.op.kind, []).append(row)
    classes = [_class_row(kind, rows, whole) for kind, rows in by_kind.items()]
    return tuple(sorted(classes, key=lambda row: -row.bound))


def _class_row(kind: str, rows: Sequence[PricedRow], whole: float) -> ClassRow:  # also in plan_formulas.js
    """Return the sums of the rows of one kernel class, in steps whose bounds are `whole` seconds together."""
    bounds = {"memory": 0.0, "compute": 0.0, "communication": 0.0}
    for row in rows:
        bounds[row.time.limit] += row.time.bound * row.priced.count
    bound = sum(bounds.values())
    return ClassRow(
        kind,
        flops=sum(row.cost.total_flops * row.priced.count for row in rows),
        nbytes=sum((row.cost.total_bytes + row.cost.communication_bytes) * row.priced.count for row in rows),
        bound=bound,
        expected=sum(row.time.expected * row.priced.count for row in rows),
        share=bound / whole,
        limit=max(bounds, key=lambda limit: bounds[limit]),
    )
