"""Ops over whole rows: a learned row in the place of some, rows of two sources in one order, rows of several side by
side; and the choice of the rows that are wanted.

Shapes: T rows of a step, R of them, D numbers of a row.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.stored_module import weight


class PaddingRow(Op):
    """A learned row in the place of rows that are padding."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight(1, width, dtype=dtype)

    @override
    def forward(self, x_NW: Tensor, padding_R: Tensor) -> Tensor:
        """x_NW [rows, width], padding_R int64: which rows are padding -> x, in its place."""
        if len(padding_R) and not x_NW.is_meta:
            x_NW[padding_R] = self.weight
        return x_NW

    @override
    def cost_of(self, rows: int) -> Cost:
        """The learned row; those that it is written to are few."""
        return Cost(weight_bytes=self.stored_bytes())

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.plain"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.weight.dtype).name

    @override
    def signature(self) -> Hashable:
        return tuple(self.weight.shape), self.weight.dtype


class Join(Op):
    """Sources as one, of rows of `width` numbers: read and written once."""

    kind = "elementwise"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    @override
    def cost_of(self, rows: int) -> Cost:
        return Cost(activation_bytes=2 * rows * self.width * self.dtype.itemsize)

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.plain"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.width, self.dtype


class JoinRows(Join):
    """Rows of two sources in one order."""

    @override
    def forward(self, order_J: Tensor, x_NW: Tensor, y_MW: Tensor) -> Tensor:
        """order_J int64 [rows]: of each, which one of x_NW [N, ...] it is, or which of y_MW [M, ...], counted on from
        N -> [rows, ...]; a row is `width` numbers in whatever shape.
        """
        if x_NW.is_meta:
            return x_NW.new_empty(len(order_J), *x_NW.shape[1:])
        return torch.cat([x_NW, y_MW]).index_select(0, order_J)


class JoinColumns(Join):
    """The numbers of several sources side by side in a row."""

    @override
    def forward(self, x_NV: Tensor, *others_NW: Tensor) -> Tensor:
        """x_NV [rows, V], others_NW [rows, W] each -> [rows, V + all W], which is the width."""
        if x_NV.is_meta:
            return x_NV.new_empty(len(x_NV), self.width)
        return torch.cat([x_NV, *others_NW], dim=-1)


class RowPickerBackend:
    """The part of a backend that row pickers call, in PyTorch."""

    def pick(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return some rows of a step's, int64 [R]: [R, D]."""
        return x_TD[rows_R]


class RowPicker(BackendModule):
    """The choice of the rows of a step that are wanted. It has no price: whatever reads the rows counts them."""

    backend: RowPickerBackend = RowPickerBackend()

    @override
    def forward(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """x_TD [T, D], int64 [R] -> [R, D]."""
        # On meta any so many do, because an index there has torch import half a second of symbolic algebra.
        return x_TD[: len(rows_R)] if x_TD.is_meta else self.backend.pick(x_TD, rows_R)
