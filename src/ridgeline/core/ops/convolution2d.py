"""Convolutions over images, and what halves or doubles their resolution (Dumoulin and Visin, arXiv:1603.07285).

Rows are pixels, so that channels lie side by side: the layout that kernels of the CPU and of tensor cores want.

Shapes: P pixels, Q pixels of the result, I channels in, O channels out, B images, H lines, W columns.
"""

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.stored_module import weight


class Convolution2d(Op):
    """conv(x) + bias with zeros around each image, so that as many pixels come out as go in. kernel: odd."""

    kind = "convolution"
    stride: ClassVar[int] = 1

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, kernel: int = 3) -> None:
        super().__init__()
        assert kernel % 2 == 1
        self.inputs, self.outputs, self.kernel_size = inputs, outputs, kernel
        self.weight = weight(outputs, inputs, kernel, kernel, dtype=dtype)
        self.bias = weight(outputs, dtype=dtype)

    @override
    def forward(self, x_PI: Tensor, grid: PixelGrid) -> Tensor:
        """x_PI [pixels of the grid, inputs] -> [pixels, outputs]."""
        if x_PI.is_meta:
            return self.weight.new_empty(grid.rows, self.outputs)
        return grid.to_rows(
            functional.conv2d(self._images(x_PI, grid), self.weight, self.bias, padding=self.kernel_size // 2)
        )

    def _images(self, x_PI: Tensor, grid: PixelGrid) -> Tensor:
        """Channels side by side, whatever the layout was that an op before gave."""
        return grid.to_images(x_PI.to(self.weight.dtype).contiguous())

    @override
    def cost_of(self, rows: int) -> Cost:
        """2 x kernel^2 x inputs FLOPs for each channel of each result, the zeros around an image counted, as they are
        multiplied; the weights once, pixels in and out.
        """
        results = rows // self.stride**2 * self.outputs
        return Cost(
            {self.number_format: 2.0 * self.kernel_size**2 * self.inputs * results},
            weight_bytes=self.stored_bytes(),
            activation_bytes=(rows * self.inputs + results) * self.weight.element_size(),
        )

    @override
    def kernel(self, rows: int) -> str:
        """As Op.kernel: products with the pixels around, or a plain product."""
        return "convolution.images" if self.kernel_size > 1 else "convolution.pixels"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.weight.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.inputs, self.outputs, self.kernel_size, self.weight.dtype

    @override
    def extra_repr(self) -> str:
        size = self.kernel_size
        return f"{self.inputs} -> {self.outputs}, kernel {size} x {size}, stride {self.stride}"


class Downsample(Convolution2d):
    """A convolution with stride 2, one line and one column of zeros behind each image and none before: half as many
    lines and columns, which are even.
    """

    stride = 2

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__(channels, channels, dtype)

    @override
    def forward(self, x_PI: Tensor, grid: PixelGrid, halved: PixelGrid) -> Tensor:  # type: ignore[override]
        """x_PI [pixels of the grid, channels] -> [pixels of the halved one, channels]."""
        if x_PI.is_meta:
            return self.weight.new_empty(halved.rows, self.outputs)
        x_BIHW = functional.pad(self._images(x_PI, grid), (0, 1, 0, 1))
        return halved.to_rows(functional.conv2d(x_BIHW, self.weight, self.bias, self.stride))


class Upsample(Op):
    """Each pixel as four: twice as many lines and columns."""

    kind = "elementwise"

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.channels, self.dtype = channels, dtype

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid, doubled: PixelGrid) -> Tensor:
        """x_PC [pixels of the grid, channels] -> [pixels of the doubled one, channels]."""
        if x_PC.is_meta:
            return x_PC.new_empty(doubled.rows, self.channels)
        return doubled.to_rows(functional.interpolate(grid.to_images(x_PC), scale_factor=2.0, mode="nearest"))

    @override
    def cost_of(self, rows: int) -> Cost:
        """One pixel in, four out; nothing is computed."""
        return Cost(activation_bytes=5 * rows * self.channels * self.dtype.itemsize)

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.upsample"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.channels, self.dtype

    @override
    def extra_repr(self) -> str:
        return str(self.channels)
