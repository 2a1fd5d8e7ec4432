"""CrossDenoiser: a denoiser whose latents look at their text by cross-attention, of pictures (PixArt) or clips (Wan).

Shapes: P clips, K channels, T, H and W latents, N rows of latents, M of texts, R runs of rows of one noise level, C
condition, D hidden, F numbers of a patch.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.block_runner import BlockRunner, every_block
from ridgeline.core.models.common.cross_blocks import (
    OF_LATENTS,
    OF_TEXT,
    CrossBlock,
    CrossConditionEmbedder,
    CrossFinalLayer,
    CrossPass,
    CrossStyle,
)
from ridgeline.core.models.common.denoiser import (
    LATENTS,
    PICTURES,
    TEXT,
    Denoiser,
    Prepared,
    Texts,
    check_texts,
    for_each,
    only,
    patched,
    without,
)
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.modulated import ResidualStream
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.rotary import Angles
from ridgeline.core.ops.work import AttentionSum, AttentionWork, RowAxis, Work


@dataclass(frozen=True, slots=True)
class CrossGrid:
    """Patches of a clip: of one frame of latents, `side` x `side` each."""

    frames: int
    rows: int
    columns: int
    side: int

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, most: int | None = None) -> "CrossGrid":
        """The patches of `size` latents: (frames, height, width), or (height, width) of a picture. most: places of each
        coordinate, where there are only so many. Raises ValueError where there are no patches that fit, or more than
        places.
        """
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
        convolution's weights have them [N, F].
        """
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


_PIXELS = 8  # on a side of a latent, of the VAE that the models have which are told a picture's size (PixArt)
Level = float | Sequence[float] | Tensor
"""A noise level of all clips, of each, or of each token of each: fp32 [clips, tokens]."""


@dataclass(frozen=True, slots=True)
class CrossSizes:
    """What a config says beside the dimensions of blocks. channels: of latents. outputs: channels that it gives, of
    which the first are of use. patch: of latents, on a side. text: rows that every text is padded to; None for as many
    as it has. most: places of each coordinate, where there are only so many. sinusoids: numbers that a time becomes
    first. scale: of times. sized: whether it is told how large a picture is.
    """

    channels: int
    outputs: int
    patch: int
    text_width: int
    text: int | None
    most: int | None
    sinusoids: int
    scale: float
    sized: bool = False


@dataclass(frozen=True, slots=True)
class CrossLayout:
    """The rows of a pass.

    grid: of a clip. runs: rows of each run of one noise level. lengths: by space, rows of each clip or text.
    positions: frame, line and column of each row. told: as of CrossConditionEmbedder.
    """

    grid: CrossGrid
    runs: Sequence[int]
    lengths: Mapping[RowAxis, Sequence[int]]
    positions: Tensor
    told: Sequence[Tensor]


