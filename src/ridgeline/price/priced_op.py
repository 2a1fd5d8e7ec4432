"""The ops of a model as the cost model counts them: with the number of calls and the kind of rows."""

from dataclasses import dataclass

import msgspec

from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.work import RowAxis, Work
from ridgeline.price.op_time import OpTime


@dataclass(frozen=True, slots=True)
class PricedOp:
    """A group of op calls with the same cost function over the same kind of rows, such as tokens."""

    op: Op
    """The op object of the group's first call."""
    path: str
    """The module path of the group's first call."""
    space: RowAxis
    """The kind of rows that the calls run over, such as tokens, logit rows or encoder positions."""
    count: int
    """The number of op calls in the group."""

    def cost(self, work: Work) -> Cost:
        """Return the cost of one call of the op in a step."""
        return self.op.cost(work, self.space)

    def launches(self, work: Work, backend: Backend = REFERENCE) -> tuple[Launch, ...]:
        """Return the kernel launches of one call of the op in a step, as a backend makes them."""
        return backend.launches(self.op, work, self.space)


class PricedRow(msgspec.Struct, frozen=True, gc=False):
    """The cost and the seconds of one call of a distinct op, in a step on a device."""

    priced: PricedOp
    cost: Cost
    time: OpTime
