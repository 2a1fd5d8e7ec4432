"""The price of a step: the costs of all ops of a model, each distinct one evaluated once."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from ridgeline.models.model import Model
from ridgeline.ops.cost import Cost
from ridgeline.ops.op import Op
from ridgeline.ops.work import Work


@dataclass(frozen=True, slots=True)
class PricedOp:
    """One of `count` ops with the same cost function; `path` is where the first of them is."""

    op: Op
    path: str
    count: int


class Price:
    """The priced ops of a model, filled or on meta."""

    def __init__(self, model: Model) -> None:
        ops = model.ops()
        keys: list[Hashable] = [(type(op), op.signature()) for _, op in ops]
        counts = Counter(keys)
        first = {key: (path, op) for key, (path, op) in reversed(list(zip(keys, ops, strict=True)))}
        self.windows = model.windows
        self.ops = tuple(PricedOp(first[key][1], first[key][0], count) for key, count in counts.items())

    def step(self, work: Work) -> Cost:
        """What a step of `work` must cost."""
        total = Cost()
        for priced in self.ops:
            total += priced.op.cost(work) * priced.count
        return total
