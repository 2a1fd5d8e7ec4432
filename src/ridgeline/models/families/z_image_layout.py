"""Which rows of a pass of Z-Image are whose, and where they stand.

Both kinds of tokens are padded to multiples of 32. A position has three coordinates: a text's tokens, padding included,
count on the first, from 1; those of a picture have the number after them there, then their row and their column; a
picture's padding is at 0, 0, 0. Joint rows are a picture's, then its text's.

Shapes: P pictures, K channels, H and W latents, N rows of patches, F numbers of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.models.common.denoiser import JOINT, LATENTS, TEXT, check_texts, patched
from ridgeline.models.common.token_layout import JointRows
from ridgeline.ops.work import Space

_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class TextLayout:
    """The rows of texts. lengths: of each. positions: of each row, int64 [rows, 3]. padding: which rows are."""

    lengths: Sequence[int]
    positions: Tensor
    padding: Tensor

    @classmethod
    def of(cls, texts: Sequence[int], places: Sequence[int], device: torch.device) -> "TextLayout":
        """Of texts that have so many tokens. places: as of Grid. Raises ValueError as `text_lengths`."""
        lengths = text_lengths(texts, places)
        positions = torch.zeros(sum(lengths), 3, dtype=torch.int64)
        positions[:, 0] = torch.cat([torch.arange(1, length + 1) for length in lengths])
        return cls(lengths, positions.to(device), _padding(texts, lengths).to(device))


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of a pass.

    lengths: by space, rows of each picture. positions: of each row, int64 [rows, 3]. padding: which rows of latents
    are. joint: the rows of both, a picture's first.
    """

    lengths: Mapping[Space, Sequence[int]]
    positions: Mapping[Space, Tensor]
    padding: Tensor
    joint: JointRows


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows and columns of a picture's patches of `side` x `side` latents. places: how many the model has for each
    coordinate of a position."""

    rows: int
    columns: int
    side: int
    places: Sequence[int]

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, places: Sequence[int]) -> "Grid":
        """The patches of `size` latents (height, width). Raises ValueError where there are none that fit, or more than
        places."""
        height, width = size
        grid = cls(*patched(size, side), side, places)
        if grid.rows > places[1] or grid.columns > places[2]:
            raise ValueError(
                f"latents of {height} x {width} are more than the model has positions for; "
                f"give at most {places[1] * side} x {places[2] * side}"
            )
        return grid

    @property
    def count(self) -> int:
        """Of a picture, padding not counted."""
        return self.rows * self.columns

    def lengths(self, texts: Sequence[int]) -> dict[Space, list[int]]:
        """By space, the rows of each picture whose texts have so many tokens. Raises ValueError as `text_lengths`."""
        latents, own = [padded(self.count)] * len(texts), text_lengths(texts, self.places)
        return {LATENTS: latents, TEXT: own, JOINT: [a + b for a, b in zip(latents, own, strict=True)]}

    def layout(self, texts: Sequence[int], device: torch.device) -> Layout:
        """The rows of a pass over pictures whose texts have so many tokens. Raises ValueError as `lengths`."""
        lengths = self.lengths(texts)
        positions = [self._positions(text) for text in lengths[TEXT]]
        joint, own = JointRows.of(lengths[LATENTS], lengths[TEXT], device), torch.cat(positions).to(device)
        patches = [self.count] * len(texts)
        return Layout(
            lengths,
            {LATENTS: own[joint.first], JOINT: own},
            _padding(patches, lengths[LATENTS]).to(device),
            joint,
        )

    def _positions(self, text: int) -> Tensor:
        """Of the joint rows of one picture, whose text has so many, int64 [rows, 3]."""
        own = padded(self.count)
        positions = torch.zeros(own + text, 3, dtype=torch.int64)
        positions[: self.count, 0] = text + 1
        positions[: self.count, 1] = torch.arange(self.rows).repeat_interleave(self.columns)
        positions[: self.count, 2] = torch.arange(self.columns).repeat(self.rows)
        positions[own:, 0] = torch.arange(1, text + 1)
        return positions

    def patches(self, latents_PKHW: Tensor) -> Tensor:
        """Latents [pictures, channels, height, width] -> a row a patch, its channels innermost, each picture's padded
        with zeros [N, F]."""
        pictures, channels = latents_PKHW.shape[:2]
        cut = latents_PKHW.view(pictures, channels, self.rows, self.side, self.columns, self.side)
        rows_PNF = cut.permute(0, 2, 4, 3, 5, 1).reshape(pictures, self.count, -1)
        return with_padding(rows_PNF).flatten(0, 1)

    def latents(self, rows_NF: Tensor, pictures: int) -> Tensor:
        """What `patches` gives, back to latents."""
        own = rows_NF.view(pictures, padded(self.count), -1)[:, : self.count]
        cut = own.reshape(pictures, self.rows, self.columns, self.side, self.side, -1).permute(0, 5, 1, 3, 2, 4)
        return cut.reshape(pictures, -1, self.rows * self.side, self.columns * self.side)


def text_lengths(texts: Sequence[int], places: Sequence[int]) -> list[int]:
    """Rows of texts that have so many tokens. places: as of Grid. Raises ValueError for a text of none, or of more than
    there are places."""
    check_texts(texts)
    if padded(max(texts)) + 2 > places[0]:
        most = (places[0] - 2) // _MULTIPLE * _MULTIPLE
        raise ValueError(f"a text has {max(texts)} tokens, and the model has positions for {most}; shorten it")
    return [padded(tokens) for tokens in texts]


def padded(rows: int) -> int:
    """The next multiple."""
    return -(-rows // _MULTIPLE) * _MULTIPLE


def with_padding(rows_xNF: Tensor) -> Tensor:
    """[..., rows, F] -> as many rows as there are with padding, which are zeros."""
    rows = rows_xNF.shape[-2]
    return functional.pad(rows_xNF, (0, 0, 0, padded(rows) - rows))


def _padding(own: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """The numbers of rows that are padding, where of each of the lengths so many are its own."""
    every = [torch.arange(length) >= rows for rows, length in zip(own, lengths, strict=True)]
    return torch.cat(every).nonzero()[:, 0]
