"""The blocks of both halves of an image autoencoder (Rombach et al., arXiv:2112.10752).

Residual blocks of convolutions run at one resolution after the other, with attention over all pixels at the coarsest.
Modules have the names that diffusers gives their tensors.

Shapes: P pixels of all images at a resolution, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.convolution2d import Convolution2d, Downsample, Upsample
from ridgeline.core.ops.group_norm import GroupNorm
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.work import AttentionPattern, RowAxis

_EPS = 1e-6  # of every norm, which configs do not state


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths of an autoencoder's resolutions, and the places of its attention."""

    channels: tuple[int, ...]
    """The channels at each resolution of an image autoencoder, the finest first."""
    groups: int
    """The number of channel groups of every group norm in an image autoencoder."""
    attends: bool
    """Whether the middle block of an image autoencoder has attention."""
    dtype: torch.dtype
    attends_often: bool = False
    """Whether attention also follows each residual block at an autoencoder's coarsest resolution."""
    stem: int | None = None
    """The channels of the encoder's first convolution; None for those of the finest resolution."""
    pointwise: bool = False
    """Whether an autoencoder's checkpoints store the matrices of attention as 1x1 convolutions."""

    def norm(self, channels: int, *, silu: bool = True) -> GroupNorm:
        """Return a group norm of `channels` channels, with an autoencoder's number of groups."""
        return GroupNorm(channels, self.groups, _EPS, self.dtype, silu=silu)


class Resnet(nn.Module):
    """A residual block: x + conv(silu(norm(conv(silu(norm(x)))))) (He et al., arXiv:1603.05027).

    A 1x1 convolution of x changes the number of channels if necessary.
    """

    def __init__(self, w: Widths, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = w.norm(inputs)
        self.conv1 = Convolution2d(inputs, outputs, w.dtype)
        self.norm2 = w.norm(outputs)
        self.conv2 = Convolution2d(outputs, outputs, w.dtype)
        self.conv_shortcut = Convolution2d(inputs, outputs, w.dtype, kernel=1) if inputs != outputs else None
        self.add = ResidualAdd(outputs, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """Return the residual block's output [pixels, outputs] for x_PC [pixels, inputs], which it may overwrite."""
        # One expression: a variable for an intermediate result would keep it alive at the peak of memory use.
        y_PC = self.conv2(self.norm2(self.conv1(self.norm1(x_PC, grid), grid), grid), grid)
        if self.conv_shortcut is not None:
            x_PC = self.conv_shortcut(x_PC, grid)
        return self.add(x_PC, y_PC)


class PixelAttention(nn.Module):
    """An attention block: x + attention(norm(x)) over all pixels of an image, with one head as wide as a pixel."""

    def __init__(self, w: Widths, space: RowAxis) -> None:
        """Build an attention block over pixels; `space` is the kind of rows (row axis) that they are."""
        super().__init__()
        width, self.space = w.channels[-1], space
        spec = MatrixSpec(width, width, w.dtype, bias=True, kernel=1 if w.pointwise else 0)
        self.group_norm = w.norm(width, silu=False)
        self.qkv = Projections({"to_q": spec, "to_k": spec, "to_v": spec})
        reach = AttentionPattern("full", query_axis=space)
        self.attend = Attention(0, 1, KVSpec(1, width, width, reach, w.dtype, whole_sequences=True))
        self.to_out = nn.ModuleList([Linear(spec)])
        self.add = ResidualAdd(width, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """Return the attention block's output [pixels, width] for x_PC [pixels, width], which it overwrites."""
        each = Uncached([], {self.space: [grid.each] * grid.images})
        q_P1C, k_P1C, v_P1C = (part[:, None] for part in self.qkv(self.group_norm(x_PC, grid)))
        return self.add(x_PC, self.to_out[0](self.attend(q_P1C, k_P1C, v_P1C, each)))


class MiddleBlock(nn.Module):
    """The middle of an encoder or decoder at the coarsest resolution: residual block, attention, residual block."""

    def __init__(self, w: Widths, space: RowAxis) -> None:
        super().__init__()
        width = w.channels[-1]
        self.resnets = nn.ModuleList(Resnet(w, width, width) for _ in range(2))
        self.attentions = nn.ModuleList([PixelAttention(w, space)] if w.attends else [])

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid) -> Tensor:
        """Return the output [pixels, width] of an autoencoder's middle block for x_PC [pixels, width]."""
        first, second = self.resnets
        x_PC = first(x_PC, grid)
        for attention in self.attentions:
            x_PC = attention(x_PC, grid)
        return second(x_PC, grid)


class Downsampler(nn.Module):
    """The step from one resolution to the next coarser one; checkpoints call it `downsamplers.0`."""

    def __init__(self, w: Widths, channels: int) -> None:
        super().__init__()
        self.conv = Downsample(channels, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid, halved: PixelGrid) -> Tensor:
        """Return pixel rows of the halved grid [pixels, channels] for x_PC [pixels of the grid, channels]."""
        return self.conv(x_PC, grid, halved)


class Upsampler(nn.Module):
    """The step from one resolution to the next finer one; checkpoints call it `upsamplers.0`."""

    def __init__(self, w: Widths, channels: int) -> None:
        super().__init__()
        self.upsample = Upsample(channels, w.dtype)
        self.conv = Convolution2d(channels, channels, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grid: PixelGrid, doubled: PixelGrid) -> Tensor:
        """Return pixel rows of the doubled grid [pixels, channels] for x_PC [pixels of the grid, channels]."""
        return self.conv(self.upsample(x_PC, grid, doubled), doubled)


class DownBlock(nn.Module):
    """The residual blocks of an encoder at one resolution, and the step to the next coarser one, if there is one.

    Attention may follow each residual block.
    """

    def __init__(
        self, w: Widths, inputs: int, outputs: int, depth: int, *, last: bool, attends: RowAxis | None = None
    ) -> None:
        """Build the residual blocks of one resolution of an image autoencoder's encoder.

        Args:
            w: The widths of the autoencoder.
            inputs: Channels before the first residual block.
            outputs: Channels after each residual block.
            depth: Number of residual blocks.
            last: Whether no resolution follows.
            attends: The row axis of attention after each residual block; None for none.
        """
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(w, outputs if i else inputs, outputs) for i in range(depth))
        self.attentions = nn.ModuleList([] if attends is None else [PixelAttention(w, attends) for _ in range(depth)])
        self.downsamplers = nn.ModuleList([] if last else [Downsampler(w, outputs)])


class UpBlock(nn.Module):
    """The residual blocks of a decoder at one resolution, and the step to the next finer one, if there is one.

    Attention may follow each residual block.
    """

    def __init__(
        self, w: Widths, inputs: int, outputs: int, depth: int, *, last: bool, attends: RowAxis | None = None
    ) -> None:
        """Build one resolution's residual blocks of an image decoder; the arguments are those of `DownBlock`."""
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(w, outputs if i else inputs, outputs) for i in range(depth))
        self.attentions = nn.ModuleList([] if attends is None else [PixelAttention(w, attends) for _ in range(depth)])
        self.upsamplers = nn.ModuleList([] if last else [Upsampler(w, outputs)])


