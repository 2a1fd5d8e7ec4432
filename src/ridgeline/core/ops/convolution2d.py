"""Two-dimensional convolutions, downsampling and upsampling of images (Dumoulin and Visin, arXiv:1603.07285).

Rows are pixels, so channels are contiguous (channels last): the layout that CPU kernels and tensor cores need.

Shapes: P pixels, Q pixels of the result, I channels in, O channels out, B images, H lines, W columns.
"""

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import RowOp
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.stored_module import weight


class Convolution2d(TypedOp):
    """A convolution of images with a bias and zero padding, which keeps the image size; the kernel size is odd."""

    kind = "convolution"
    stride: ClassVar[int] = 1

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, kernel: int = 3) -> None:
        super().__init__()
        assert kernel % 2 == 1
        self.inputs, self.outputs, self.kernel_size, self.dtype = inputs, outputs, kernel, dtype
        self.weight = weight(outputs, inputs, kernel, kernel, dtype=dtype)
        self.bias = weight(outputs, dtype=dtype)

    @override
    def forward(self, x_PI: Tensor, grid: PixelGrid) -> Tensor:
        """Return the convolution of images given as pixel rows x_PI [pixels of the grid, inputs]: [pixels, outputs]."""
        if x_PI.is_meta:
            return self.weight.new_empty(grid.rows, self.outputs)
        return grid.to_rows(
            functional.conv2d(self._images(x_PI, grid), self.weight, self.bias, padding=self.kernel_size // 2)
        )

    def _images(self, x_PI: Tensor, grid: PixelGrid) -> Tensor:
        """Return pixel rows as images with contiguous channels, whatever layout the previous op left."""
        return grid.to_images(x_PI.to(self.weight.dtype).contiguous())

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a convolution of images: 2 x kernel^2 x inputs FLOPs per output channel and pixel.

        Products with zero padding count, because they are computed. Weights are read once, pixels enter and leave.
        """
        results = rows // self.stride**2 * self.outputs
        return Cost(
            {self.number_format: 2.0 * self.kernel_size**2 * self.inputs * results},
            weight_bytes=self.stored_bytes(),
            activation_bytes=(rows * self.inputs + results) * self.weight.element_size(),
        )

    @override
    def kernel(self, rows: int) -> str:
        """Return the kernel class of a convolution of images: a convolution, or a plain product for a 1 x 1 kernel."""
        return "convolution.images" if self.kernel_size > 1 else "convolution.pixels"

    @override
    def signature(self) -> Hashable:
        return self.inputs, self.outputs, self.kernel_size, self.dtype

    @override
    def extra_repr(self) -> str:
        size = self.kernel_size
        return f"{self.inputs} -> {self.outputs}, kernel {size} x {size}, stride {self.stride}"


class Downsample(Convolution2d):
    """A convolution with stride 2, which halves the lines and columns of images; both must be even.

    One line and one column of zeros follow each image, and none precede it.
    """

    stride = 2

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__(channels, channels, dtype)

    @override
    def forward(self, x_PI: Tensor, grid: PixelGrid, halved: PixelGrid) -> Tensor:  # type: ignore[override]
        """Return the stride-2 convolution of x_PC [pixels of a grid, channels]: [pixels of the half grid, channels]."""
        if x_PI.is_meta:
            return self.weight.new_empty(halved.rows, self.outputs)
        x_BIHW = functional.pad(self._images(x_PI, grid), (0, 1, 0, 1))
        return halved.to_rows(functional.conv2d(x_BIHW, self.weight, self.bias, self.stride))


class Upsample(RowOp):
    """Nearest-neighbour upsampling, which doubles the lines and columns of images."""

    kernel_name = "elementwise.upsample"

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid, doubled: PixelGrid) -> Tensor:
        """Repeat each pixel of x_PC [pixels of the grid, channels] in a 2 x 2 square of the doubled grid."""
        if x_PC.is_meta:
            return x_PC.new_empty(doubled.rows, self.width)
        return doubled.to_rows(functional.interpolate(grid.to_images(x_PC), scale_factor=2.0, mode="nearest"))

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of doubling an image's lines and columns: one pixel read and four written, without FLOPs."""
        return Cost(activation_bytes=5 * rows * self.width * self.dtype.itemsize)

    @override
    def extra_repr(self) -> str:
        return str(self.width)
