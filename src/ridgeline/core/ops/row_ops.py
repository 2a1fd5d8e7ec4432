"""Ops on whole rows: padding with a learned row, joining rows or columns of several tensors, and selecting rows.

Shapes: T rows of a step, R of them, D numbers of a row.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import RowOp
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.stored_module import weight


class PaddingRow(TypedOp):
    """A learned row that is written over the rows of padding tokens."""

    kind = "elementwise"
    kernel_name = "elementwise.plain"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.dtype = weight(1, width, dtype=dtype), dtype

    @override
    def forward(self, x_NW: Tensor, padding_R: Tensor) -> Tensor:
        """Write the learned padding row over rows of x_NW [rows, width], in place, and return x_NW.

        Args:
            x_NW: The rows.
            padding_R: The indices of the rows that are padding, int64.
        """
        if len(padding_R) and not x_NW.is_meta:
            x_NW[padding_R] = self.weight
        return x_NW

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of reading the learned padding row; the few rows that it overwrites are ignored."""
        return Cost(weight_bytes=self.stored_bytes())

    @override
    def signature(self) -> Hashable:
        return tuple(self.weight.shape), self.dtype


class Join(RowOp):
    """The base class of ops that join tensors into rows of `width` numbers, each read and written once."""

    kernel_name = "elementwise.plain"

    @override
    def cost_of(self, rows: int) -> Cost:
        return Cost(activation_bytes=2 * rows * self.width * self.dtype.itemsize)


class JoinRows(Join):
    """The op that merges the rows of two tensors in a given order."""

    @override
    def forward(self, order_J: Tensor, x_NW: Tensor, y_MW: Tensor) -> Tensor:
        """Return the rows of two tensors in a given order: [rows, ...].

        Args:
            order_J: The index of each result row, int64 [rows]: below N a row of `x_NW`, from N on a row of `y_MW`.
            x_NW: The first tensor [N, ...], with rows of `width` numbers in any shape.
            y_MW: The second tensor [M, ...].
        """
        if x_NW.is_meta:
            return x_NW.new_empty(len(order_J), *x_NW.shape[1:])
        return torch.cat([x_NW, y_MW]).index_select(0, order_J)


class JoinColumns(Join):
    """The op that concatenates the columns of several tensors."""

    @override
    def forward(self, x_NV: Tensor, *others_NW: Tensor) -> Tensor:
        """Concatenate x_NV [rows, V] and others [rows, W] along the columns: [rows, width]."""
        if x_NV.is_meta:
            return x_NV.new_empty(len(x_NV), self.width)
        return torch.cat([x_NV, *others_NW], dim=-1)


class RowPickerBackend:
    """The methods of a backend that row pickers call, implemented in PyTorch."""

    def pick(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return the rows of a step with these indices, int64 [R]: [R, D]."""
        return x_TD[rows_R]


class RowPicker(BackendModule):
    """The selection of the rows of a step whose results are needed.

    It has no cost of its own: the op that reads the rows counts them.
    """

    backend: RowPickerBackend = RowPickerBackend()

    @override
    def forward(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return the rows of x_TD [T, D] with the indices rows_R, int64 [R]: [R, D]."""
        # On meta any R rows do. Indexing there makes torch import symbolic algebra, which takes half a second.
        return x_TD[: len(rows_R)] if x_TD.is_meta else self.backend.pick(x_TD, rows_R)
