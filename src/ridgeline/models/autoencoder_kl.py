"""AutoencoderKL (Rombach et al., arXiv:2112.10752): pictures to latents and back. Stable Diffusion, FLUX.1 and Z-Image
have it.

Latents are those of a denoiser at its edge: (z - shift) x scale of what the encoder gives. Pixels are from -1 to 1.

Shapes: B images, C channels of latents, H, W lines and columns, P pixels of all images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.models.alive import peak_bytes
from ridgeline.models.autoencoder_blocks import Decoder, Encoder, Widths
from ridgeline.models.fields import MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.models.image_autoencoder import MAX_RESOLUTIONS, ImageAutoencoder
from ridgeline.models.storage import Storage
from ridgeline.models.tiling import Tiling, tiled
from ridgeline.ops.affine import Affine
from ridgeline.ops.convolution2d import Convolution2d
from ridgeline.ops.grid import Grid
from ridgeline.ops.work import Space

ARCHITECTURE = "AutoencoderKL"
OLD_NAMES = tuple(
    (f".attentions.0.{old}.", f".attentions.0.{new}.")
    for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0"))
)
"""Tensors of attention as checkpoints of Stable Diffusion 1 and 2 call them."""
_LOGVAR = (-30.0, 20.0)  # what the encoder's is brought within


@dataclass(frozen=True, slots=True)
class Posterior:
    """A normal distribution for each number of latents: mean and logarithm of the variance, fp32 [B, C, H, W]."""

    mean: Tensor
    logvar: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Latents drawn from it, fp32 [B, C, H, W]. generator: where the noise comes from, made on its device."""
        device = self.mean.device if generator is None else generator.device
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=device)
        return self.mean + (0.5 * self.logvar).exp() * noise.to(self.mean.device)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a config says beside widths: channels of pixels in and out and of latents, residual blocks at a resolution,
    how latents are normalised, and whether a product of single pixels stands between latents and either half."""

    inputs: int
    outputs: int
    latents: int
    depth: int
    scale: float
    shift: float
    quant: bool
    post_quant: bool


class AutoencoderKL(ImageAutoencoder):
    """An autoencoder whose latents are numbers of a normal distribution."""

    def __init__(self, widths: Widths, shape: Shape, storage: Storage) -> None:
        super().__init__(len(widths.channels), storage)
        self.shape, self.inputs = shape, shape.inputs
        latents, dtype = shape.latents, widths.dtype
        self.encoder = Encoder(widths, shape.inputs, 2 * latents, shape.depth, self.encoder_spaces[-1])
        self.quant_conv = Convolution2d(2 * latents, 2 * latents, dtype, kernel=1) if shape.quant else None
        self.normalise_mean = Affine(latents, shape.scale, -shape.shift * shape.scale)
        self.normalise_logvar = Affine(latents, 1.0, 2 * math.log(shape.scale), limits=_LOGVAR)
        self.denormalise = Affine(latents, 1 / shape.scale, shape.shift)
        self.post_quant_conv = Convolution2d(latents, latents, dtype, kernel=1) if shape.post_quant else None
        self.decoder = Decoder(widths, latents, shape.outputs, shape.depth, self.decoder_spaces[-1])

    # -- what runs ----------------------------------------------------------------------------------------------------

    def decode(self, latents_BCHW: Tensor, tiling: Tiling | None = None) -> Tensor:
        """latents_BCHW [B, C, H, W] as a denoiser has them -> pixels [B, outputs, factor x H, factor x W] about -1 to
        1, in the model's dtype; fp32 where they are more than one tile of `tiling`. Raises ValueError."""
        grid = self._grid(latents_BCHW, self.shape.latents, "latents")
        if tiling is not None and tiling.tiles(grid) > 1:
            return tiled(self.decode, latents_BCHW, tiling, self.factor, self.shape.outputs)
        grids = self._grids(grid)
        return grids[0].to_images(self._decode(grid.to_rows(latents_BCHW), grids))

    def encode(self, pixels_BCHW: Tensor) -> Posterior:
        """pixels_BCHW [B, inputs, H, W] from -1 to 1, H and W multiples of `factor` -> the latents that they may be.
        Raises ValueError."""
        latents = self._latents_of(pixels_BCHW)
        grids = self._grids(latents)
        mean_PC, logvar_PC = self._encode(grids[0].to_rows(pixels_BCHW), grids)
        return Posterior(latents.to_images(mean_PC), latents.to_images(logvar_PC))

    def _decode(self, x_PC: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Latents [pixels of the last of the grids, C]; grids: the finest first -> pixels [those of the first, 3]."""
        x_PC = self.denormalise(x_PC)
        if self.post_quant_conv is not None:
            x_PC = self.post_quant_conv(x_PC, grids[-1])
        out: Tensor = self.decoder(x_PC, grids)
        return out

    def _encode(self, x_PC: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """The other way round -> mean and logarithm of the variance [pixels of the last of the grids, C]."""
        x_PC = self.encoder(x_PC, grids)
        if self.quant_conv is not None:
            x_PC = self.quant_conv(x_PC, grids[-1])
        mean_PC, logvar_PC = x_PC.chunk(2, dim=1)
        return self.normalise_mean(mean_PC), self.normalise_logvar(logvar_PC)

    # -- what it costs ------------------------------------------------------------------------------------------------

    def decode_bytes(self, latents: Grid, tiling: Tiling | None = None) -> int:
        """Most bytes of activations at once while latents of this size are decoded, those included; of a tiled decode
        those of a tile, of all latents and of the picture that tiles are put together to."""
        if tiling is not None and tiling.tiles(latents) > 1:
            tile, numbers = tiling.tile(latents), self.shape.outputs * latents.finer(self.factor).rows
            return self.decode_bytes(tile) + 4 * (numbers + self.shape.latents * (latents.rows - tile.rows))
        grids = self._grids(latents)
        return peak_bytes(self, (latents.rows, self.shape.latents), lambda x_PC: self._decode(x_PC, grids))

    def _outline(self, rows: Mapping[Space, int]) -> None:
        """As Network._outline: both halves."""
        decoded, encoded = (
            tuple(Grid(1, 1, rows[space]) for space in spaces) for spaces in (self.decoder_spaces, self.encoder_spaces)
        )
        self._decode(torch.empty(decoded[-1].rows, self.shape.latents), decoded)
        self._encode(torch.empty(encoded[0].rows, self.shape.inputs), encoded)


def build(fields: Fields, storage: Storage) -> AutoencoderKL:
    """The autoencoder of a config.json of diffusers, on meta. Raises ModelRefused for another class or another sort of
    block, and for any key that is set and that nothing here reads."""
    if fields.architecture != ARCHITECTURE:
        called = fields.architecture or "(none)"
        raise fields.refuse(f"architecture {called} is no autoencoder that is built; {ARCHITECTURE} is")
    channels = tuple(fields.integers("block_out_channels")) or (64,)
    if len(channels) > MAX_RESOLUTIONS or not all(1 <= width <= MAX_WIDTH for width in channels):
        raise fields.refuse(
            f"block_out_channels is {list(channels)}; it must be 1 to {MAX_RESOLUTIONS} integers from 1 to {MAX_WIDTH}"
        )
    for name, only in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        kinds = fields.value(name) or [only]
        if kinds != [only] * len(channels):
            raise fields.refuse(f"{name} is {kinds}; {len(channels)} of {only} are supported, one a width")
    if fields.text("act_fn", "silu") not in ("silu", "swish"):
        raise fields.refuse(f"act_fn = {fields.text('act_fn')} is not supported; silu is")
    groups = fields.count("norm_num_groups", 32)
    if uneven := [width for width in channels if width % groups]:
        raise fields.refuse(f"{uneven[0]} of block_out_channels does not divide into {groups} groups")
    for name in ("latents_mean", "latents_std"):
        fields.refuse_if(name)
    # What diffusers cuts tiles by; that fp16 is too narrow for it, in which nothing here runs.
    fields.passed_over("sample_size", "force_upcast")
    attends = fields.flag("mid_block_add_attention", True)
    shape = Shape(
        inputs=fields.count("in_channels", 3),
        outputs=fields.count("out_channels", 3),
        latents=fields.count("latent_channels", 4),
        depth=fields.count("layers_per_block", 1, most=MAX_LAYERS),
        scale=fields.positive("scaling_factor", 0.18215),
        shift=fields.number("shift_factor", 0.0),
        quant=fields.flag("use_quant_conv", True),
        post_quant=fields.flag("use_post_quant_conv", True),
    )
    if unread := fields.unread():
        name = unread[0]
        raise fields.refuse(f"{name} = {fields.value(name)} is not supported; remove it if it changes nothing")
    with torch.device("meta"):
        return AutoencoderKL(Widths(channels, groups, attends, storage.dtype), shape, storage).eval()
