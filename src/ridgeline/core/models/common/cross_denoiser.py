"""CrossDenoiser: a denoiser whose latents read their text by cross-attention, of images (PixArt) or video (Wan).

Shapes: P images or videos, K channels, T, H and W latents, N rows of latents, M of texts, R runs of rows of one noise
level, C condition, D hidden, F numbers of a patch.
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
    CONDITIONS,
    LATENTS,
    TEXT,
    Denoiser,
    Prepared,
    Texts,
    check_texts,
    for_each,
    only,
    patch_grid,
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
    """The grid of patches of a video's latents: each patch is `side` x `side` latents of one frame."""

    frames: int
    """The number of frames of a video's latents; 1 for an image."""
    rows: int
    """The number of lines of patches in a frame."""
    columns: int
    """The number of columns of patches in a frame."""
    side: int
    """The height and width of a patch in latents."""

    @classmethod
    def of(cls, size: tuple[int, ...], side: int, most: int | None = None) -> "CrossGrid":
        """Return the grid of patches of an image's or a video's latents.

        Args:
            size: (frames, height, width) of the latents; (height, width) for an image.
            side: Latents on a side of a patch.
            most: The maximum number of positions on each axis; None without a limit.

        Raises:
            ValueError: If the size does not divide into patches, or exceeds the positions.
        """
        *frames, height, width = size
        if frames == [0]:
            raise ValueError(f"latents of {_written(size)} have no frames; give at least one")
        grid = cls(frames[0] if frames else 1, *patch_grid((height, width), side), side)
        if most is not None and max(grid.frames, grid.rows, grid.columns) > most:
            fitting = (most, most * side, most * side)[3 - len(size) :]
            raise ValueError(
                f"latents of {_written(size)} exceed the model's positions; give at most {_written(fitting)}"
            )
        return grid

    @property
    def count(self) -> int:
        """The number of patches of an image or a video."""
        return self.frames * self.rows * self.columns

    def positions(self, videos: int) -> Tensor:
        """Return the frame, row and column of each patch of `videos` videos, int64 [rows, 3]."""
        axes = (torch.arange(count) for count in (self.frames, self.rows, self.columns))
        return torch.cartesian_prod(*axes).repeat(videos, 1)

    def patches(self, latents_PKTHW: Tensor) -> Tensor:
        """Cut latents [videos, channels, frames, height, width] into one row per patch, [N, F].

        The numbers of a channel lie together, as in the weights of a convolution.
        """
        videos, channels = latents_PKTHW.shape[:2]
        cut = latents_PKTHW.reshape(videos, channels, self.frames, self.rows, self.side, self.columns, self.side)
        return cut.permute(0, 2, 3, 5, 1, 4, 6).reshape(videos * self.count, -1)

    def latents(self, rows_NF: Tensor, videos: int) -> Tensor:
        """Join patch rows [N, F], channels innermost, to latents [videos, channels, frames, height, width]."""
        cut = rows_NF.view(videos, self.frames, self.rows, self.columns, self.side, self.side, -1)
        return cut.permute(0, 6, 1, 2, 4, 3, 5).reshape(
            videos, -1, self.frames, self.rows * self.side, self.columns * self.side
        )


def _written(size: tuple[int, ...]) -> str:
    """Return a size of latents as text, as `3 x 64 x 64`."""
    return " x ".join(map(str, size))


_PIXELS = 8  # per latent on a side, in the VAE of PixArt, whose condition includes the image's size
Level = float | Sequence[float] | Tensor
"""The noise level of all images, of each image, or of each token of each: fp32 [images, tokens]."""


@dataclass(frozen=True, slots=True)
class CrossSizes:
    """The settings of a denoiser's config besides its blocks: channels, patches, text width, timestep embedding."""

    channels: int
    """The number of channels of a denoiser's latents."""
    outputs: int
    """The channels that a denoiser predicts; only the first `channels` are used."""
    patch: int
    """Height and width of a patch in latents."""
    text_width: int
    """Numbers per token of the text encoder's states."""
    text: int | None
    """Rows to which every text is padded; None if texts are not padded."""
    max_positions: int | None
    """The maximum number of patch positions on each axis; None without a limit."""
    sinusoids: int
    """Size of the sinusoidal embedding of a timestep."""
    scale: float
    """The factor that turns noise levels into timesteps."""
    sized: bool = False
    """Whether a denoiser also reads the size of the image as a condition."""


