"""Phases: the parts of a request, each with the steps that it takes and how often, and what they cost on a card."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import Work
from ridgeline.price.crossovers import both_seconds, matrix_flops
from ridgeline.price.device import Device
from ridgeline.price.op_time import compute_seconds
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.price import Price, StepPrice


@dataclass(frozen=True, slots=True)
class Estimate:
    """floor: what nothing can beat. bound: a perfect kernel for every op. expected: with the kernels there are.

    Of seconds the floor is the smallest figure; of rates derived from them the largest.
    """

    floor: float
    bound: float
    expected: float

    @classmethod
    def of(cls, steps: Iterable[StepPrice]) -> "Estimate":
        """The seconds of steps one after the other."""
        total = cls(0.0, 0.0, 0.0)
        for step in steps:
            total += cls(step.floor, step.bound, step.expected)
        return total

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.floor + other.floor, self.bound + other.bound, self.expected + other.expected)

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.floor - other.floor, self.bound - other.bound, self.expected - other.expected)

    def __mul__(self, factor: float) -> "Estimate":
        return self.map(lambda value: value * factor)

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """The same function of each figure."""
        return Estimate(function(self.floor), function(self.bound), function(self.expected))

    def beside(self, other: "Estimate", choose: Callable[[float, float], float]) -> "Estimate":
        """What is chosen of each figure and that of another."""
        figures = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Estimate(*(choose(mine, theirs) for mine, theirs in figures))

    def per_second(self, count: float) -> "Estimate":
        """`count` a so many seconds, as a rate."""
        return self.map(lambda seconds: count / seconds)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request: `works`, one step after the other, and all of that `count` times.

    name: prefill, decode, encode, denoise, decode-latents. about: what runs once, for people. context: positions that a
    sequence has at its end (prefill) or on average (decode), None where there are no such positions. ranks: of several
    that have requests of their own those that have rows in it, None for all.
    """

    name: str
    works: tuple[Work, ...]
    count: int = 1
    about: str = ""
    context: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class ClassRow:
    """The ops of one kernel class in a phase. share: of the bound; limit: the roof that most of their time is under."""

    kind: str
    flops: float
    nbytes: float
    bound: float
    expected: float
    share: float
    limit: str


