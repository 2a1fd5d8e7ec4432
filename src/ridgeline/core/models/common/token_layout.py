"""The layout of rows in denoisers whose latents and text attend to each other: the owner and position of each row.

MMDiT (FLUX): joint rows are a text's, then its image's. A position has three coordinates (FLUX.1) or four (FLUX.2). The
tokens of an image have their row on the second and their column on the third coordinate. Those of a text have their
index on the fourth, if there is one. The other coordinates are 0.

Z-Image: joint rows are an image's, then its text's. Both kinds of tokens are padded to multiples of 32. A position has
three coordinates. The tokens of a text, padding included, count on the first, from 1. Those of an image have the next
number there, then their row and their column. The padding of an image is at 0, 0, 0.

Shapes: P images, K channels, H and W latents, N rows of patches, F numbers of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.models.common.denoiser import JOINT, LATENTS, TEXT, check_texts, patch_grid
from ridgeline.core.ops.work import RowAxis


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """The order of a denoiser's rows, which are a text's and its image's, next to each other; all tensors are int64."""

    order: Tensor
    """The source of each joint row for JoinRows: an index into the first kind's rows followed by the second kind's."""
    first: Tensor
    """The indices of the rows of the first kind (of texts or of images) among the joint rows."""
    second: Tensor
    """The indices of the rows of the second kind (of images or of texts) among the joint rows."""

    @classmethod
    def of(cls, first: Sequence[int], second: Sequence[int], device: torch.device) -> "TokenLayout":
        """Return the order of joint rows, each image's first kind before its second, from each image's row counts."""
        pairs = zip(first, second, strict=True)
        is_second = torch.cat([torch.arange(one + other) >= one for one, other in pairs])
        order = torch.empty(len(is_second), dtype=torch.int64)
        order[~is_second] = torch.arange(sum(first))
        order[is_second] = torch.arange(sum(first), len(is_second))
        rows = ((~is_second).nonzero()[:, 0], is_second.nonzero()[:, 0])
        return cls(order.to(device), rows[0].to(device), rows[1].to(device))

    @classmethod
    def empty(cls, first: int, second: int, joint: int) -> "TokenLayout":
        """Return an order of this many rows with uninitialised indices, for a run on the meta device."""
        return cls(*(torch.empty(count, dtype=torch.int64) for count in (joint, first, second)))


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """The grid of patches of an image, `side` x `side` latents each."""

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


TEXT_POSITION_AXES = 4  # coordinates with which a text's tokens have places
"""The number of coordinates with which text tokens have positions too."""


@dataclass(frozen=True, slots=True)
class MMDiTLayout:
    """The layout of a pass of MMDiT: the order, positions and owners of its rows."""

    lengths: Mapping[RowAxis, Sequence[int]]
    """The number of rows of each image in a pass of MMDiT, by kind of rows (row axis)."""
    positions: Tensor
    """The positions of joint rows, int64 [rows, coordinates]."""
    joint: TokenLayout
    """The order of MMDiT's joint rows, in which a text precedes its image."""


@dataclass(frozen=True, slots=True)
class MMDiTGrid(ImageGrid):
    """The grid of patches of an image of MMDiT."""

    @classmethod
    def of(cls, size: tuple[int, ...], side: int) -> "MMDiTGrid":
        """Return the grid of patches of `size` latents (height, width).

        Raises:
            ValueError: If the size does not divide into patches.
        """
        return cls(*patch_grid(size, side), side)

    def lengths(self, texts: Sequence[int]) -> dict[RowAxis, list[int]]:
        """Return the number of rows of each image by kind (row axis), for texts with these numbers of tokens.

        Raises:
            ValueError: If a text is empty.
        """
        check_texts(texts)
        return {LATENTS: [self.count] * len(texts), TEXT: list(texts), JOINT: [text + self.count for text in texts]}

    def layout(self, texts: Sequence[int], coordinates: int, device: torch.device) -> MMDiTLayout:
        """Return the layout of a pass over images whose texts have these numbers of tokens.

        Raises:
            ValueError: If a text is empty.
        """
        lengths = self.lengths(texts)
        positions = torch.cat([self._positions(text, coordinates) for text in texts])
        return MMDiTLayout(lengths, positions.to(device), TokenLayout.of(texts, lengths[LATENTS], device))

    def _positions(self, text: int, coordinates: int) -> Tensor:
        """Return the positions of one image's joint rows, int64 [rows, coordinates], for a text of `text` tokens."""
        positions = torch.zeros(text + self.count, coordinates, dtype=torch.int64)
        positions[text:, 1:3] = self.coordinates()
        if coordinates == TEXT_POSITION_AXES:
            positions[:text, -1] = torch.arange(text)
        return positions

    def patches(self, latents_PKHW: Tensor) -> Tensor:
        """Cut latents [images, channels, height, width] into one row per patch, channels outermost, [N, F]."""
        images, channels = latents_PKHW.shape[:2]
        cut = latents_PKHW.view(images, channels, self.rows, self.side, self.columns, self.side)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(images * self.count, -1)

    def latents(self, rows_NF: Tensor, images: int) -> Tensor:
        """Join patch rows, as `patches` cuts them, to latents [images, channels, height, width]."""
        cut = rows_NF.view(images, self.rows, self.columns, -1, self.side, self.side).permute(0, 3, 1, 4, 2, 5)
        return cut.reshape(images, -1, self.rows * self.side, self.columns * self.side)


