"""The ledger of a trace: one row per executed op, with its predicted and its measured time.

Every view (table, JSON, CSV, trace file, charts) shows a ledger or sums of its entries, and measures or predicts
nothing itself. Seconds, bytes and FLOPs are plain numbers; shapes are tuples.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import Work
from ridgeline.insight.trace.attention_weights import AttentionWeights
from ridgeline.insight.trace.cross_attention import CrossAttentionWeights
from ridgeline.insight.trace.expert_routing import Routing
from ridgeline.insight.trace.expert_sources import ExpertSources
from ridgeline.insight.trace.feed_forward_memory import FeedForwardMemory
from ridgeline.insight.trace.lens import Lens
from ridgeline.insight.trace.timeline import TimelineSlice
from ridgeline.insight.trace.token_candidates import Token, TokenChoice
from ridgeline.price.device import Device
from ridgeline.price.physics_guard import beats_floor, under_floor
from ridgeline.util.json_data import json_shape

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The predicted and measured cost of one op in one step."""

    cost: Cost
    floor: float
    """A lower bound in seconds that no implementation can beat.

    It is the larger of the arithmetic at peak rate, and the traffic of weights and KV cache from the nearest memory
    that could hold them.
    """
    bound: float
    """The seconds that a perfect kernel would take for the op, including its activation traffic.

    The traffic of weights and KV cache has the bandwidth of the memory level that holds the step's working set.
    """
    expected: float
    """The predicted seconds, with the calibrated efficiency of the kernels."""
    limit: str
    """The hardware limit that sets `bound`: compute, memory or communication; empty if the op did not run."""
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    measured: float
    """The measured seconds of the op."""
    impossible: bool
    """Whether the measurement is below the floor of the measuring device: an error in spec, shape or timer."""
    gap: float
    """The seconds between the end of the previous op and the start of this one."""
    note: str = ""
    """A remark on the op for the reader, such as the number of experts that it used."""


@dataclass(frozen=True, slots=True)
class OpRow:
    """An op of the model: its path, its kind, and its entry in each step, by step name."""

    path: str
    kind: str
    detail: str
    layer: int | None
    entries: Mapping[str, LedgerEntry]
    backend: str = ""
    """The backend that leaves at least part of the op to PyTorch; empty if none does."""

    @property
    def group(self) -> str:
        """The op's path with a star in place of its layer number, equal for the same op of every layer."""
        parts = self.path.split(".")
        if self.layer is not None:
            parts[parts.index(str(self.layer))] = "*"
        return ".".join(parts)


