"""The residual stream's additions."""

from collections.abc import Hashable

import torch
from torch import Tensor

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op
from ridgeline.ops.work import Work


class Add(Op):
    """x + y, row by row."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    def forward(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Two of [rows, width] -> [rows, width]."""
        return x_TD + y_TD

    def cost(self, work: Work) -> Cost:
        elements = work.tokens * self.width
        return Cost(flops={"fp32": float(elements)}, activation_bytes=3 * elements * format_of(self.dtype).bytes)

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return "elementwise.add"

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.dtype

    def extra_repr(self) -> str:
        return f"{self.width}"
