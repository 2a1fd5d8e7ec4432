"""The scaling of queries by their position, which keeps attention sharp over long contexts (arXiv:2501.19399).

The paper is Nakanishi's; Llama 4 and Ministral 3 use the method.

Shapes: T rows of a step, H heads, D head dim.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from msgspec import structs
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.op import Op


@dataclass(frozen=True, slots=True)
class QueryScale:
    """The formula of a query's scale, 1 + slope x ln(1 + floor((position + offset) / span)).

    It is 1 within the first `span` positions, then grows with the logarithm of the position.
    """

    slope: float
    span: int
    offset: int = 0
    """The offset of the position: 1 if positions count from 1 (Llama 4)."""


class QueryScaleTable(Op):
    """The op that computes the query scale of each position of a step, once for all layers."""

    kind = "elementwise"
    FLOPS = 5
    """FLOPs of the query scale per position: a division, a sum, the logarithm, the slope, a sum."""

    def __init__(self, scale: QueryScale) -> None:
        super().__init__()
        self.scale = scale

    @override
    def forward(self, positions_T: Tensor) -> Tensor:
        """Return the query scales for int64 positions [rows]: fp32 [rows, 1, 1]."""
        if positions_T.is_meta:
            return positions_T.new_empty(len(positions_T), 1, 1, dtype=torch.float32)
        spans_T11 = (positions_T[:, None, None] + self.scale.offset) // self.scale.span
        return 1 + self.scale.slope * spans_T11.float().log1p()

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of computing and writing one query scale per row."""
        return Cost({"fp32": float(self.FLOPS * rows)}, activation_bytes=4 * rows)

    @override
    def signature(self) -> Hashable:
        return ()

    @override
    def extra_repr(self) -> str:
        return str(self.scale)


class ScaledQueries(Elementwise):
    """The op that multiplies queries by the scale of their position."""

    kernel_name = "elementwise.scale"
    FLOPS_PER_ELEMENT = 1

    @override
    def forward(self, q_THD: Tensor, scale_T11: Tensor) -> Tensor:
        """Return q_THD [rows, heads, D] times the scale of each row, fp32 [rows, 1, 1], in the dtype of q."""
        return q_THD.new_empty(q_THD.shape) if q_THD.is_meta else (q_THD.float() * scale_T11).to(q_THD.dtype)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of reading queries and one scale per row, and of writing the scaled queries."""
        moved = rows * (2 * self.width * self.dtype.itemsize + 4)
        return structs.replace(super().cost_of(rows), activation_bytes=moved)