class ImageEncoder(nn.Module):
    """The encoder of an image autoencoder: pixels to the numbers of latents, through ever coarser resolutions."""

    def __init__(self, w: Widths, inputs: int, outputs: int, depth: int, space: RowAxis) -> None:
        """Build the encoder of an image autoencoder.

        Args:
            w: The widths of the autoencoder.
            inputs: Numbers per pixel.
            outputs: Numbers per latent pixel.
            depth: Residual blocks per resolution.
            space: The row axis of the latents.
        """
        super().__init__()
        widths, last = w.channels, len(w.channels) - 1
        stem = w.stem or widths[0]
        self.conv_in = Convolution2d(inputs, stem, w.dtype)
        self.down_blocks = nn.ModuleList(
            DownBlock(
                w, widths[i - 1] if i else stem, width, depth, last=i == last,
                attends=space if w.attends_often and i == last else None,
            )
            for i, width in enumerate(widths)
        )  # fmt: skip
        self.mid_block = MiddleBlock(w, space)
        self.conv_norm_out = w.norm(widths[-1])
        self.conv_out = Convolution2d(widths[-1], outputs, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return latent rows [pixels of the last grid, outputs] for x_PC [pixels of the first grid, inputs].

        `grids` are the resolutions, the finest first.
        """
        x_PC = self.conv_in(x_PC, grids[0])
        for level, block in enumerate(self.down_blocks):
            assert isinstance(block, DownBlock)
            for resnet, attention in zip_longest(block.resnets, block.attentions):
                x_PC = resnet(x_PC, grids[level])
                if attention is not None:
                    x_PC = attention(x_PC, grids[level])
            for downsampler in block.downsamplers:
                x_PC = downsampler(x_PC, grids[level], grids[level + 1])
        x_PC = self.mid_block(x_PC, grids[-1])
        return self.conv_out(self.conv_norm_out(x_PC, grids[-1]), grids[-1])


class ImageDecoder(nn.Module):
    """The decoder of an image autoencoder: latents to pixels, through ever finer resolutions.

    It has one residual block more per resolution than the encoder.
    """

    def __init__(self, w: Widths, inputs: int, outputs: int, depth: int, space: RowAxis) -> None:
        """Build the decoder of an image autoencoder.

        Args:
            w: The widths of the autoencoder.
            inputs: Numbers per latent pixel.
            outputs: Numbers per pixel.
            depth: Residual blocks per resolution of the encoder; the decoder has one more.
            space: The row axis of the latents.
        """
        super().__init__()
        widths = w.channels[::-1]
        self.conv_in = Convolution2d(inputs, widths[0], w.dtype)
        self.mid_block = MiddleBlock(w, space)
        self.up_blocks = nn.ModuleList(
            UpBlock(
                w, widths[max(0, i - 1)], width, depth + 1, last=i == len(widths) - 1,
                attends=space if w.attends_often and not i else None,
            )
            for i, width in enumerate(widths)
        )  # fmt: skip
        self.conv_norm_out = w.norm(widths[-1])
        self.conv_out = Convolution2d(widths[-1], outputs, w.dtype)

    @override
    def forward(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return pixel rows [pixels of the first grid, outputs] for x_PC [pixels of the last grid, inputs].

        `grids` are the resolutions, the finest first.
        """
        x_PC = self.mid_block(self.conv_in(x_PC, grids[-1]), grids[-1])
        # One loop instead of calls of blocks: a caller would keep a block's input alive until the block ends.
        for level, block in zip(reversed(range(len(grids))), self.up_blocks, strict=True):
            assert isinstance(block, UpBlock)
            for resnet, attention in zip_longest(block.resnets, block.attentions):
                x_PC = resnet(x_PC, grids[level])
                if attention is not None:
                    x_PC = attention(x_PC, grids[level])
            for upsampler in block.upsamplers:
                x_PC = upsampler(x_PC, grids[level], grids[level - 1])
        return self.conv_out(self.conv_norm_out(x_PC, grids[0]), grids[0])
