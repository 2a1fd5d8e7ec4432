"""Tiles: latents decoded part by part, so that the memory of a decode does not grow with the picture.

Tiles overlap and are blended there. Each is decoded as a picture of its own, so that the result is not that of the
whole: norms and attention see a tile, and its edges are padded with zeros.

Shapes: B images, C channels, H lines, W columns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.ops.pixel_grid import PixelGrid


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of at most `size` lines and columns of latents, which share at least `overlap` with their neighbours."""

    size: int = 64
    overlap: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= self.size // 2 or self.size < 1:
            raise ValueError(
                f"tiles of {self.size} that overlap by {self.overlap}: give 1 or more, and an overlap of at most half"
            )

    def starts(self, length: int) -> list[int]:
        """Where tiles of a line of so many latents begin: as few as do, all of one size, the last at the end."""
        last, step = length - self.size, self.size - self.overlap
        if last <= 0:
            return [0]
        return [min(start, last) for start in range(0, last + step, step)]

    def tile(self, latents: PixelGrid) -> PixelGrid:
        """One tile of latents of a size, of all images."""
        return PixelGrid(latents.images, min(self.size, latents.height), min(self.size, latents.width))

    def tiles(self, latents: PixelGrid) -> int:
        """How many tiles the latents of a size are."""
        return len(self.starts(latents.height)) * len(self.starts(latents.width))

    def weights(self, length: int, factor: int) -> list[Tensor]:
        """What the pixels of each tile of a line count for, fp32 [tile's pixels]: ramps where tiles overlap, 1 in all.
        factor: pixels to a latent.
        """
        starts, size = self.starts(length), min(self.size, length)
        places = [slice(start * factor, (start + size) * factor) for start in starts]
        position = (torch.arange(size * factor) + 0.5) / factor  # of a pixel within its tile, in latents
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
    """What `decode` gives for latents [B, C, H, W], tile by tile: fp32 [B, channels, factor x H, factor x W]."""
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