@dataclass(frozen=True, slots=True)
class CrossLayout:
    """The layout of a denoising pass: its rows, their positions, and the rows that share a noise level."""

    grid: CrossGrid
    """The grid of patches of one image or video."""
    runs: Sequence[int]
    """The number of consecutive latent rows that share each noise level."""
    lengths: Mapping[RowAxis, Sequence[int]]
    """The number of rows of each image (key LATENTS) and of each text (key TEXT) in a denoising pass."""
    positions: Tensor
    """The position of each latent row: frame, row and column of its patch."""
    conditions: Sequence[Tensor]
    """The height, width and aspect ratio of each run's image, if the model reads them as a condition; else empty."""


class CrossDenoiser(Denoiser):
    """A denoiser whose blocks have self-attention over latents and cross-attention to a text.

    Only `read` computes rows of texts, so that a pass with a prepared text computes none.
    """

    row_axes = (LATENTS, TEXT, CONDITIONS)
    block_lists = ("blocks",)

    def __init__(self, d: Dimensions, sizes: CrossSizes, style: CrossStyle, final: Dimensions) -> None:
        """Build a denoiser's blocks, and the embeddings and final layer around them.

        Args:
            d: The sizes of the blocks.
            sizes: The other sizes.
            style: The differences between families.
            final: The sizes of the final norm, which may have another epsilon.
        """
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
        """Return the latent tokens with their positions added, or the tokens and their rotary angles."""

    # -- what runs ----------------------------------------------------------------------------------------------------

    @override
    def prepare(self, texts: Sequence[Tensor]) -> Prepared:
        """Compute the keys and values of texts in every block of a denoiser."""
        lengths = self._text_lengths([len(text) for text in texts])
        rows_MC = texts[0].new_zeros(sum(lengths), self.text_width, dtype=self.storage.dtype)
        for own_MC, text_MC in zip(torch.split(rows_MC, lengths), texts, strict=True):
            own_MC[: len(text_MC)] = text_MC
        return Prepared(tuple(map(len, texts)), self.read(rows_MC))

    def read(self, texts_MC: Tensor) -> tuple[Tensor, ...]:
        """Return the keys and values of a denoiser's blocks, block by block, from rows of texts [M, text_width]."""
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
        videos, device = len(latents_PCHW), latents_PCHW.device
        self.check_conditions(videos, pooled, guidance)
        prepared = self.prepared(texts, videos)
        grid = self.grid(tuple(latents_PCHW.shape[2:]))
        levels, runs = _runs(t, videos, grid.count)
        lengths = {LATENTS: [grid.count] * videos, TEXT: self._text_lengths(prepared.lengths)}
        latents_PKTHW = latents_PCHW if self.generates_video else latents_PCHW[:, :, None]
        # In float64, as t is: training steps are integers, and fp32 would round to other numbers.
        times_R = (torch.tensor(levels, dtype=torch.float64) * self.sizes.scale).float().to(device)
        conditions = self._conditions(grid, len(runs), device) if self.sizes.sized else ()
        layout = CrossLayout(grid, runs, lengths, grid.positions(videos).to(device), conditions)
        patches_NF = grid.patches(latents_PKTHW).to(self.storage.dtype)
        rows_NF = self.denoise(patches_NF, times_R, prepared.rows, layout, walk)
        out_PKTHW = grid.latents(rows_NF, videos)[:, : self.channels].to(latents_PCHW.dtype)
        return out_PKTHW if self.generates_video else out_PKTHW[:, :, 0]

    def denoise(
        self,
        patches_NF: Tensor,
        times_R: Tensor,
        text: Sequence[Tensor],
        layout: CrossLayout,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Run a denoiser's blocks on patches of latents, and return the prediction for each patch, [N, F].

        Args:
            patches_NF: Patches of latents [N, F].
            times_R: The timestep of each run, fp32.
            text: The result of `read`.
            layout: The rows of the pass.
            walk: The function that runs the blocks.
        """
        x_ND, angles = self._placed(self.patch_embedding(patches_NF), layout.positions, layout.grid)
        embedded_RD, condition_RC = self.condition_embedder(times_R, layout.conditions)
        given = CrossPass(condition_RC, layout.runs, angles, Uncached([], layout.lengths))
        (block, *others), ((keys, values), *pairs) = self.blocks, zip(text[::2], text[1::2], strict=True)

        def first(stream: ResidualStream) -> ResidualStream:
            return block(stream, (keys, values), given)

        def rest(stream: ResidualStream) -> ResidualStream:
            for other, pair in zip(others, pairs, strict=True):
                stream = other(stream, pair, given)
            return stream

        return self.final(walk(ResidualStream(x_ND), None, first, rest), embedded_RD, layout.runs)

    def grid(self, size: tuple[int, ...]) -> CrossGrid:
        """Return the grid of patches of one image or video of `size` latents.

        Raises:
            ValueError: If the size has the wrong number of axes, does not divide into patches, or exceeds the
                positions.
        """
        if len(size) != 2 + self.generates_video:
            wanted = "frames, height and width" if self.generates_video else "height and width"
            raise ValueError(f"latents have the size {' x '.join(map(str, size))}; this denoiser needs {wanted}")
        return CrossGrid.of(size, self.patch, self.sizes.max_positions)

    def _conditions(self, grid: CrossGrid, runs: int, device: torch.device | None = None) -> tuple[Tensor, ...]:
        """Return the height and width of the image in pixels and their ratio, each fp32 [runs]."""
        height, width = (count * self.patch * _PIXELS for count in (grid.rows, grid.columns))
        return tuple(
            torch.full((runs,), each, dtype=torch.float32, device=device) for each in (height, width, height / width)
        )

    def _text_lengths(self, texts: Sequence[int]) -> list[int]:
        """Return the number of rows of each text, padding included, from the texts' numbers of tokens.

        Raises:
            ValueError: If there is no text, or one is empty or too long.
        """
        check_texts(texts)
        if self.sizes.text is None:
            return list(texts)
        if max(texts) > self.sizes.text:
            raise ValueError(
                f"a text has {max(texts)} tokens, but the model reads at most {self.sizes.text}; shorten it"
            )
        return [self.sizes.text] * len(texts)

    # -- what it costs ------------------------------------------------------------------------------------------------

    @override
    def work(self, size: tuple[int, ...], texts: Sequence[int], *, levels: int = 1) -> Work:
        """Return the rows and the attention of a denoising pass over images of `size` latents, texts included.

        `levels` is the number of runs of tokens per image that have a noise level of their own.
        """
        latents, lengths = self.grid(size).count, self._text_lengths(texts)
        rows = {LATENTS: latents * len(texts), TEXT: sum(lengths), CONDITIONS: levels * len(texts)}
        full = AttentionSum(1, latents, latents * latents, latents, latents)
        cross = [AttentionSum(1, latents, latents * length, length) for length in lengths]
        attention = {OF_LATENTS: AttentionWork.of([full] * len(texts)), OF_TEXT: AttentionWork.of(cross)}
        return Work(rows, len(texts), attention)

    @override
    def prepare_work(self, texts: Sequence[int]) -> Work:
        return only(self.work((1, self.patch, self.patch)[not self.generates_video :], texts), TEXT)

    @override
    def pass_work(self, size: tuple[int, ...], texts: Sequence[int], *, levels: int = 1) -> Work:
        """Return the rows and the attention of a denoising pass whose texts' keys and values are already computed.

        `levels` is the number of runs of tokens per image that have a noise level of their own.
        """
        return without(self.work(size, texts, levels=levels), TEXT)

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        dtype, sizes = self.storage.dtype, self.sizes
        text = self.read(torch.empty(rows[TEXT], self.text_width, dtype=dtype))
        runs = rows[CONDITIONS]
        lengths = {space: [count] for space, count in rows.items()}
        grid, positions_N3 = CrossGrid(1, 1, 1, self.patch), torch.empty(rows[LATENTS], 3, dtype=torch.int64)
        layout = CrossLayout(
            grid, [1] * runs, lengths, positions_N3, self._conditions(grid, runs) if sizes.sized else ()
        )
        patches_NF = torch.empty(rows[LATENTS], sizes.patch**2 * sizes.channels, dtype=dtype)
        self.denoise(patches_NF, torch.empty(runs), text, layout)


def _runs(t: Level, videos: int, tokens: int) -> tuple[Sequence[float], Sequence[int]]:
    """Return the noise level of each run of tokens that share one, and the number of tokens of each run."""
    if not isinstance(t, Tensor):
        return for_each(t, videos), [tokens] * videos
    if t.shape != (videos, tokens):
        raise ValueError(f"noise levels have shape {list(t.shape)}; give one per token, [{videos}, {tokens}]")
    levels, runs = list[float](), list[int]()
    for own in t:
        values, counts = own.unique_consecutive(return_counts=True)
        levels += values.tolist()
        runs += counts.tolist()
    return levels, runs
