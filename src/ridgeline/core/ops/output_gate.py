"""Gates of what a layer's mixing of positions gave: how much of each number passes on.

Shapes: T rows of a step, H heads, W width.
"""

from collections.abc import Mapping

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight


class SigmoidGate(Elementwise):
    """x * sigmoid(gate) (Qiu et al., arXiv:2505.06708)."""

    kernel_name = "elementwise.gate"
    FLOPS_PER_ELEMENT = 4  # a negation, exp, a sum with the division, and the product

    @override
    def forward(self, x_TW: Tensor, gate_TX: Tensor) -> Tensor:
        """x_TW [rows, W], gate_TX [rows, ...] of W numbers -> [rows, W]."""
        if x_TW.is_meta:
            return x_TW.new_empty(x_TW.shape)
        return x_TW * gate_TX.flatten(1).sigmoid()


class GatedRMSNorm(RMSNorm):
    """norm(x) * silu(gate), each head for itself, with a weight that all have."""

    plain = False
    FLOPS_PER_ELEMENT = 9  # of the norm 4, and 5 of silu and the product with it

    @override
    def forward(self, x_TX: Tensor, gate_TX: Tensor) -> Tensor:  # type: ignore[override]
        """x, gate [rows, ...] of H x W numbers -> [rows, H x W]."""
        if x_TX.is_meta:
            return x_TX.new_empty(len(x_TX), self.per_token * self.width)
        x_THW, gate_THW = (x.reshape(len(x), self.per_token, self.width) for x in (x_TX, gate_TX))
        gated_THW = self.normalise(x_THW) * functional.silu(gate_THW.float())
        return gated_THW.to(x_TX.dtype).flatten(1)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Two in, one out."""
        moved = 3 * rows * self.per_token * self.width * self.weight.element_size()
        return structs.replace(super().cost_of(rows), activation_bytes=moved)


class GroupedRMSNorm(GatedRMSNorm):
    """norm(x * silu(gate)), each group of numbers for itself, with a weight of each number's own (Mamba-2)."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype, groups: int, shard: Shard = WHOLE) -> None:
        """width: of a group. groups: of this rank."""
        super().__init__(width, eps, dtype, groups)
        self.shard, self.weight = shard, weight(groups * width, dtype=dtype)

    @override
    def forward(self, x_TX: Tensor, gate_TX: Tensor) -> Tensor:  # type: ignore[override]
        """x, gate [rows, G x W] -> [rows, G x W]."""
        if x_TX.is_meta:
            return x_TX.new_empty(x_TX.shape)
        gated_TGW = (x_TX.float() * functional.silu(gate_TX.float())).view(len(x_TX), self.per_token, self.width)
        normed_TX = functional.rms_norm(gated_TGW, (self.width,), eps=self.eps).flatten(1)
        return self.weight * normed_TX.to(x_TX.dtype)

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        return {name: self.shard.slice(full, 0)}
