"""Gates on the output of attention or of a recurrent layer.

Shapes: T rows of a step, H heads, W width.
"""

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
    """A sigmoid gate on a layer's output, x * sigmoid(gate) (Qiu et al., arXiv:2505.06708)."""

    kernel_name = "elementwise.gate"
    FLOPS_PER_ELEMENT = 4  # negation, exp, sum with division, product

    @override
    def forward(self, x_TW: Tensor, gate_TX: Tensor) -> Tensor:
        """Return x_TW [rows, W] times the sigmoid of an equally wide gate [rows, ...]."""
        if x_TW.is_meta:
            return x_TW.new_empty(x_TW.shape)
        return x_TW * gate_TX.flatten(1).sigmoid()


class GatedRMSNorm(RMSNorm):
    """An RMS norm of each head with a SiLU gate, norm(x) * silu(gate); all heads share one weight."""

    plain = False
    FLOPS_PER_ELEMENT = 9
    """FLOPs of a gated RMS norm per number: 4 of the norm, and 5 of SiLU and the product with it."""

    @override
    def forward(self, x_TX: Tensor, gate_TX: Tensor) -> Tensor:  # type: ignore[override]
        """Return norm(x) * silu(gate) for two tensors [rows, ...] of H x W numbers: [rows, H x W]."""
        if x_TX.is_meta:
            return x_TX.new_empty(len(x_TX), self.per_token * self.width)
        x_THW, gate_THW = (x.reshape(len(x), self.per_token, self.width) for x in (x_TX, gate_TX))
        gated_THW = self.normalise(x_THW) * functional.silu(gate_THW.float())
        return gated_THW.to(x_TX.dtype).flatten(1)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a gated RMS norm: two tensors are read and one written."""
        moved = 3 * rows * self.per_token * self.width * self.weight.element_size()
        return structs.replace(super().cost_of(rows), activation_bytes=moved)


class GroupedRMSNorm(GatedRMSNorm):
    """An RMS norm of each group of numbers after a SiLU gate, norm(x * silu(gate)), as in Mamba-2.

    Each number has its own weight.
    """

    def __init__(self, width: int, eps: float, dtype: torch.dtype, groups: int, shard: Shard = WHOLE) -> None:
        """Create the gated RMS norm of groups of numbers, for this rank's groups.

        Args:
            width: The numbers of a group.
            eps: The constant added to the mean square.
            dtype: The model's dtype.
            groups: The number of groups of this rank.
            shard: This rank's share of the weights.
        """
        super().__init__(width, eps, dtype, groups)
        self.shard, self.weight = shard, weight(groups * width, dtype=dtype)

    @override
    def forward(self, x_TX: Tensor, gate_TX: Tensor) -> Tensor:  # type: ignore[override]
        """Return norm(x * silu(gate)) for two tensors [rows, G x W]."""
        if x_TX.is_meta:
            return x_TX.new_empty(x_TX.shape)
        gated_TGW = (x_TX.float() * functional.silu(gate_TX.float())).view(len(x_TX), self.per_token, self.width)
        normed_TX = functional.rms_norm(gated_TGW, (self.width,), eps=self.eps).flatten(1)
        return self.weight * normed_TX.to(x_TX.dtype)