_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class ZImageTextLayout:
    """The layout of the rows of texts in Z-Image: lengths, positions and padding."""

    lengths: Sequence[int]
    """Number of rows of each text, padding included."""
    positions: Tensor
    """The position of each text row, int64 [rows, 3]."""
    padding: Tensor
    """The indices of padding among the rows of texts."""

    @classmethod
    def of(cls, texts: Sequence[int], places: Sequence[int], device: torch.device) -> "ZImageTextLayout":
        """Return the layout of texts with these numbers of tokens; `places` limits positions on each coordinate.

        Raises:
            ValueError: If a text is empty or exceeds the positions.
        """
        lengths = text_lengths(texts, places)
        positions = torch.zeros(sum(lengths), 3, dtype=torch.int64)
        positions[:, 0] = torch.cat([torch.arange(1, length + 1) for length in lengths])
        return cls(lengths, positions.to(device), _padding(texts, lengths).to(device))


@dataclass(frozen=True, slots=True)
class ZImageLayout:
    """The layout of a pass of Z-Image: the order, positions, padding and owners of its rows."""

    lengths: Mapping[RowAxis, Sequence[int]]
    """The number of rows of each image in a pass of Z-Image, by kind of rows (row axis)."""
    positions: Mapping[RowAxis, Tensor]
    """The position of each latent row and of each joint row in a pass of Z-Image, by kind of rows, int64 [rows, 3]."""
    padding: Tensor
    """The indices of padding among the rows of latents."""
    joint: TokenLayout
    """The order of Z-Image's joint rows, in which an image precedes its text."""


@dataclass(frozen=True, slots=True)
class ZImageGrid(ImageGrid):
    """The grid of patches of an image of Z-Image."""

    places: Sequence[int]
    """The number of positions that the model has on each coordinate."""

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, places: Sequence[int]) -> "ZImageGrid":
        """Return the grid of patches of `size` latents (height, width).

        Raises:
            ValueError: If the size does not divide into patches, or exceeds the positions.
        """
        height, width = size
        grid = cls(*patch_grid(size, side), side, places)
        if grid.rows > places[1] or grid.columns > places[2]:
            raise ValueError(
                f"latents of {height} x {width} exceed the model's positions; "
                f"give at most {places[1] * side} x {places[2] * side}"
            )
        return grid

    def lengths(self, texts: Sequence[int]) -> dict[RowAxis, list[int]]:
        """Return the number of rows of each image by kind, padding included, for texts with these numbers of tokens.

        Raises:
            ValueError: If a text is empty or exceeds the positions.
        """
        latents, own = [padded(self.count)] * len(texts), text_lengths(texts, self.places)
        return {LATENTS: latents, TEXT: own, JOINT: [a + b for a, b in zip(latents, own, strict=True)]}

    def layout(self, texts: Sequence[int], device: torch.device) -> ZImageLayout:
        """Return the layout of a pass over images whose texts have these numbers of tokens.

        Raises:
            ValueError: If a text is empty or exceeds the positions.
        """
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
        """Return the positions of one image's joint rows, int64 [rows, 3], for a text of `text` rows."""
        own = padded(self.count)
        positions = torch.zeros(own + text, 3, dtype=torch.int64)
        positions[: self.count, 0] = text + 1
        positions[: self.count, 1:] = self.coordinates()
        positions[own:, 0] = torch.arange(1, text + 1)
        return positions

    def patches(self, latents_PKHW: Tensor) -> Tensor:
        """Cut latents [images, channels, height, width] into one row per patch, channels innermost, [N, F].

        The rows of each image are padded with zeros.
        """
        images, channels = latents_PKHW.shape[:2]
        cut = latents_PKHW.view(images, channels, self.rows, self.side, self.columns, self.side)
        rows_PNF = cut.permute(0, 2, 4, 3, 5, 1).reshape(images, self.count, -1)
        return with_padding(rows_PNF).flatten(0, 1)

    def latents(self, rows_NF: Tensor, images: int) -> Tensor:
        """Join patch rows, as `patches` cuts them, to latents [images, channels, height, width], without padding."""
        own = rows_NF.view(images, padded(self.count), -1)[:, : self.count]
        cut = own.reshape(images, self.rows, self.columns, self.side, self.side, -1).permute(0, 5, 1, 3, 2, 4)
        return cut.reshape(images, -1, self.rows * self.side, self.columns * self.side)


def text_lengths(texts: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return the number of rows, padding included, of each text; `places` limits positions on each coordinate.

    Raises:
        ValueError: If a text is empty or exceeds the positions.
    """
    check_texts(texts)
    if padded(max(texts)) + 2 > places[0]:
        most = (places[0] - 2) // _MULTIPLE * _MULTIPLE
        raise ValueError(f"a text has {max(texts)} tokens, but the model has positions for {most}; shorten it")
    return [padded(tokens) for tokens in texts]


def padded(rows: int) -> int:
    """Return a number of rows rounded up to the next multiple of 32."""
    return -(-rows // _MULTIPLE) * _MULTIPLE


def with_padding(rows_xNF: Tensor) -> Tensor:
    """Append zero rows to [..., rows, F] up to the next multiple of 32 rows."""
    rows = rows_xNF.shape[-2]
    return functional.pad(rows_xNF, (0, 0, 0, padded(rows) - rows))


def _padding(own: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return the indices of padding rows, if each text or image has `own` rows, then padding up to its length."""
    every = [torch.arange(length) >= rows for rows, length in zip(own, lengths, strict=True)]
    return torch.cat(every).nonzero()[:, 0]
