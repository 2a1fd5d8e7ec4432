"""Which rows of a pass of an MMDiT are whose, and where they stand.

Joint rows are a text's, then its picture's. A position has three coordinates (FLUX.1) or four (FLUX.2): a picture's
tokens have their row on the second and their column on the third, a text's their place on the fourth, where there is
one; what is not told is 0.

Shapes: P pictures, K channels, H and W latents, N rows of patches, F numbers of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.models.common.denoiser import JOINT, LATENTS, TEXT, check_texts, patched
from ridgeline.models.common.token_layout import JointRows
from ridgeline.ops.work import Space

PLACED = 4  # coordinates with which a text's tokens have places


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a pass. lengths: by space, rows of each picture. positions: of joint rows, int64 [rows, coordinates].
    joint: the rows of both, a text's first."""

    lengths: Mapping[Space, Sequence[int]]
    positions: Tensor
    joint: JointRows


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows and columns of a picture's patches of `side` x `side` latents."""

    rows: int
    columns: int
    side: int

    @classmethod
    def of(cls, size: tuple[int, ...], side: int) -> "Grid":
        """The patches of `size` latents (height, width). Raises ValueError where there are none that fit."""
        return cls(*patched(size, side), side)

    @property
    def count(self) -> int:
        """Of a picture."""
        return self.rows * self.columns

    def lengths(self, texts: Sequence[int]) -> dict[Space, list[int]]:
        """By space, the rows of each picture whose texts have so many tokens. Raises ValueError for a text of none."""
        check_texts(texts)
        return {LATENTS: [self.count] * len(texts), TEXT: list(texts), JOINT: [text + self.count for text in texts]}

    def layout(self, texts: Sequence[int], coordinates: int, device: torch.device) -> Layout:
        """The rows of a pass over pictures whose texts have so many tokens. Raises ValueError as `lengths`."""
        lengths = self.lengths(texts)
        positions = torch.cat([self._positions(text, coordinates) for text in texts])
        return Layout(lengths, positions.to(device), JointRows.of(texts, lengths[LATENTS], device))

    def _positions(self, text: int, coordinates: int) -> Tensor:
        """Of the joint rows of one picture, whose text has so many, int64 [rows, coordinates]."""
        positions = torch.zeros(text + self.count, coordinates, dtype=torch.int64)
        positions[text:, 1] = torch.arange(self.rows).repeat_interleave(self.columns)
        positions[text:, 2] = torch.arange(self.columns).repeat(self.rows)
        if coordinates == PLACED:
            positions[:text, -1] = torch.arange(text)
        return positions

    def patches(self, latents_PKHW: Tensor) -> Tensor:
        """Latents [pictures, channels, height, width] -> a row a patch, its channels outermost [N, F]."""
        pictures, channels = latents_PKHW.shape[:2]
        cut = latents_PKHW.view(pictures, channels, self.rows, self.side, self.columns, self.side)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(pictures * self.count, -1)

    def latents(self, rows_NF: Tensor, pictures: int) -> Tensor:
        """What `patches` gives, back to latents."""
        cut = rows_NF.view(pictures, self.rows, self.columns, -1, self.side, self.side).permute(0, 3, 1, 4, 2, 5)
        return cut.reshape(pictures, -1, self.rows * self.side, self.columns * self.side)
