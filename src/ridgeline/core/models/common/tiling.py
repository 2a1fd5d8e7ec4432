"""Tiled decoding: latents are decoded tile by tile, so that a decode needs memory for the activations of one tile only.

The latents and the finished image are held whole. Tiles overlap, and their overlaps are blended. Each tile is decoded
as an image of its own, so that the result differs from that of the whole: norms and attention see one tile, and zeros
pad its edges.

Shapes: B images, C channels, H rows, W columns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.ops.pixel_grid import PixelGrid


@dataclass(frozen=True, slots=True)
class Tiling:
    """The size and overlap of the tiles in which latents are decoded."""

    size: int = 64
    """The maximum number of rows and of columns of latents in a tile."""
    overlap: int = 16
    """The minimum number of rows and of columns that neighbouring tiles share."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= self.size // 2 or self.size < 1:
            raise ValueError(
                f"tiles have size {self.size} and overlap by {self.overlap}; give a size of 1 or more, and an overlap "
                "of at most half the size"
            )

    def starts(self, length: int) -> list[int]:
        """Return the first index of each tile along a side of `length` latents.

        There are as few tiles as possible, all of one size; the last one ends at the side's end.
        """
        last, step = length - self.size, self.size - self.overlap
        if last <= 0:
            return [0]
        return [min(start, last) for start in range(0, last + step, step)]

    def tile(self, latents: PixelGrid) -> PixelGrid:
        """Return the grid (images, height, width) of one tile, given that of the latents; a tile covers all images."""
        return PixelGrid(latents.images, min(self.size, latents.height), min(self.size, latents.width))

    def tiles(self, latents: PixelGrid) -> int:
        """Return the number of tiles into which latents of this size are divided."""
        return len(self.starts(latents.height)) * len(self.starts(latents.width))

    def weights(self, length: int, factor: int) -> list[Tensor]:
        """Return the blending weights of each tile along a side of `length` latents, each fp32 [pixels of the tile].

        They ramp where tiles overlap and add up to 1 in each pixel. `factor` is the number of pixels per latent.
        """
        starts, size = self.starts(length), min(self.size, length)
        places = [slice(start * factor, (start + size) * factor) for start in starts]
        position = (torch.arange(size * factor) + 0.5) / factor  # of a pixel in its tile, in units of latents
        line, ramps = torch.zeros(length * factor), []
        for i, (start, place) in enumerate(zip(starts, places, strict=True)):
            ramp = torch.ones_like(position)
            if i:
                ramp = torch.minimum(ramp, position / (starts[i - 1] + size - start))
            if i + 1 < len(starts):
                ramp = torch.minimum(ramp, (size - position) / (start + size - starts[i + 1]))
            line[place] += ramp
            ramps.append(ramp)
        return [ramp / line[place] for ramp, place in zip(ramps, places, strict=True)]


def tiled(
    decode: Callable[[Tensor], Tensor], latents_BCHW: Tensor, tiling: Tiling, factor: int, channels: int
) -> Tensor:
    """Decode latents [B, C, H, W] tile by tile into one image, fp32 [B, channels, factor x H, factor x W]."""
    images, _, height, width = latents_BCHW.shape
    tile = tiling.tile(PixelGrid(images, height, width))
    canvas = latents_BCHW.new_zeros(images, channels, factor * height, factor * width, dtype=torch.float32)
    down, across = tiling.weights(height, factor), tiling.weights(width, factor)
    for top, lines_H in zip(tiling.starts(height), down, strict=True):
        for left, columns_W in zip(tiling.starts(width), across, strict=True):
            place = canvas.narrow(2, factor * top, factor * tile.height).narrow(3, factor * left, factor * tile.width)
            part = latents_BCHW.narrow(2, top, tile.height).narrow(3, left, tile.width)
            place.addcmul_(decode(part).float(), (lines_H[:, None] * columns_W).to(canvas.device))
    return canvas
