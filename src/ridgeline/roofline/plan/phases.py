"""Prefill and decode: what a phase must do, how long that takes, and which roof it is under."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ridgeline.ops.cost import Cost
from ridgeline.ops.work import AttentionWork, Segment, Work
from ridgeline.roofline.critical import balance, matrix_flops
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import Case
from ridgeline.roofline.plan.estimate import Estimate
from ridgeline.roofline.plan.workload import Workload
from ridgeline.roofline.price import StepPrice
from ridgeline.roofline.time import compute_seconds


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
class Phase:
    """A phase on one card.

    steps: how many there are. tokens: positions run in all of them. context: positions that a sequence has at its end
    (prefill) or on average (decode). flops, and bytes by where they come from, of all steps. intensity: FLOPs of
    matrices a byte of weights and KV; ridge: the intensity from which on this mix of number formats keeps the card's
    arithmetic longer than its memory. limit: compute, memory or communication. idle: the share of the floor in which
    the arithmetic units have nothing to do.
    """

    steps: int
    tokens: int
    context: int
    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    communication_bytes: float
    intensity: float
    ridge: float
    limit: str
    idle: float
    seconds: Estimate
    classes: tuple[ClassRow, ...]

    @property
    def memory_bytes(self) -> float:
        """Bytes of weights and KV."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def balance(self) -> float:
        """Seconds of arithmetic over seconds of memory: how far over the ridge, below 1 under it."""
        return self.intensity / self.ridge


def prefill_steps(case: Case, workload: Workload, prompts: int) -> list[StepPrice]:
    """The steps that run `prompts` prompts, oldest first, each step as full as it may be."""
    return [case.price.on(case.device, work) for work in _packed(case, workload, prompts)]


def prefill_step(case: Case, workload: Workload, start: int, end: int) -> StepPrice:
    """The step that runs the positions from `start` to `end` of the workload's prompts, laid end to end."""
    return case.price.on(case.device, _part(case, workload, start, end))


def decode_step(case: Case, batch: int, context: int) -> StepPrice:
    """One step that gives `batch` sequences of `context` positions a token each."""
    return case.price.on(case.device, decode_work(case.price.windows, batch, context))


def decode_work(windows: Iterable[int | None], batch: int, context: int) -> Work:
    """The work of `Segment(1, context)`, `batch` times."""
    seen = {w: batch * min(context, w or context) for w in windows}
    return Work(batch, batch, batch, {w: AttentionWork(n, n, n) for w, n in seen.items()}, batch)


def prefill_phase(case: Case, workload: Workload) -> Phase:
    """The prefill of the workload's batch, all prompts there at once."""
    steps = prefill_steps(case, workload, workload.batch)
    return _phase(case.device, steps, workload.batch * workload.input, workload.input)


def decode_phase(case: Case, batch: int, context: int) -> Phase:
    """One decode step of `batch` sequences at this context."""
    return _phase(case.device, [decode_step(case, batch, context)], batch, context)


def _packed(case: Case, workload: Workload, prompts: int) -> Iterator[Work]:
    """Steps of at most `step_tokens` positions: prompts follow each other, a chunk sees all of its own before it."""
    positions, step = prompts * workload.input, workload.step_tokens
    return (_part(case, workload, at, min(at + step, positions)) for at in range(0, positions, step))


def _part(case: Case, workload: Workload, start: int, end: int) -> Work:
    """One such step; a prompt that ends in it has its logits."""
    length, segments = workload.input, []
    ends = end // length - start // length
    while start < end:
        done = start % length
        count = min(length - done, end - start)
        segments.append(Segment(count, done + count))
        start += count
    return Work.of(segments, case.price.windows, ends)


def _phase(device: Device, steps: Sequence[StepPrice], tokens: int, context: int) -> Phase:
    cost = sum((step.cost for step in steps), Cost())
    arithmetic = sum(compute_seconds(step.cost, device) for step in steps)
    seconds = Estimate.of(steps)
    intensity = sum(matrix_flops(cost).values()) / cost.memory_bytes
    over = balance((step.cost for step in steps), device)
    classes = _classes(steps)
    talking = sum(row.bound for row in classes if row.limit == "communication")
    return Phase(
        len(steps), tokens, context, cost.total_flops,
        cost.weight_bytes, cost.kv_read_bytes, cost.kv_write_bytes, cost.activation_bytes, cost.communication_bytes,
        intensity=intensity,
        ridge=intensity / over,
        limit="communication" if talking > seconds.bound / 2 else "compute" if over >= 1 else "memory",
        idle=1 - arithmetic / seconds.floor,
        seconds=seconds,
        classes=classes,
    )  # fmt: skip


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
