"""Pooling of a text's hidden states into one embedding vector, and its L2 normalisation.

Shapes: T rows of a step, R sequences, D hidden.
"""

from collections.abc import Hashable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import RowOp

PoolingMode = Literal["cls", "mean", "max", "last"]
"""The way to represent a text by one vector: its first state (cls), its last, or the mean or maximum of all."""
MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
"""The names of all pooling modes."""


class Pooling(RowOp):
    """The pooling of whole sequences into one vector each.

    It is the state of the first position (cls) or of the last, the mean of all in fp32, or the maximum of each entry.
    """

    kind = "pool"
    kernel_name = "elementwise.pool"

    def __init__(self, mode: PoolingMode, width: int, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self.mode = mode

    @override
    def forward(self, x_TD: Tensor, ends_R: Tensor) -> Tensor:
        """Return one vector per sequence: [R, hidden].

        Args:
            x_TD: The hidden states of all sequences, one after the other [rows, hidden].
            ends_R: The last row of each sequence, int64.
        """
        if x_TD.is_meta:
            return x_TD.new_empty(len(ends_R), self.width)
        if self.mode == "last":
            return x_TD[ends_R]
        starts_R = torch.cat([ends_R.new_zeros(1), ends_R[:-1] + 1])
        if self.mode == "cls":
            return x_TD[starts_R]
        of_T = torch.repeat_interleave(torch.arange(len(ends_R), device=x_TD.device), ends_R - starts_R + 1)
        sums_RD = torch.zeros(len(ends_R), self.width, device=x_TD.device)
        if self.mode == "max":
            of_TD = of_T[:, None].expand_as(x_TD)
            return sums_RD.scatter_reduce_(0, of_TD, x_TD.float(), "amax", include_self=False).to(x_TD.dtype)
        sums_RD.index_add_(0, of_T, x_TD.float())
        return (sums_RD / (ends_R - starts_R + 1)[:, None]).to(x_TD.dtype)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of pooling: all rows are read; mean and maximum also need one operation per entry."""
        elements = rows * self.width
        looked_at = elements if self.mode in ("mean", "max") else 0
        return Cost({"fp32": float(looked_at)}, activation_bytes=elements * self.dtype.itemsize)

    @override
    def signature(self) -> Hashable:
        return self.mode, super().signature()

    @override
    def extra_repr(self) -> str:
        return f"{self.mode} of {self.width}"


class Normalise(RowOp):
    """L2 normalisation in fp32, x / |x|; the dot product of two such vectors is their cosine similarity."""

    kernel_name = "elementwise.normalise"
    number_format = "fp32"

    @override
    def forward(self, x_RD: Tensor) -> Tensor:
        """Return x_RD [R, width] with each row at length 1, in fp32."""
        return x_RD.float() if x_RD.is_meta else functional.normalize(x_RD.float(), dim=-1)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of L2 normalisation: a square, a sum and a division per entry.

        Entries are read in the model's dtype and written in fp32.
        """
        elements = rows * self.width
        return Cost({"fp32": float(3 * elements)}, activation_bytes=elements * (self.dtype.itemsize + 4))