class CrossDenoiser(Denoiser):
    """Blocks of two attentions, with conditions and patches around them. Rows of texts are computed in `read` alone, so
    that a pass that is given what was prepared runs none.
    """

    spaces = (LATENTS, TEXT, PICTURES)
    block_lists = ("blocks",)

    def __init__(self, d: Dimensions, sizes: CrossSizes, style: CrossStyle, final: Dimensions) -> None:
        """final: the dimensions of the last norm."""
        super().__init__()
        self.storage, self.sizes, self.hidden = d.storage, sizes, d.hidden
        self.channels, self.patch, self.text_width = sizes.channels, sizes.patch, sizes.text_width
        embedding = d.whole(sizes.patch**2 * sizes.channels, d.hidden, bias=True)
        self.patch_embedding = Linear(replace(embedding, kernel=sizes.patch))
        self.condition_embedder = CrossConditionEmbedder(d, sizes.sinusoids, sizes.text_width, sized=sizes.sized)
        self.blocks = nn.ModuleList(CrossBlock(d, style, first=layer == 0) for layer in range(d.layers))
        self.final = CrossFinalLayer(final, sizes.patch**2 * sizes.outputs)

    @abstractmethod
    def _placed(self, x_ND: Tensor, positions_N3: Tensor, grid: CrossGrid) -> tuple[Tensor, Angles | None]:
        """Tokens with their positions in them, or the angles of these."""

    # -- what runs ----------------------------------------------------------------------------------------------------

    @override
    def prepare(self, texts: Sequence[Tensor]) -> Prepared:
        """As Denoiser.prepare: keys and values of every block."""
        lengths = self._text_lengths([len(text) for text in texts])
        rows_MC = texts[0].new_zeros(sum(lengths), self.text_width, dtype=self.storage.dtype)
        for own_MC, text_MC in zip(torch.split(rows_MC, lengths), texts, strict=True):
            own_MC[: len(text_MC)] = text_MC
        return Prepared(tuple(map(len, texts)), self.read(rows_MC))

    def read(self, texts_MC: Tensor) -> tuple[Tensor, ...]:
        """Rows of texts [M, text_width] -> keys and values of each block in turn."""
        text_MD = self.condition_embedder.text_embedder(texts_MC)
        blocks = (block for block in self.blocks if isinstance(block, CrossBlock))
        return tuple(each for block in blocks for each in block.keys_values(text_MD))

    @override
    def forward(
        self,
        latents_PCHW: Tensor,
        t: Level,
        texts: Texts,
        *,
        pooled: Tensor | None = None,
        guidance: float | Sequence[float] | None = None,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        clips, device = len(latents_PCHW), latents_PCHW.device
        self.check_conditions(clips, pooled, guidance)
        prepared = self.prepared(texts, clips)
        grid = self.grid(tuple(latents_PCHW.shape[2:]))
        levels, runs = _runs(t, clips, grid.count)
        lengths = {LATENTS: [grid.count] * clips, TEXT: self._text_lengths(prepared.lengths)}
        latents_PKTHW = latents_PCHW if self.clips else latents_PCHW[:, :, None]
        # In float64, as t is: a step of training is a whole number, and fp32 would miss it.
        times_R = (torch.tensor(levels, dtype=torch.float64) * self.sizes.scale).float().to(device)
        told = self._told(grid, len(runs), device) if self.sizes.sized else ()
        layout = CrossLayout(grid, runs, lengths, grid.positions(clips).to(device), told)
        patches_NF = grid.patches(latents_PKTHW).to(self.storage.dtype)
        rows_NF = self.denoise(patches_NF, times_R, prepared.rows, layout, walk)
        out_PKTHW = grid.latents(rows_NF, clips)[:, : self.channels].to(latents_PCHW.dtype)
        return out_PKTHW if self.clips else out_PKTHW[:, :, 0]

    def denoise(
        self,
        patches_NF: Tensor,
        times_R: Tensor,
        text: Sequence[Tensor],
        layout: CrossLayout,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Patches of latents [N, F], times of runs fp32, and what `read` gave -> what is predicted of each patch
        [N, F].
        """
        x_ND, angles = self._placed(self.patch_embedding(patches_NF), layout.positions, layout.grid)
        embedded_RD, condition_RC = self.condition_embedder(times_R, layout.told)
        given = CrossPass(condition_RC, layout.runs, angles, Uncached([], layout.lengths))
        (block, *others), ((keys, values), *pairs) = self.blocks, zip(text[::2], text[1::2], strict=True)

        def first(stream: ResidualStream) -> ResidualStream:
            out: ResidualStream = block(stream, (keys, values), given)
            return out

        def rest(stream: ResidualStream) -> ResidualStream:
            for other, pair in zip(others, pairs, strict=True):
                stream = other(stream, pair, given)
            return stream

        out_NF: Tensor = self.final(walk(ResidualStream(x_ND), None, first, rest), embedded_RD, layout.runs)
        return out_NF

    def grid(self, size: tuple[int, ...]) -> CrossGrid:
        """The patches of a clip of `size` latents. Raises ValueError as Denoiser.forward."""
        if len(size) != 2 + self.clips:
            wanted = "frames, height and width" if self.clips else "height and width"
            raise ValueError(f"latents of {' x '.join(map(str, size))}; this denoiser has {wanted}")
        return CrossGrid.of(size, self.patch, self.sizes.most)

    def _told(self, grid: CrossGrid, runs: int, device: torch.device | None = None) -> tuple[Tensor, ...]:
        """Height and width of a picture in pixels, and their ratio, for each run of rows."""
        height, width = (count * self.patch * _PIXELS for count in (grid.rows, grid.columns))
        return tuple(
            torch.full((runs,), each, dtype=torch.float32, device=device) for each in (height, width, height / width)
        )

    def _text_lengths(self, texts: Sequence[int]) -> list[int]:
        """Rows of texts that have so many tokens. Raises ValueError for none, or more than there is place for."""
        check_texts(texts)
        if self.sizes.text is None:
            return list(texts)
        if max(texts) > self.sizes.text:
            raise ValueError(f"a text has {max(texts)} tokens, and the model reads {self.sizes.text}; shorten it")
        return [self.sizes.text] * len(texts)

    # -- what it costs ------------------------------------------------------------------------------------------------

    @override
    def work(self, size: tuple[int, ...], texts: Sequence[int], *, levels: int = 1) -> Work:
        """As Denoiser.work. levels: runs of tokens in a clip that have a noise level each."""
        latents, lengths = self.grid(size).count, self._text_lengths(texts)
        rows = {LATENTS: latents * len(texts), TEXT: sum(lengths), PICTURES: levels * len(texts)}
        full = AttentionSum(1, latents, latents * latents, latents, latents)
        cross = [AttentionSum(1, latents, latents * length, length) for length in lengths]
        attention = {OF_LATENTS: AttentionWork.of([full] * len(texts)), OF_TEXT: AttentionWork.of(cross)}
        return Work(rows, len(texts), attention)

    @override
    def prepare_work(self, texts: Sequence[int]) -> Work:
        return only(self.work((1, self.patch, self.patch)[not self.clips :], texts), TEXT)

    @override
    def pass_work(self, size: tuple[int, ...], texts: Sequence[int], *, levels: int = 1) -> Work:
        """As Denoiser.pass_work, and `work`."""
        return without(self.work(size, texts, levels=levels), TEXT)

    @override
    def _outline(self, rows: Mapping[RowAxis, int]) -> None:
        dtype, sizes = self.storage.dtype, self.sizes
        text = self.read(torch.empty(rows[TEXT], self.text_width, dtype=dtype))
        runs = rows[PICTURES]
        lengths = {space: [count] for space, count in rows.items()}
        grid, positions_N3 = CrossGrid(1, 1, 1, self.patch), torch.empty(rows[LATENTS], 3, dtype=torch.int64)
        layout = CrossLayout(grid, [1] * runs, lengths, positions_N3, self._told(grid, runs) if sizes.sized else ())
        patches_NF = torch.empty(rows[LATENTS], sizes.patch**2 * sizes.channels, dtype=dtype)
        self.denoise(patches_NF, torch.empty(runs), text, layout)


def _runs(t: Level, clips: int, tokens: int) -> tuple[Sequence[float], Sequence[int]]:
    """Noise levels of runs of tokens that share one, and how many tokens each run has."""
    if not isinstance(t, Tensor):
        return for_each(t, clips), [tokens] * clips
    if t.shape != (clips, tokens):
        raise ValueError(f"noise levels are {list(t.shape)}; give one a token, [{clips}, {tokens}]")
    levels, runs = list[float](), list[int]()
    for own in t:
        values, counts = own.unique_consecutive(return_counts=True)
        levels += values.tolist()
        runs += counts.tolist()
    return levels, runs
