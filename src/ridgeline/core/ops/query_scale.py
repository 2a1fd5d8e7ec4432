"""Queries that are scaled by their position, so that attention over long contexts stays sharp (Nakanishi,
arXiv:2501.19399; Llama 4, Ministral 3).

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
    """1 + slope x ln(1 + floor((position + offset) / span)): 1 up to the first `span`, then growing with the logarithm.

    offset: 1 where positions are counted from 1 (Llama 4).
    """

    slope: float
    span: int
    offset: int = 0


class QueryScaleTable(Op):
    """The scale of each position of a step, once for all layers."""

    kind = "elementwise"
    FLOPS = 5  # of a position: a division, a sum, the logarithm, the slope, a sum

    def __init__(self, scale: QueryScale) -> None:
        super().__init__()
        self.scale = scale

    @override
    def forward(self, positions_T: Tensor) -> Tensor:
        """positions_T int64 [rows] -> fp32 [rows, 1, 1]."""
        if positions_T.is_meta:
            return positions_T.new_empty(len(positions_T), 1, 1, dtype=torch.float32)
        spans_T11 = (positions_T[:, None, None] + self.scale.offset) // self.scale.span
        return 1 + self.scale.slope * spans_T11.float().log1p()

    @override
    def cost_of(self, rows: int) -> Cost:
        """A number a row."""
        return Cost({"fp32": float(self.FLOPS * rows)}, activation_bytes=4 * rows)

    @override
    def signature(self) -> Hashable:
        return ()

    @override
    def extra_repr(self) -> str:
        return str(self.scale)


class ScaledQueries(Elementwise):
    """Queries times the scale of their position."""

    kernel_name = "elementwise.scale"
    FLOPS_PER_ELEMENT = 1

    @override
    def forward(self, q_THD: Tensor, scale_T11: Tensor) -> Tensor:
        """q_THD [rows, heads, D], scale_T11 fp32 [rows, 1, 1] -> as q."""
        return q_THD.new_empty(q_THD.shape) if q_THD.is_meta else (q_THD.float() * scale_T11).to(q_THD.dtype)

    @override
    def cost_of(self, rows: int) -> Cost:
        """A stream in, one out, and a scale a row."""
        moved = rows * (2 * self.width * self.dtype.itemsize + 4)
        return structs.replace(super().cost_of(rows), activation_bytes=moved)
