"""Adaptive norms whose factors are a condition for all blocks plus a learned table of each block.

This is adaLN-single (Chen et al., PixArt, arXiv:2310.00426). Of the residual additions in a block, one is gated and the
other is not.

Shapes: N rows, R runs of rows that share a condition, C condition, W width.
"""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.modulation import AddModulatedLayerNorm, Factor, GatedAddNorm, ModulatedLayerNorm
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.stored_module import weight


class ConditionTable(TypedOp):
    """The modulation factors of a block: a condition that all blocks share plus a learned table of this block.

    Attributes:
        spread: Whether the condition is as wide as one factor, so that each factor uses the whole condition.
    """

    kind = "elementwise"
    kernel_name = "elementwise.add"
    unnamed = True

    def __init__(self, factors: Sequence[Factor], width: int, dtype: torch.dtype, *, spread: bool = False) -> None:
        super().__init__()
        self.factors, self.width, self.spread, self.dtype = tuple(factors), width, spread, dtype
        self.scale_shift_table = weight(len(factors), width, dtype=dtype)

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return a block's learned table of factors from its checkpoint tensor, with or without a leading 1."""
        return {name: full[0] if full.dim() == 3 and len(full) == 1 else full}

    @override
    def forward(self, condition_RC: Tensor) -> tuple[Tensor, ...]:
        """Return a block's modulation factors, [runs, width] each, from a condition for each run of rows.

        Args:
            condition_RC: The conditions [runs, factors x width], or [runs, width] if `spread` is set.
        """
        if condition_RC.is_meta:
            return tuple(condition_RC.new_empty(len(condition_RC), self.width) for _ in self.factors)
        own = 1 if self.spread else len(self.factors)
        sums_RKW = self.scale_shift_table.float() + condition_RC.float().view(-1, own, self.width)
        each = zip(self.factors, sums_RKW.unbind(1), strict=True)
        return tuple((1 + sum_RW if factor == "scale" else sum_RW).to(condition_RC.dtype) for factor, sum_RW in each)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of adding a block's learned table to conditions: both are read, and factors written."""
        elements, scales = rows * len(self.factors) * self.width, rows * self.factors.count("scale") * self.width
        moved = elements + (rows * self.width if self.spread else elements)
        return Cost(
            {"fp32": float(elements + scales)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=moved * self.scale_shift_table.element_size(),
        )

    @override
    def signature(self) -> Hashable:
        return self.factors, self.width, self.spread, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{', '.join(self.factors)} x {self.width}"


class AddShiftedLayerNorm(AddModulatedLayerNorm):
    """A residual addition, then norm(x + y) * scale + shift with the scale and shift of each run of rows."""

    FLOPS_PER_ELEMENT = ModulatedLayerNorm.FLOPS_PER_ELEMENT

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, scale_RW: Tensor, shift_RW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Add y to x in place, and return the sum and its modulated norm.

        Args:
            x_NW: The residual stream [rows, width].
            y_NW: The rows to add.
            scale_RW: The scale of each run [runs, width].
            shift_RW: The shift of each run [runs, width].
            lengths: The number of rows of each run.
        """
        sum_NW = self.add(x_NW, y_NW)
        return sum_NW, self.modulate(sum_NW, scale_RW, lengths, shift_RW)


class GatedAddLayerNorm(GatedAddNorm, AddLayerNorm):
    """A gated residual addition, then norm(x + gate * y) with learned weights; each run of rows has its own gate."""

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, gate_RW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Add gate * y to x in place, and return the sum and its norm.

        Args:
            x_NW: The residual stream [rows, width].
            y_NW: The rows to add.
            gate_RW: The gate of each run [runs, width].
            lengths: The number of rows of each run.
        """
        sum_NW = self.add(x_NW, y_NW, gate_RW, lengths)
        return sum_NW, self.normalise(sum_NW)
