"""Group norm, with the SiLU that follows (Wu and He, arXiv:1803.08494).

Shapes: P pixels of all images, C channels.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.stored_module import weight


class GroupNorm(Op):
    """(x - mean) / sqrt(variance + eps) * weight + bias, mean and variance those of a group of channels over all pixels
    of an image; then SiLU, where it is asked for. Sums are in fp32 whatever the dtype.

    One boundary. Torch's SiLU goes over the norm's result, in its place: 1.4 % of a decode in fp32 on one core, so that
    a kernel for both would not pay.
    """

    kind = "norm"
    FLOPS_PER_ELEMENT = 7  # as LayerNorm's

    def __init__(self, channels: int, groups: int, eps: float, dtype: torch.dtype, *, silu: bool = False) -> None:
        super().__init__()
        assert channels % groups == 0
        self.channels, self.groups, self.eps, self.silu = channels, groups, eps, silu
        self.parts = ("normalise", "activate") if silu else ("normalise",)
        self.weight = weight(channels, dtype=dtype)
        self.bias = weight(channels, dtype=dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """x_PC [pixels of the grid, channels] -> the same shape."""
        normed_PC = self.normalise(x_PC, grid)
        return self.activate(normed_PC) if self.silu else normed_PC

    def normalise(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """The norm."""
        if x_PC.is_meta:
            return x_PC.new_empty(x_PC.shape)
        images_BCHW = grid.to_images(x_PC)
        return grid.to_rows(functional.group_norm(images_BCHW, self.groups, self.weight, self.bias, self.eps))

    def activate(self, x_PC: Tensor) -> Tensor:
        """SiLU, in the place of what the norm gave."""
        return x_PC if x_PC.is_meta else functional.silu(x_PC, inplace=True)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Pixels in and out once; what lies between norm and SiLU needs no memory."""
        norm = self._norm_cost(rows)
        return norm + Cost({"fp32": self._silu_flops(rows)}) if self.silu else norm

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """As Op.launches_of: the norm, then SiLU over what it left in memory."""
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
        """Bytes of pixels in and out."""
        return 2 * rows * self.channels * self.weight.element_size()

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.weight.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.channels, self.silu, self.weight.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.channels} in {self.groups} groups{', silu' if self.silu else ''}"
