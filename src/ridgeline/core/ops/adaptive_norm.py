"""Norms between additions of which one is gated and the other is not, and what each block adds to a condition of all
(adaLN-single: Chen et al., PixArt, arXiv:2310.00426).

Shapes: N rows, R runs of rows that share a condition, C condition, W width.
"""

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.modulation import AddModulatedLayerNorm, Factor, GatedAddNorm, ModulatedLayerNorm
from ridgeline.core.ops.norm import AddLayerNorm
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.stored_module import weight


class ConditionTable(Op):
    """The factors of a block: what a condition says to all blocks, plus what this one has learned.

    spread: whether the condition is as wide as one factor, and each has all of it.
    """

    kind = "elementwise"
    unnamed = True

    def __init__(self, factors: Sequence[Factor], width: int, dtype: torch.dtype, *, spread: bool = False) -> None:
        super().__init__()
        self.factors, self.width, self.spread = tuple(factors), width, spread
        self.scale_shift_table = weight(len(factors), width, dtype=dtype)

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take; some checkpoints have it as that of a batch of one."""
        return {name: full[0] if full.dim() == 3 and len(full) == 1 else full}

    @override
    def forward(self, condition_RC: Tensor) -> tuple[Tensor, ...]:
        """condition_RC [runs, factors x width], or [runs, width] where it is `spread` -> [runs, width] of each."""
        if condition_RC.is_meta:
            return tuple(condition_RC.new_empty(len(condition_RC), self.width) for _ in self.factors)
        own = 1 if self.spread else len(self.factors)
        sums_RKW = self.scale_shift_table.float() + condition_RC.float().view(-1, own, self.width)
        each = zip(self.factors, sums_RKW.unbind(1), strict=True)
        return tuple((1 + sum_RW if factor == "scale" else sum_RW).to(condition_RC.dtype) for factor, sum_RW in each)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Its numbers once, the condition in, the factors out."""
        elements, scales = rows * len(self.factors) * self.width, rows * self.factors.count("scale") * self.width
        moved = elements + (rows * self.width if self.spread else elements)
        return Cost(
            {"fp32": float(elements + scales)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=moved * self.scale_shift_table.element_size(),
        )

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.add"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.scale_shift_table.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.factors, self.width, self.spread, self.scale_shift_table.dtype

    @override
    def extra_repr(self) -> str:
        return f"{', '.join(self.factors)} x {self.width}"


class AddShiftedLayerNorm(AddModulatedLayerNorm):
    """norm(x + y) * scale + shift, of each run's own."""

    FLOPS_PER_ELEMENT = ModulatedLayerNorm.FLOPS_PER_ELEMENT

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, scale_RW: Tensor, shift_RW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Two of [rows, width]; scale and shift [runs, width], whose rows are so many each -> their sum, in the place
        of x, and what becomes of it.
        """
        sum_NW = self.add(x_NW, y_NW)
        return sum_NW, self.modulate(sum_NW, scale_RW, lengths, shift_RW)


class GatedAddLayerNorm(GatedAddNorm, AddLayerNorm):
    """norm(x + gate * y), the gate of each run's own and the norm's weights learned."""

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, gate_RW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Two of [rows, width]; gate [runs, width], whose rows are so many each -> the sum, in the place of x, and its
        norm.
        """
        sum_NW = self.add(x_NW, y_NW, gate_RW, lengths)
        return sum_NW, self.normalise(sum_NW)
