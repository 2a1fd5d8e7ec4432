"""Grid: the patches of pictures and clips of a CrossDenoiser, a row each, frame by frame and line by line.

Shapes: P clips, K channels, T, H and W latents, N rows of patches, F numbers of a patch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.models.common.denoiser import patched


@dataclass(frozen=True, slots=True)
class Grid:
    """Patches of a clip: of one frame of latents, `side` x `side` each."""

    frames: int
    rows: int
    columns: int
    side: int

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, most: int | None = None) -> "Grid":
        """The patches of `size` latents: (frames, height, width), or (height, width) of a picture. most: places of each
        coordinate, where there are only so many. Raises ValueError where there are no patches that fit, or more than
        places."""
        *frames, height, width = size
        if frames == [0]:
            raise ValueError(f"latents of {_written(size)} have no frames; give at least one")
        grid = cls(frames[0] if frames else 1, *patched((height, width), side), side)
        if most is not None and max(grid.frames, grid.rows, grid.columns) > most:
            fitting = (most, most * side, most * side)[3 - len(size) :]
            raise ValueError(
                f"latents of {_written(size)} are more than the model has positions for; give at most "
                f"{_written(fitting)}"
            )
        return grid

    @property
    def count(self) -> int:
        """Patches of a clip."""
        return self.frames * self.rows * self.columns

    def positions(self, clips: int) -> Tensor:
        """Frame, line and column of each patch of so many clips, int64 [rows, 3]."""
        axes = (torch.arange(count) for count in (self.frames, self.rows, self.columns))
        return torch.cartesian_prod(*axes).repeat(clips, 1)

    def patches(self, latents_PKTHW: Tensor) -> Tensor:
        """Latents [clips, channels, frames, height, width] -> a row a patch, the numbers of a channel together, as a
        convolution's weights have them [N, F]."""
        clips, channels = latents_PKTHW.shape[:2]
        cut = latents_PKTHW.reshape(clips, channels, self.frames, self.rows, self.side, self.columns, self.side)
        return cut.permute(0, 2, 3, 5, 1, 4, 6).reshape(clips * self.count, -1)

    def latents(self, rows_NF: Tensor, clips: int) -> Tensor:
        """Rows whose channels are innermost [N, F] -> latents [clips, channels, frames, height, width]."""
        cut = rows_NF.view(clips, self.frames, self.rows, self.columns, self.side, self.side, -1)
        return cut.permute(0, 6, 1, 2, 4, 3, 5).reshape(
            clips, -1, self.frames, self.rows * self.side, self.columns * self.side
        )


def _written(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
