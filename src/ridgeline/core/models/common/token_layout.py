"""The rows of a pass of a denoiser whose latents and text see each other: whose each row is, and its position.

MMDiT (FLUX): joint rows are a text's, then its image's. A position has three coordinates (FLUX.1) or four (FLUX.2): an
image's tokens have their row on the second and their column on the third, a text's their place on the fourth, if there
is one; the other coordinates are 0.

Z-Image: joint rows are an image's, then its text's. Both kinds of tokens are padded to multiples of 32. A position has
three coordinates: a text's tokens, padding included, count on the first, from 1; those of an image have the number
after them there, then their row and their column; an image's padding is at 0, 0, 0.

Shapes: P images, K channels, H and W latents, N rows of patches, F numbers of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.models.common.denoiser import JOINT, LATENTS, TEXT, check_texts, patched
from ridgeline.core.ops.work import RowAxis


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """order: where JoinRows takes each joint row from: rows of the sort that stands first, counted on by the other's.
    first, second: which joint rows are of either sort. All int64.
    """

    order: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, first: Sequence[int], second: Sequence[int], device: torch.device) -> "TokenLayout":
        """Of pictures that have so many rows of either sort, those of the first sort before those of the second."""
        pairs = zip(first, second, strict=True)
        is_second = torch.cat([torch.arange(one + other) >= one for one, other in pairs])
        order = torch.empty(len(is_second), dtype=torch.int64)
        order[~is_second] = torch.arange(sum(first))
        order[is_second] = torch.arange(sum(first), len(is_second))
        rows = ((~is_second).nonzero()[:, 0], is_second.nonzero()[:, 0])
        return cls(order.to(device), rows[0].to(device), rows[1].to(device))

    @classmethod
    def empty(cls, first: int, second: int, joint: int) -> "TokenLayout":
        """So many rows without numbers, for a model that is outlined."""
        return cls(*(torch.empty(count, dtype=torch.int64) for count in (joint, first, second)))


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """The rows and columns of the patches of an image, `side` x `side` latents each."""

    rows: int
    columns: int
    side: int

    @property
    def count(self) -> int:
        """The number of patches of an image, without padding."""
        return self.rows * self.columns

    def coordinates(self) -> Tensor:
        """Return the row and the column of each patch, int64 [count, 2]."""
        return torch.cartesian_prod(torch.arange(self.rows), torch.arange(self.columns))


PLACED = 4  # coordinates with which a text's tokens have places


@dataclass(frozen=True, slots=True)
class MMDiTLayout:
    """The rows of a pass. lengths: by space, rows of each picture. positions: of joint rows, int64 [rows, coordinates].
    joint: the rows of both, a text's first.
    """

    lengths: Mapping[RowAxis, Sequence[int]]
    positions: Tensor
    joint: TokenLayout


@dataclass(frozen=True, slots=True)
class MMDiTGrid(ImageGrid):
    """The patches of an image of MMDiT."""

    @classmethod
    def of(cls, size: tuple[int, ...], side: int) -> "MMDiTGrid":
        """The patches of `size` latents (height, width). Raises ValueError where there are none that fit."""
        return cls(*patched(size, side), side)

    def lengths(self, texts: Sequence[int]) -> dict[RowAxis, list[int]]:
        """By space, the rows of each picture whose texts have so many tokens. Raises ValueError for a text of none."""
        check_texts(texts)
        return {LATENTS: [self.count] * len(texts), TEXT: list(texts), JOINT: [text + self.count for text in texts]}

    def layout(self, texts: Sequence[int], coordinates: int, device: torch.device) -> MMDiTLayout:
        """The rows of a pass over pictures whose texts have so many tokens. Raises ValueError as `lengths`."""
        lengths = self.lengths(texts)
        positions = torch.cat([self._positions(text, coordinates) for text in texts])
        return MMDiTLayout(lengths, positions.to(device), TokenLayout.of(texts, lengths[LATENTS], device))

    def _positions(self, text: int, coordinates: int) -> Tensor:
        """Of the joint rows of one picture, whose text has so many, int64 [rows, coordinates]."""
        positions = torch.zeros(text + self.count, coordinates, dtype=torch.int64)
        positions[text:, 1:3] = self.coordinates()
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


_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class ZImageTextLayout:
    """The rows of texts. lengths: of each. positions: of each row, int64 [rows, 3]. padding: which rows are."""

    lengths: Sequence[int]
    positions: Tensor
    padding: Tensor

    @classmethod
    def of(cls, texts: Sequence[int], places: Sequence[int], device: torch.device) -> "ZImageTextLayout":
        """Of texts that have so many tokens. places: as of ZImageGrid. Raises ValueError as `text_lengths`."""
        lengths = text_lengths(texts, places)
        positions = torch.zeros(sum(lengths), 3, dtype=torch.int64)
        positions[:, 0] = torch.cat([torch.arange(1, length + 1) for length in lengths])
        return cls(lengths, positions.to(device), _padding(texts, lengths).to(device))


@dataclass(frozen=True, slots=True)
class ZImageLayout:
    """The rows of a pass.

    lengths: by space, rows of each picture. positions: of each row, int64 [rows, 3]. padding: which rows of latents
    are. joint: the rows of both, a picture's first.
    """

    lengths: Mapping[RowAxis, Sequence[int]]
    positions: Mapping[RowAxis, Tensor]
    padding: Tensor
    joint: TokenLayout


@dataclass(frozen=True, slots=True)
class ZImageGrid(ImageGrid):
    """The patches of an image of Z-Image. places: how many the model has for each coordinate of a position."""

    places: Sequence[int]

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, places: Sequence[int]) -> "ZImageGrid":
        """The patches of `size` latents (height, width). Raises ValueError where there are none that fit, or more than
        places.
        """
        height, width = size
        grid = cls(*patched(size, side), side, places)
        if grid.rows > places[1] or grid.columns > places[2]:
            raise ValueError(
                f"latents of {height} x {width} are more than the model has positions for; "
                f"give at most {places[1] * side} x {places[2] * side}"
            )
        return grid

    def lengths(self, texts: Sequence[int]) -> dict[RowAxis, list[int]]:
        """By space, the rows of each picture whose texts have so many tokens. Raises ValueError as `text_lengths`."""
        latents, own = [padded(self.count)] * len(texts), text_lengths(texts, self.places)
        return {LATENTS: latents, TEXT: own, JOINT: [a + b for a, b in zip(latents, own, strict=True)]}

    def layout(self, texts: Sequence[int], device: torch.device) -> ZImageLayout:
        """The rows of a pass over pictures whose texts have so many tokens. Raises ValueError as `lengths`."""
        lengths = self.lengths(texts)
        positions = [self._positions(text) for text in lengths[TEXT]]
        joint, own = TokenLayout.of(lengths[LATENTS], lengths[TEXT], device), torch.cat(positions).to(device)
        patches = [self.count] * len(texts)
        return ZImageLayout(
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
        positions[: self.count, 1:] = self.coordinates()
        positions[own:, 0] = torch.arange(1, text + 1)
        return positions

    def patches(self, latents_PKHW: Tensor) -> Tensor:
        """Latents [pictures, channels, height, width] -> a row a patch, its channels innermost, each picture's padded
        with zeros [N, F].
        """
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
    """Rows of texts that have so many tokens. places: as of ZImageGrid. Raises ValueError for a text of none, or of
    more than there are places.
    """
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