@dataclass(frozen=True, slots=True)
class PhasePrice:
    """A phase on one card, once: a request takes `count` of it.

    steps: how many there are. tokens: positions run in all of them. flops, and bytes by where they come from, of all
    steps; communication: bytes by collective. arithmetic, memory: seconds of the matrices' arithmetic at their peaks,
    and of moving weights and KV at the full bandwidth. intensity: FLOPs of matrices a byte of weights and KV; ridge:
    the intensity from which on this mix of number formats keeps the card's arithmetic longer than its memory. limit:
    compute, memory or communication. idle: the share of the floor in which the arithmetic units have nothing to do.
    host: of the expected seconds those in which the card waits for the engine's host, which no class has.
    """

    name: str
    count: int
    about: str
    steps: int
    tokens: int
    context: int | None
    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    communication: Mapping[str, float]
    arithmetic: float
    memory: float
    intensity: float
    ridge: float
    limit: str
    idle: float
    seconds: Estimate
    classes: tuple[ClassRow, ...]
    host: float

    @property
    def memory_bytes(self) -> float:
        """Bytes of weights and KV."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def balance(self) -> float:
        """Seconds of arithmetic over seconds of memory: how far over the ridge, below 1 under it."""
        return self.intensity / self.ridge


def price_phase(price: Price, device: Device, phase: Phase) -> PhasePrice:
    """What a phase of the model that `price` is of takes on a device."""
    price = price if phase.ranks is None else price.gathering(phase.ranks)
    return sum_phase(phase, [price.on(device, work) for work in phase.works], device)


def sum_phase(phase: Phase, steps: Sequence[StepPrice], device: Device) -> PhasePrice:
    """A phase of steps that are priced already: of one model, or of several that take turns in it."""
    cost = sum((step.cost for step in steps), Cost())
    arithmetic = sum(compute_seconds(step.cost, device) for step in steps)
    seconds = Estimate.of(steps)
    intensity = sum(matrix_flops(cost).values()) / cost.memory_bytes
    matrices, memory = both_seconds((step.cost for step in steps), device)
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
    """Seconds of all phases, each as often as it is taken."""
    return sum((phase.seconds * phase.count for phase in phases), Estimate(0.0, 0.0, 0.0))


# -- the phases of a decoder, on one rank -----------------------------------------------------------------------------


def decoder_phases(case: Scenario, workload: PlanWorkload) -> list[Phase]:
    """The workload's batch, asking at once: its prefill, which emits the first token, and a decode step for each other
    one. Of several ranks with requests of their own what the fullest runs: a prefill leaves those out that have no
    prompt, in a decode step they run a row that nobody needs (vLLM docs/serving/data_parallel_deployment.md).
    """
    batch, own = workload.batch, case.on_each(workload.batch)
    prefill = prefill_phase(case, dataclasses.replace(workload, batch=own))
    decode = decode_phase(case, own, workload.context, workload.output - 1, workload.encoded)
    return [prefill if batch >= case.ranks else dataclasses.replace(prefill, ranks=batch), decode]


def prefill_phase(case: Scenario, workload: PlanWorkload) -> Phase:
    """The prefill of the workload's batch, all prompts there at once: steps of at most `step_tokens` positions, prompts
    follow each other, and a chunk sees all of its own before it. An encoder runs with the first positions of a prompt,
    a tower with those of its images.
    """
    positions, step = workload.batch * workload.input, workload.prompt_step
    works = tuple(prefill_work(case, workload, at, min(at + step, positions)) for at in range(0, positions, step))
    steps = f" in {len(works):,} steps" if len(works) > 1 else ""
    about = f"{workload.batch:,} x {workload.given:,} tokens{steps}"
    return Phase("prefill", works, about=about, context=workload.input)


def decode_phase(case: Scenario, batch: int, context: int, count: int = 1, encoded: int = 0) -> Phase:
    """Decode steps of `batch` sequences at this context, which look at so many positions of an encoder."""
    works = (decode_work(case, batch, context, encoded),)
    return Phase("decode", works, count, f"{batch:,} x 1 token at {context:,}", context)


def decode_work(case: Scenario, batch: int, context: int, encoded: int = 0) -> Work:
    """One new position in each of `batch` sequences at this context."""
    return case.dealt(Work.decode([context], case.price.reaches, [encoded]) * batch)


def prefill_work(case: Scenario, workload: PlanWorkload, start: int, end: int) -> Work:
    """The step that runs the positions from `start` to `end` of the workload's prompts, laid end to end; a prompt that
    ends in it has its logits.
    """
    length, segments = workload.input, []
    ends = end // length - start // length
    while start < end:
        done = start % length
        count = min(length - done, end - start)
        segments.append(case.part(workload, done, done + count))
        start += count
    return case.dealt(Work.of(segments, case.price.reaches, ends))


def decode_step(case: Scenario, batch: int, context: int, encoded: int = 0) -> StepPrice:
    """One step that gives `batch` sequences of `context` positions a token each."""
    return case.price.on(case.device, decode_work(case, batch, context, encoded))


def prefill_step(case: Scenario, workload: PlanWorkload, start: int, end: int) -> StepPrice:
    """The step that runs the positions from `start` to `end` of the workload's prompts."""
    return case.price.on(case.device, prefill_work(case, workload, start, end))


# -- by class ---------------------------------------------------------------------------------------------------------


def _classes(steps: Sequence[StepPrice]) -> tuple[ClassRow, ...]:
    """Op classes by the time of their bounds, the longest first."""
    whole = sum(step.bound for step in steps)
    sums: dict[str, dict[str, float]] = {}
    limits: dict[str, dict[str, float]] = {}
    for row in (row for step in steps for row in step.rows):
        kind, count = row.priced.op.kind, row.priced.count
        entry = sums.setdefault(kind, dict.fromkeys(("flops", "nbytes", "bound", "expected"), 0.0))
        entry["flops"] += row.cost.total_flops * count
        entry["nbytes"] += (row.cost.total_bytes + row.cost.communication_bytes) * count
        entry["bound"] += row.time.bound * count
        entry["expected"] += row.time.expected * count
        under = limits.setdefault(kind, {})
        under[row.time.limit] = under.get(row.time.limit, 0.0) + row.time.bound * count
    rows = [
        ClassRow(kind, **entry, share=entry["bound"] / whole, limit=max(limits[kind], key=lambda r: limits[kind][r]))
        for kind, entry in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bound))
