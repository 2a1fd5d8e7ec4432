"""The ledger: one row for each op that a step ran, what it must cost beside what it took.

Every view (table, JSON, CSV, trace file, pictures) prints what is in a Ledger and computes nothing of its own. Seconds,
bytes and FLOPs are plain numbers; shapes are tuples.
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

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One op in one step.

    floor: seconds that nothing can beat: its arithmetic at the peak, or its weights and KV from the nearest memory that
    could hold them. bound: what a perfect kernel takes, activations included, with the step's bytes where they live.
    expected: calibrated. limit: the roof that the bound hits. measured: seconds. impossible: whether those are under
    the floor of the device that measured, which is an error in spec, shape or timer. gap: seconds between the end of
    the op before it and its own start. note: what a reader should know of it.
    """

    cost: Cost
    floor: float
    bound: float
    expected: float
    limit: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    measured: float
    impossible: bool
    gap: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class OpRow:
    """An op of the model: where it is, what it is, and its entry in each step (by the step's name).

    backend: the name of the backend that leaves at least a part of the op to PyTorch; empty if none does.
    """

    path: str
    kind: str
    detail: str
    layer: int | None
    entries: Mapping[str, LedgerEntry]
    backend: str = ""

    @property
    def group(self) -> str:
        """Its path with a star for the number of its layer: equal for the same op of every layer."""
        parts = self.path.split(".")
        if self.layer is not None:
            parts[parts.index(str(self.layer))] = "*"
        return ".".join(parts)


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """Entries added up. impossible: how many of them are."""

    count: int
    cost: Cost
    floor: float
    bound: float
    expected: float
    measured: float
    limit: str
    impossible: int

    @classmethod
    def of(cls, entries: Iterable[LedgerEntry]) -> "LedgerTotal":
        """The sum; its limit is the roof that most of the bound comes from."""
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
    def difference(self) -> float | None:
        """How much longer than expected it took, as a share: 0.5 is half as long again. None of no expectation."""
        return self.measured / self.expected - 1 if self.expected else None


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of a step that no op has: making the batch, Python between the ops, sampling."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """What a step's attention would pay for keeping its score matrix in memory, all layers together.

    nbytes: the traffic, score by score. bound, with_matrix: seconds of the attention ops without and with it.
    """

    nbytes: float
    bound: float
    with_matrix: float


@dataclass(frozen=True, slots=True)
class LedgerStep:
    """A whole step.

    floor, bound, expected, limit: its price; host: what of `expected` no op has. working_set: bytes of weights and KV,
    and `place` the memory that holds them. overheads: what lies between ops. unhooked: seconds of the same step without
    hooks, the check on ops and overheads together. hooks: seconds of the hooks themselves, already subtracted. repeats:
    of which all seconds are medians. interruptions: by how much the median of the whole exceeds the sum of the medians
    of its parts, because other processes hold up now this part, now that; left_out: repeats not used for that reason.
    recorded: whether the engine makes it again as a recording, in which no Python runs between ops.
    """

    name: str
    work: Work
    cost: Cost
    working_set: float
    place: str
    floor: float
    bound: float
    expected: float
    limit: str
    host: float
    score_matrix: ScoreMatrix | None = None
    overheads: tuple[Overhead, ...] = ()
    unhooked: float | None = None
    hooks: float = 0.0
    repeats: int = 0
    interruptions: float = 0.0
    left_out: int = 0
    recorded: bool = False

    @property
    def rows(self) -> int:
        """Of most of its ops: positions of sequences; of a model that has none as many as the widest have."""
        return self.work.tokens or max(self.work.rows.values())


@dataclass(frozen=True, slots=True)
class OpGroup:
    """The same op of several layers, or ops of one class: a label, the first of them, and a total for each step."""

    label: str
    first: OpRow
    totals: Mapping[str, LedgerTotal]


@dataclass(frozen=True, slots=True)
class StepLedger:
    """Steps of one model. rows: the ops in the order in which they ran.

    at_hand: whether `device` is the machine that measured; if not, no measurement is held against its floors.
    """

    model: str
    device: Device
    at_hand: bool
    threads: int
    steps: tuple[LedgerStep, ...]
    rows: tuple[OpRow, ...]

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return 1 + max((row.layer for row in self.rows if row.layer is not None), default=-1)

    def step(self, name: str) -> LedgerStep:
        """The step called `name`."""
        return next(step for step in self.steps if step.name == name)

    def entries(self, step: str) -> list[LedgerEntry]:
        """The entries of a step, in order."""
        return [row.entries[step] for row in self.rows]

    def ops(self, step: str) -> LedgerTotal:
        """All ops of a step."""
        return LedgerTotal.of(self.entries(step))

    def whole(self, step: str) -> float:
        """Measured seconds of a step: its ops and what lies between them."""
        return self.ops(step).measured + sum(overhead.seconds for overhead in self.step(step).overheads)

    def total(self, step: str) -> LedgerTotal:
        """A whole step as one total."""
        of, whole = self.step(step), self.whole(step)
        impossible = self.at_hand and under_floor(whole, of.floor)
        return LedgerTotal(1, of.cost, of.floor, of.bound, of.expected, whole, of.limit, int(impossible))

    def groups(self, rows: Iterable[OpRow] | None = None) -> list[OpGroup]:
        """Rows (all by default) by what they are in their layer, in the order of the first of each."""
        return self._grouped(self.rows if rows is None else rows, lambda row: row.group)

    def classes(self) -> list[OpGroup]:
        """Rows by kernel class."""
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
        """What was measured faster than physics allows, one line each: the physics guard. It knows the machine at hand
        alone: another card's floors are nothing that this one could beat.
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
    """One request, from text to text. steps: prefill and decode.

    prompt: its tokens; written: those that followed. choices: for each step, the candidates and the token taken.
    weights, kv: the formats that weights, and keys and values, are stored in. The last six are there if they were asked
    for.
    """

    text: str
    prompt: tuple[Token, ...]
    written: tuple[Token, ...]
    answer: str
    choices: Mapping[str, TokenChoice]
    timeline: TimelineSlice
    weights: str
    kv: str
    attention: AttentionWeights | None = None
    cross: CrossAttentionWeights | None = None
    lens: Lens | None = None
    memory: FeedForwardMemory | None = None
    experts: Routing | None = None
    sources: ExpertSources | None = None
