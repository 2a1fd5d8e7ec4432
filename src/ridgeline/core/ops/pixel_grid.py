"""Grids of pixels: rows that are the pixels of images, line by line.

Shapes: P pixels of all images, B images, C channels, H lines, W columns.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PixelGrid:
    """The shape of several images of one size, whose pixels are consecutive rows."""

    images: int
    height: int
    width: int

    def __post_init__(self) -> None:
        assert min(self.images, self.height, self.width) > 0, f"{self} has no pixels"

    @property
    def each(self) -> int:
        """The number of pixels of each image of a grid."""
        return self.height * self.width

    @property
    def rows(self) -> int:
        """The number of pixels of all images of a grid together."""
        return self.images * self.each

    def finer(self, times: int) -> "PixelGrid":
        """Return the grid of the same images with `times` times the lines and columns."""
        return PixelGrid(self.images, self.height * times, self.width * times)

    def to_images(self, x_PC: Tensor) -> Tensor:
        """Return rows x_PC [rows, channels] as a view of images [images, channels, height, width]."""
        return x_PC.view(self.images, self.height, self.width, -1).permute(0, 3, 1, 2)

    def to_rows(self, x_BCHW: Tensor) -> Tensor:
        """Return images [images, channels, height, width] as rows; it copies only if channels are not contiguous."""
        return x_BCHW.permute(0, 2, 3, 1).flatten(0, 2)