@json_shape(
    "flops=cost.total_flops", "cost.weight_bytes", "cost.kv_read_bytes", "cost.kv_write_bytes", "cost.activation_bytes",
    "bytes=cost.total_bytes", "cost.intensity", "limit", "floor_s=floor", "bound_s=bound", "expected_s=expected",
    "measured_s=measured", "difference", "impossible=has_impossible",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """The predicted and measured cost of several ledger entries together."""

    count: int
    cost: Cost
    floor: float
    bound: float
    expected: float
    measured: float
    limit: str
    impossible: int
    """The number of entries that were measured faster than physics allows."""
    covered: bool = True
    """Whether `expected` covers everything that `measured` does."""

    @classmethod
    def of(cls, entries: Iterable[LedgerEntry]) -> "LedgerTotal":
        """Return the sum of entries; its limit is the roof that contributes most of the bound."""
        found = list(entries)
        by_limit: dict[str, float] = {}
        cost = Cost()
        for entry in found:
            cost += entry.cost
            by_limit[entry.limit] = by_limit.get(entry.limit, 0.0) + entry.bound
        return cls(
            len(found),
            cost,
            sum(entry.floor for entry in found),
            sum(entry.bound for entry in found),
            sum(entry.expected for entry in found),
            sum(entry.measured for entry in found),
            max(by_limit, key=lambda limit: by_limit[limit], default=""),
            sum(entry.impossible for entry in found),
        )

    @property
    def has_impossible(self) -> bool:
        """Whether an entry was measured faster than physics allows."""
        return self.impossible > 0

    @property
    def difference(self) -> float | None:
        """The relative excess of measured over expected time (0.5: 50 % longer).

        It is None without an expectation, and if the expectation covers only a part of what was measured.
        """
        return self.measured / self.expected - 1 if self.expected and self.covered else None


@dataclass(frozen=True, slots=True)
class Overhead:
    """The seconds of a step that belong to no op: building the batch, Python between ops, or sampling."""

    name: str
    seconds: float
    expected: float | None = None
    """The predicted seconds; None if the device's price has no constants for this part alone."""


@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """The cost of keeping attention's score matrix in memory, over all layers of a step."""

    nbytes: float
    """The memory traffic of the scores."""
    bound: float
    """The seconds of the attention ops without the matrix in memory."""
    with_matrix: float
    """The seconds of the attention ops with the matrix in memory."""


@dataclass(frozen=True, slots=True)
class LedgerStep:
    """A whole step, with its predicted cost and how it was measured."""

    name: str
    work: Work
    cost: Cost
    working_set: float
    """The bytes of weights and KV cache that the step touches."""
    memory_level: str
    """The memory level that holds the working set."""
    floor: float
    bound: float
    expected: float
    limit: str
    host: float
    """The part of `expected` that belongs to no op.

    It includes the scheduler only if the price has no constants for the scheduler alone. A trace never measures it.
    """
    score_matrix: ScoreMatrix | None = None
    overheads: tuple[Overhead, ...] = ()
    """The measured time between and around ops."""
    unhooked: float | None = None
    """The seconds of the same step without hooks, as a check of ops and overheads together."""
    hooks: float = 0.0
    """The seconds that the hooks take, which are already subtracted."""
    repeats: int = 0
    """The number of runs over which all times are medians."""
    interruptions: float = 0.0
    """The excess of the whole's median over the sum of its parts' medians.

    It arises because other processes interrupt different parts in different runs.
    """
    left_out: int = 0
    """The number of runs left out because other processes interrupted them."""
    recorded: bool = False
    """Whether the engine replays the step as a recorded graph, in which no Python runs between ops."""

    @property
    def rows(self) -> int:
        """The number of rows of most ops: token positions, or the widest axis of a model without tokens."""
        return self.work.tokens or max(self.work.rows.values())


@dataclass(frozen=True, slots=True)
class OpGroup:
    """The same op over several layers, or the ops of one class, with a total for each step."""

    label: str
    first: OpRow
    totals: Mapping[str, LedgerTotal]


@dataclass(frozen=True, slots=True)
class StepLedger:
    """The ledger of one model's steps: their times, and a row for each op."""

    model: str
    device: Device
    at_hand: bool
    """Whether `device` is the machine that measured; if not, measurements are not compared with its floors."""
    threads: int
    steps: tuple[LedgerStep, ...]
    rows: tuple[OpRow, ...]
    """The ops in execution order."""

    @property
    def layers(self) -> int:
        """The number of layers of the model, of its deepest stack if it has several; 0 if no op lies in a layer."""
        return 1 + max((row.layer for row in self.rows if row.layer is not None), default=-1)

    @property
    def predicts_whole(self) -> bool:
        """Whether a step's expected time covers the time between and around its ops too.

        Only a calibrated device has constants for it. On a GPU it may be 0, because the host works meanwhile.
        """
        return self.device.host is not None

    def step(self, name: str) -> LedgerStep:
        """Return the step with a given name."""
        return next(step for step in self.steps if step.name == name)

    def entries(self, step: str) -> list[LedgerEntry]:
        """Return the entries of a step, in execution order."""
        return [row.entries[step] for row in self.rows]

    def ops(self, step: str) -> LedgerTotal:
        """Return the total cost over all ops of a step, without overheads."""
        return LedgerTotal.of(self.entries(step))

    def whole(self, step: str) -> float:
        """Return the measured seconds of a step: its ops and overheads."""
        return self.ops(step).measured + sum(overhead.seconds for overhead in self.step(step).overheads)

    def total(self, step: str) -> LedgerTotal:
        """Return the cost of a whole step, with overheads, as one total."""
        of, whole = self.step(step), self.whole(step)
        impossible = int(self.at_hand and under_floor(whole, of.floor))
        covered = not self.not_predicted(step)
        return LedgerTotal(1, of.cost, of.floor, of.bound, of.expected, whole, of.limit, impossible, covered)

    def not_predicted(self, step: str) -> tuple[str, ...]:
        """Return the names of the overheads of a step that were measured but that its expected time does not cover."""
        return () if self.predicts_whole else tuple(overhead.name for overhead in self.step(step).overheads)

    def groups(self, rows: Iterable[OpRow] | None = None) -> list[OpGroup]:
        """Return the totals of rows (all by default) grouped by their role in a layer, in order of first appearance."""
        return self._grouped(self.rows if rows is None else rows, lambda row: row.group)

    def classes(self) -> list[OpGroup]:
        """Return the totals of all ops grouped by kernel class."""
        return self._grouped(self.rows, lambda row: row.kind)

    def _grouped(self, rows: Iterable[OpRow], label: Callable[[OpRow], str]) -> list[OpGroup]:
        found: dict[str, list[OpRow]] = {}
        for row in rows:
            found.setdefault(label(row), []).append(row)
        return [
            OpGroup(name, same[0], {s.name: LedgerTotal.of(row.entries[s.name] for row in same) for s in self.steps})
            for name, same in found.items()
        ]

    def impossible(self) -> list[str]:
        """Return a line for each measurement that is faster than physics allows (the physics guard).

        The guard applies only to the machine at hand, because another device's floors do not bound it.
        """
        found = []
        for step in self.steps:
            whole = self.total(step.name)
            if whole.impossible:
                found.append(f"the whole {step.name} step: {beats_floor(whole.measured, whole.floor)}")
            for row in self.rows:
                entry = row.entries[step.name]
                if entry.impossible:
                    found.append(f"{row.path} ({step.name}): {beats_floor(entry.measured, entry.floor)}")
        return found


@dataclass(frozen=True, slots=True)
class Ledger(StepLedger):
    """The ledger of one LLM request, whose steps are its prefill and its first decode step.

    Fields with a default hold the optional views; they are None for views that were not requested.
    """

    text: str
    """The prompt text."""
    prompt: tuple[Token, ...]
    """The tokens of the prompt."""
    written: tuple[Token, ...]
    """The generated tokens."""
    answer: str
    """The text of the response."""
    choices: Mapping[str, TokenChoice]
    """The candidates and the sampled token of each step."""
    timeline: TimelineSlice
    weights: str
    """The storage format of the weights."""
    kv: str
    """The storage format of the KV cache."""
    attention: AttentionWeights | None = None
    cross: CrossAttentionWeights | None = None
    lens: Lens | None = None
    memory: FeedForwardMemory | None = None
    experts: Routing | None = None
    sources: ExpertSources | None = None
