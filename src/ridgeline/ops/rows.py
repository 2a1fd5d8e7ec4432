"""What is done with whole rows: some are replaced by a learned one, those of two sources put into one order, those of
several side by side."""

from collections.abc import Hashable

import torch
from torch import Tensor

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op
from ridgeline.ops.stored import weight


class PaddingRow(Op):
    """A learned row in the place of rows that are padding."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight(1, width, dtype=dtype)

    def forward(self, x_NW: Tensor, padding_R: Tensor) -> Tensor:
        """x_NW [rows, width], padding_R int64: which rows are padding -> x, in its place."""
        if len(padding_R) and not x_NW.is_meta:
            x_NW[padding_R] = self.weight
        return x_NW

    def cost_of(self, rows: int) -> Cost:
        """The learned row; those that it is written to are few."""
        return Cost(weight_bytes=self.stored_bytes())

    def kernel(self, rows: int) -> str:
        """As Op.kernel."""
        return "elementwise.plain"

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return format_of(self.weight.dtype).name

    def signature(self) -> Hashable:
        return tuple(self.weight.shape), self.weight.dtype


class Join(Op):
    """Sources as one, of rows of `width` numbers: read and written once."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    def cost_of(self, rows: int) -> Cost:
        """As Op.cost_of."""
        return Cost(activation_bytes=2 * rows * self.width * self.dtype.itemsize)

    def kernel(self, rows: int) -> str:
        """As Op.kernel."""
        return "elementwise.plain"

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return format_of(self.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.dtype


class JoinRows(Join):
    """Rows of two sources in one order."""

    def forward(self, order_J: Tensor, x_NW: Tensor, y_MW: Tensor) -> Tensor:
        """order_J int64 [rows]: of each, which one of x_NW [N, ...] it is, or which of y_MW [M, ...], counted on from
        N -> [rows, ...]; a row is `width` numbers in whatever shape."""
        if x_NW.is_meta:
            return x_NW.new_empty(len(order_J), *x_NW.shape[1:])
        return torch.cat([x_NW, y_MW]).index_select(0, order_J)


class JoinColumns(Join):
    """The numbers of several sources side by side in a row."""

    def forward(self, x_NV: Tensor, *others_NW: Tensor) -> Tensor:
        """x_NV [rows, V], others_NW [rows, W] each -> [rows, V + all W], which is the width."""
        if x_NV.is_meta:
            return x_NV.new_empty(len(x_NV), self.width)
        return torch.cat([x_NV, *others_NW], dim=-1)
