"""The residual addition alone: where a norm does not follow it, or what is added is a sum itself."""

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op


class Add(Op):
    """x + y, in the place of x."""

    kind = "elementwise"
    kernel_name: ClassVar[str] = "elementwise.add"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    def forward(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Two of [rows, width] -> their sum."""
        return x_TD if x_TD.is_meta else x_TD.add_(y_TD)

    def cost_of(self, rows: int) -> Cost:
        """Two streams in, one out."""
        elements = rows * self.width
        return Cost({"fp32": float(elements)}, activation_bytes=3 * elements * self.dtype.itemsize)

    def kernel(self, rows: int) -> str:
        """As Op.kernel."""
        return self.kernel_name

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return format_of(self.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.dtype

    def extra_repr(self) -> str:
        return str(self.width)
