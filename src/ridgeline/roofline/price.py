"""The price of a step: the costs of all ops of a model, each distinct one evaluated once."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from ridgeline.models.model import Model
from ridgeline.ops.cost import Cost
from ridgeline.ops.op import Op
from ridgeline.ops.work import Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.time import OpTime, floor_seconds, op_seconds


@dataclass(frozen=True, slots=True)
class PricedOp:
    """One of `count` ops with the same cost function; `path` is where the first of them is."""

    op: Op
    path: str
    count: int


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A distinct op in a step on a device: the cost and the seconds of one of its `count` instances."""

    priced: PricedOp
    cost: Cost
    time: OpTime


@dataclass(frozen=True, slots=True)
class StepPrice:
    """A step on a device: its cost and its seconds. working_set: bytes of weights and KV that it goes over."""

    cost: Cost
    floor: float
    bound: float
    expected: float
    working_set: float
    rows: tuple[PricedRow, ...]


class Price:
    """The priced ops of a model, filled or on meta."""

    def __init__(self, model: Model, devices: int = 1) -> None:
        """`devices`: over how many cards the model is divided; all figures are those of one card."""
        ops = model.ops()
        keys: list[Hashable] = [(type(op), op.signature()) for _, op in ops]
        counts = Counter(keys)
        first = {key: (path, op) for key, (path, op) in reversed(list(zip(keys, ops, strict=True)))}
        self.windows, self.devices = model.windows, devices
        self.ops = tuple(PricedOp(first[key][1], first[key][0], count) for key, count in counts.items())

    def step(self, work: Work) -> Cost:
        """What a step of `work` must cost."""
        total = Cost()
        for priced in self.ops:
            total += priced.op.cost(work) * priced.count
        return total

    def on(self, device: Device, work: Work) -> StepPrice:
        """A step's cost and seconds on a device."""
        costs = [(priced, priced.op.cost(work)) for priced in self.ops]
        total = Cost()
        for priced, cost in costs:
            total += cost * priced.count
        working_set = total.memory_bytes
        rows = tuple(
            PricedRow(priced, cost, op_seconds(priced.op.kind, cost, device, working_set, self.devices))
            for priced, cost in costs
        )
        return StepPrice(
            total,
            floor_seconds(total, device, working_set),
            sum(row.time.bound * row.priced.count for row in rows),
            sum(row.time.expected * row.priced.count for row in rows),
            working_set,
            rows,
        )
