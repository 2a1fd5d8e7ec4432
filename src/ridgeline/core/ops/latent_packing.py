"""Four pixels of a grid packed into one, and what the packed are normalised by.

Shapes: P pixels, Q packed pixels, C channels, F channels of a packed pixel.
"""

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.stored_module import weight

SIDE = 2
"""Pixels on a side of what becomes one."""


class _PixelCopy(Op):
    """Numbers read and written once, in fp32."""

    kind = "elementwise"

    def __init__(self, width: int) -> None:
        """width: numbers of a row that comes in."""
        super().__init__()
        self.width = width

    @override
    def cost_of(self, rows: int) -> Cost:
        return Cost(activation_bytes=8 * rows * self.width)

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.plain"

    @property
    @override
    def number_format(self) -> str:
        return "fp32"

    @override
    def signature(self) -> Hashable:
        return self.width


class Pack(_PixelCopy):
    """Squares of SIDE x SIDE pixels as one each, whose channels are those of the first channel's square, line by line,
    then of the next one's.
    """

    @override
    def forward(self, x_PC: Tensor, packed: PixelGrid) -> Tensor:
        """x_PC fp32 [pixels, channels] of a grid SIDE times as fine as `packed` -> [its pixels, F]."""
        if x_PC.is_meta:
            return x_PC.new_empty(packed.rows, SIDE**2 * self.width)
        cut = x_PC.view(packed.images, packed.height, SIDE, packed.width, SIDE, -1)
        return cut.permute(0, 1, 3, 5, 2, 4).reshape(packed.rows, -1)


class Unpack(_PixelCopy):
    """The other way round."""

    @override
    def forward(self, x_QF: Tensor, packed: PixelGrid, grid: PixelGrid) -> Tensor:
        """x_QF fp32 [pixels of `packed`, F] -> [pixels of a grid that is SIDE times as fine, channels]."""
        if x_QF.is_meta:
            return x_QF.new_empty(grid.rows, self.width // SIDE**2)
        cut = x_QF.view(packed.images, packed.height, packed.width, -1, SIDE, SIDE)
        return cut.permute(0, 1, 4, 2, 5, 3).reshape(grid.rows, -1)


class RunningNorm(Op):
    """(x - mean) / sqrt(variance + eps) by what a batch norm has counted in training (Ioffe and Szegedy,
    arXiv:1502.03167), channel by channel, in fp32; and the other way round.
    """

    kind = "elementwise"

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.running_mean = weight(width, dtype=dtype)
        self.running_var = weight(width, dtype=dtype)

    @override
    def forward(self, x_QF: Tensor, way: Literal["normalise", "restore", "logvar"]) -> Tensor:
        """x_QF [rows, width] -> fp32 [rows, width]: normalised; brought back; or what becomes of the logarithm of a
        variance when it is normalised.
        """
        if x_QF.is_meta:
            return x_QF.new_empty(x_QF.shape, dtype=torch.float32)
        x_QF, mean_F, variance_F = x_QF.float(), self.running_mean.float(), self.running_var.float() + self.eps
        match way:
            case "normalise":
                return (x_QF - mean_F) / variance_F.sqrt()
            case "restore":
                return x_QF * variance_F.sqrt() + mean_F
            case "logvar":
                return x_QF - variance_F.log()

    @override
    def cost_of(self, rows: int) -> Cost:
        """A sum and a product for each number, which is read and written; of a logarithm the sum alone."""
        elements = rows * self.width
        return Cost({"fp32": 2.0 * elements}, weight_bytes=self.stored_bytes(), activation_bytes=8 * elements)

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.scale"

    @property
    @override
    def number_format(self) -> str:
        return "fp32"

    @override
    def signature(self) -> Hashable:
        return self.width, format_of(self.running_mean.dtype).name
