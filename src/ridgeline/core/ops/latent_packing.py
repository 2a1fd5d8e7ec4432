"""Packing of 2 x 2 latent pixels into one (pixel unshuffle), and the normalisation of packed latents.

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
"""The side in pixels of the square that becomes one packed pixel."""


class _PixelCopy(Op):
    """The base class of ops that rearrange pixels: each number is read and written once, in fp32."""

    kind = "elementwise"
    kernel_name = "elementwise.plain"
    number_format = "fp32"

    def __init__(self, width: int) -> None:
        """Create an op that rearranges pixels, for input rows of `width` numbers."""
        super().__init__()
        self.width = width

    @override
    def cost_of(self, rows: int) -> Cost:
        return Cost(activation_bytes=8 * rows * self.width)

    @override
    def signature(self) -> Hashable:
        return self.width


class Pack(_PixelCopy):
    """Pixel unshuffle: each square of SIDE x SIDE pixels becomes one pixel with SIDE^2 times the channels.

    The new channels are the square of the first channel, line by line, then that of the next channel.
    """

    @override
    def forward(self, x_PC: Tensor, packed: PixelGrid) -> Tensor:
        """Pack pixels of a fine grid into those of a grid SIDE times as coarse.

        Args:
            x_PC: The pixels of the fine grid, fp32 [pixels, channels].
            packed: The coarse grid.

        Returns:
            The pixels of the coarse grid [pixels, F].
        """
        if x_PC.is_meta:
            return x_PC.new_empty(packed.rows, SIDE**2 * self.width)
        cut = x_PC.view(packed.images, packed.height, SIDE, packed.width, SIDE, -1)
        return cut.permute(0, 1, 3, 5, 2, 4).reshape(packed.rows, -1)


class Unpack(_PixelCopy):
    """Pixel shuffle, the inverse of `Pack`: each packed pixel becomes a square of SIDE x SIDE pixels."""

    @override
    def forward(self, x_QF: Tensor, packed: PixelGrid, grid: PixelGrid) -> Tensor:
        """Unpack pixels into those of a grid SIDE times as fine.

        Args:
            x_QF: The packed pixels, fp32 [pixels of `packed`, F].
            packed: The coarse grid.
            grid: The fine grid.

        Returns:
            The pixels of the fine grid [pixels, channels].
        """
        if x_QF.is_meta:
            return x_QF.new_empty(grid.rows, self.width // SIDE**2)
        cut = x_QF.view(packed.images, packed.height, packed.width, -1, SIDE, SIDE)
        return cut.permute(0, 1, 4, 2, 5, 3).reshape(grid.rows, -1)


class RunningNorm(Op):
    """Batch normalisation with running statistics, per channel in fp32, and its inverse.

    It is (x - mean) / sqrt(variance + eps) (Ioffe and Szegedy, arXiv:1502.03167).
    """

    kind = "elementwise"
    kernel_name = "elementwise.scale"
    number_format = "fp32"

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.running_mean = weight(width, dtype=dtype)
        self.running_var = weight(width, dtype=dtype)

    @override
    def forward(self, x_QF: Tensor, way: Literal["normalise", "restore", "logvar"]) -> Tensor:
        """Return packed latents x_QF [rows, width] normalised or restored, or their log-variances converted, in fp32.

        Args:
            x_QF: The packed latents, or the log-variances of latents.
            way: "normalise"; "restore" for the inverse; "logvar" for the log-variances of normalised latents.
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
        """Return the cost of normalising packed latents: one sum and one product per number.

        A log-variance needs only the sum.
        """
        elements = rows * self.width
        return Cost({"fp32": 2.0 * elements}, weight_bytes=self.stored_bytes(), activation_bytes=8 * elements)

    @override
    def signature(self) -> Hashable:
        return self.width, format_of(self.running_mean.dtype).name
