"""A priced op: one of a model's, how often it is called, and over the rows of which space."""

from dataclasses import dataclass

from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.work import RowAxis, Work
from ridgeline.price.op_time import OpTime


@dataclass(frozen=True, slots=True)
class PricedOp:
    """One of `count` calls of ops with the same cost function over rows of one space; `path` is where the first is."""

    op: Op
    path: str
    space: RowAxis
    count: int

    def cost(self, work: Work) -> Cost:
        """Of one call."""
        return self.op.cost(work, self.space)

    def launches(self, work: Work, backend: Backend = REFERENCE) -> tuple[Launch, ...]:
        """Return the kernel calls of one call, as a backend makes them."""
        return backend.launches(self.op, work, self.space)


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A distinct op in a step on a device: the cost and the seconds of one of its `count` instances."""

    priced: PricedOp
    cost: Cost
    time: OpTime
