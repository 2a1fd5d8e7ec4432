"""The base classes of ops on rows of one width, among them those that combine two tensors number by number."""

from collections.abc import Hashable
from typing import ClassVar

import torch
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import TypedOp


class RowOp(TypedOp):
    """An op on rows of `width` numbers, whose cost depends on nothing else but the dtype."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    @override
    def signature(self) -> Hashable:
        return self.width, self.dtype


class Elementwise(RowOp):
    """An op that combines two tensors [rows, width] into one, number by number."""

    FLOPS_PER_ELEMENT: ClassVar[int]

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of combining two tensors number by number: the FLOPs, two tensors read and one written."""
        elements = rows * self.width
        return Cost(
            {"fp32": float(self.FLOPS_PER_ELEMENT * elements)}, activation_bytes=3 * elements * self.dtype.itemsize
        )

    @override
    def extra_repr(self) -> str:
        return str(self.width)
