"""The price of a step: the costs of all ops of a model, each distinct one evaluated once.

Most ops cost the same however long the sequences are. Their sum is kept for each shape of step, so that pricing the
next decode step evaluates attention alone: one formula, tens of thousands of steps a second.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ridgeline.models.model import Model
from ridgeline.ops.cost import Cost
from ridgeline.ops.linear import Linear
from ridgeline.ops.op import Op
from ridgeline.ops.work import Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.time import OpTime, floor_seconds, host_seconds, kernel_seconds

# Shapes of steps whose standing costs are kept; a simulation of mixed chunks must not grow without end.
_MOST_KEPT = 4096

Shape = tuple[int, int, int]  # tokens, logit rows, sequences
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PricedOp:
    """One of `count` ops with the same cost function; `path` is where the first of them is. share: of a launch, where
    projections of one input are one kernel."""

    op: Op
    path: str
    count: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A distinct op in a step on a device: the cost and the seconds of one of its `count` instances."""

    priced: PricedOp
    cost: Cost
    time: OpTime


@dataclass(frozen=True, slots=True)
class StepPrice:
    """A step on a device: its cost and its seconds. working_set: bytes of weights and KV that it goes over.

    host: the part of `expected` that no op has.
    """

    cost: Cost
    floor: float
    bound: float
    expected: float
    working_set: float
    rows: tuple[PricedRow, ...]
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the ops that do not read the context cost together, and each."""

    total: Cost
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class _StandingTime:
    """The same in seconds on a device. The device is held so that no other one can come by its id."""

    device: Device
    bound: float
    expected: float
    rows: tuple[PricedRow, ...]


class Price:
    """The priced ops of a model, filled or on meta."""

    def __init__(self, model: Model, devices: int = 1) -> None:
        """`devices`: over how many cards the model is divided; all figures are those of one card. `index`: for every
        path in the model its place in `ops`."""
        ops = model.ops()
        shares = _launch_shares(ops)
        keys: list[Hashable] = [(type(op), op.signature(), shares[path]) for path, op in ops]
        counts = Counter(keys)
        first = {key: (path, op) for key, (path, op) in reversed(list(zip(keys, ops, strict=True)))}
        self.windows, self.devices, self.count = model.windows, devices, len(ops)
        self.ops = tuple(
            PricedOp(first[key][1], first[key][0], count, shares[first[key][0]]) for key, count in counts.items()
        )
        order = {key: index for index, key in enumerate(counts)}
        self.index = {path: order[key] for key, (path, _) in zip(keys, ops, strict=True)}
        self._standing_ops = tuple(priced for priced in self.ops if not priced.op.reads_context)
        self._context_ops = tuple((i, priced) for i, priced in enumerate(self.ops) if priced.op.reads_context)
        self._standing: dict[Shape, _Standing] = {}
        self._times: dict[tuple[int, float, Shape], _StandingTime] = {}

    def step(self, work: Work) -> Cost:
        """What a step of `work` must cost."""
        total = self._standing_of(work).total
        for _, priced in self._context_ops:
            total += priced.op.cost(work) * priced.count
        return total

    def on(self, device: Device, work: Work) -> StepPrice:
        """A step's cost and seconds on a device; rows in the order of `ops`."""
        total = self._standing_of(work).total
        reading = []
        for index, priced in self._context_ops:
            kernels = priced.op.kernels(work)
            cost = kernels[0].cost if len(kernels) == 1 else priced.op.cost(work)
            total += cost * priced.count
            reading.append((index, priced, kernels, cost))
        working_set = total.memory_bytes
        standing = self._times_of(device, work, working_set)
        bound, expected, rows = standing.bound, standing.expected, list(standing.rows)
        for index, priced, kernels, cost in reading:
            time = kernel_seconds(kernels, device, working_set, self.devices, priced.share)
            bound += time.bound * priced.count
            expected += time.expected * priced.count
            rows.insert(index, PricedRow(priced, cost, time))
        floor, host = floor_seconds(total, device, working_set), host_seconds(work, total, self.count, device)
        return StepPrice(total, floor, bound, expected + host, working_set, tuple(rows), host)

    def _standing_of(self, work: Work) -> _Standing:
        shape = (work.tokens, work.logit_rows, work.sequences)
        found = self._standing.get(shape)
        if found is None:
            # Without attention in it, an op that reads the context and does not say so fails here.
            blind = Work(*shape)
            costs = tuple(priced.op.cost(blind) for priced in self._standing_ops)
            total = Cost()
            for priced, cost in zip(self._standing_ops, costs, strict=True):
                total += cost * priced.count
            found = _keep(self._standing, shape, _Standing(total, costs))
        return found

    def _times_of(self, device: Device, work: Work, working_set: float) -> _StandingTime:
        shape = (work.tokens, work.logit_rows, work.sequences)
        key = (id(device), device.bandwidth_of(working_set), shape)
        found = self._times.get(key)
        if found is None:
            blind = Work(*shape)
            rows = tuple(
                PricedRow(
                    priced,
                    cost,
                    kernel_seconds(priced.op.kernels(blind), device, working_set, self.devices, priced.share),
                )
                for priced, cost in zip(self._standing_ops, self._standing_of(work).costs, strict=True)
            )
            bound = sum(row.time.bound * row.priced.count for row in rows)
            expected = sum(row.time.expected * row.priced.count for row in rows)
            found = _keep(self._times, key, _StandingTime(device, bound, expected, rows))
        return found


def _launch_shares(ops: Sequence[tuple[str, Op]]) -> dict[str, float]:
    """By path: one over the column-split projections of an op's module, itself included; they have their input in
    common, and engines that fuse run them as one."""

    def group(path: str, op: Op) -> Hashable:
        return (path.rpartition(".")[0], op.inputs) if isinstance(op, Linear) and op.split == "column" else path

    sizes = Counter(group(path, op) for path, op in ops)
    return {path: 1 / sizes[group(path, op)] for path, op in ops}


def _keep(kept: dict[K, V], key: K, value: V) -> V:
    """Keep a value under its key; a full store starts again."""
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value
