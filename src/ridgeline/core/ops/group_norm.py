"""Group normalisation, optionally followed by SiLU (Wu and He, arXiv:1803.08494).

Shapes: P pixels of all images, C channels.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch, TypedOp
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.stored_module import weight


class GroupNorm(TypedOp):
    """Group normalisation of images, (x - mean) / sqrt(variance + eps) * weight + bias, with an optional SiLU.

    Mean and variance are those of a group of channels over all pixels of an image. Sums are in fp32 whatever the dtype.

    PyTorch applies SiLU to the norm's result in place. This takes 1.4 % of a VAE decode in fp32 on one core, so a
    kernel that fuses both would not pay.
    """

    kind = "norm"
    FLOPS_PER_ELEMENT = 7  # the same as for LayerNorm

    def __init__(self, channels: int, groups: int, eps: float, dtype: torch.dtype, *, silu: bool = False) -> None:
        super().__init__()
        assert channels % groups == 0
        self.channels, self.groups, self.eps, self.silu, self.dtype = channels, groups, eps, silu, dtype
        self.parts = ("normalise", "activate") if silu else ("normalise",)
        self.weight = weight(channels, dtype=dtype)
        self.bias = weight(channels, dtype=dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """Return the group norm of x_PC [pixels of the grid, channels], with SiLU applied to it if configured."""
        normed_PC = self.normalise(x_PC, grid)
        return self.activate(normed_PC) if self.silu else normed_PC

    def normalise(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """Return the group norm of pixel rows x_PC [pixels, channels], without SiLU."""
        if x_PC.is_meta:
            return x_PC.new_empty(x_PC.shape)
        images_BCHW = grid.to_images(x_PC)
        return grid.to_rows(functional.group_norm(images_BCHW, self.groups, self.weight, self.bias, self.eps))

    def activate(self, x_PC: Tensor) -> Tensor:
        """Apply SiLU in place to group-normalised pixels."""
        return x_PC if x_PC.is_meta else functional.silu(x_PC, inplace=True)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a group norm and its SiLU: pixels are read and written once."""
        norm = self._norm_cost(rows)
        return norm + Cost({"fp32": self._silu_flops(rows)}) if self.silu else norm

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the launches of a group norm and of SiLU, which reads the normalised pixels from memory."""
        norm = Launch("norm.group", self.number_format, 1, self._norm_cost(rows), "normalise")
        if not self.silu:
            return (norm,)
        cost = Cost({"fp32": self._silu_flops(rows)}, activation_bytes=self._moved(rows))
        return norm, Launch("elementwise.plain", self.number_format, 1, cost, "activate")

    def _norm_cost(self, rows: int) -> Cost:
        flops = float(self.FLOPS_PER_ELEMENT * rows * self.channels)
        return Cost({"fp32": flops}, weight_bytes=self.stored_bytes(), activation_bytes=self._moved(rows))

    def _silu_flops(self, rows: int) -> float:
        return float(ActivatedProjections.FLOPS_PER_ELEMENT * rows * self.channels)

    def _moved(self, rows: int) -> int:
        """Return the bytes that a group norm moves: each pixel is read once and written once."""
        return 2 * rows * self.channels * self.weight.element_size()

    @override
    def signature(self) -> Hashable:
        return self.channels, self.silu, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.channels} in {self.groups} groups{', silu' if self.silu else ''}"
