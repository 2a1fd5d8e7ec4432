"""AutoencoderKL (Rombach et al., arXiv:2112.10752): the VAE of Stable Diffusion, FLUX.1, FLUX.2 and Z-Image.

Latents have the scale of the denoiser: (z - shift) x scale of the encoder's output z. FLUX.2 packs four of these into
one and normalises them by the statistics of a batch norm. Pixels are from -1 to 1.

Shapes: B images, C channels of latents, F of packed ones, H, W rows and columns, P pixels of all images at a
resolution, Q packed ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.activation_peak import peak_bytes
from ridgeline.core.models.common.autoencoder_blocks import ImageDecoder, ImageEncoder, Widths
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.core.models.common.image_autoencoder import MAX_RESOLUTIONS, ImageAutoencoder
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.tiling import Tiling, tiled
from ridgeline.core.ops.affine import Affine
from ridgeline.core.ops.convolution2d import Convolution2d
from ridgeline.core.ops.latent_packing import SIDE, Pack, RunningNorm, Unpack
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import RowAxis

_ARCHITECTURE = "AutoencoderKL"
_PACKED = "AutoencoderKLFlux2"
_OLD_NAMES = tuple(
    (f".attentions.0.{old}.", f".attentions.0.{new}.")
    for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0"))
)
"""The names of attention tensors in checkpoints of Stable Diffusion 1 and 2, with today's names."""
_LOGVAR = (-30.0, 20.0)  # limits to which the encoder's log-variance is clamped


@dataclass(frozen=True, slots=True)
class Posterior:
    """The result of a VAE's encoder: a normal distribution of each number of the latents."""

    mean: Tensor
    """The means of the latents' distribution, fp32 [B, C, H, W]."""
    logvar: Tensor
    """The logarithms of the variances of the latents' distribution, fp32 [B, C, H, W]."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return latents drawn from their distribution, fp32 [B, C, H, W], with noise from `generator`.

        The noise is drawn on the generator's device.
        """
        device = self.mean.device if generator is None else generator.device
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=device)
        return self.mean + (0.5 * self.logvar).exp() * noise.to(self.mean.device)


@dataclass(frozen=True, slots=True)
class KLShape:
    """The settings of a VAE's config besides the widths: channels, depth, scale and shift of latents."""

    inputs: int
    """The channels of the pixels that a VAE encodes."""
    outputs: int
    """The channels of the pixels that a VAE decodes to."""
    latents: int
    """Channels of the latents, before packing."""
    depth: int
    """The number of residual blocks per resolution of a VAE's encoder."""
    scale: float
    """The factor that brings latents to the denoiser's scale."""
    shift: float
    """The number subtracted from a VAE's latents before scaling."""
    quant: bool
    """Whether a 1x1 convolution follows a VAE's encoder."""
    post_quant: bool
    """Whether a 1x1 convolution precedes a VAE's decoder."""
    eps: float | None = None
    """The epsilon of the batch norm of packed latents (FLUX.2), which have no scale and shift; None if not packed."""


class AutoencoderKL(ImageAutoencoder):
    """A VAE: its encoder returns a normal distribution of latents, and its decoder turns latents into pixels."""

    packs = False
    """Whether the VAE packs 2 x 2 latents into one, which is one more resolution."""

    def __init__(self, widths: Widths, shape: KLShape, storage: StorageConfig) -> None:
        coarsest = len(widths.channels) - 1
        super().__init__(coarsest + 1 + self.packs, storage)
        self.shape, self.inputs = shape, shape.inputs
        latents, dtype = shape.latents, widths.dtype
        self.encoder = ImageEncoder(widths, shape.inputs, 2 * latents, shape.depth, self.encoder_spaces[coarsest])
        self.quant_conv = Convolution2d(2 * latents, 2 * latents, dtype, kernel=1) if shape.quant else None
        self.normalise_logvar = Affine(latents, 1.0, 2 * math.log(shape.scale), limits=_LOGVAR)
        if not self.packs:
            self.normalise_mean = Affine(latents, shape.scale, -shape.shift * shape.scale)
            self.denormalise = Affine(latents, 1 / shape.scale, shape.shift)
        self.post_quant_conv = Convolution2d(latents, latents, dtype, kernel=1) if shape.post_quant else None
        self.decoder = ImageDecoder(widths, latents, shape.outputs, shape.depth, self.decoder_spaces[coarsest])

    @property
    def channels(self) -> int:
        """The channels of a latent as a denoiser sees it, after any packing."""
        return self.shape.latents

    # -- what runs ----------------------------------------------------------------------------------------------------

    def decode(self, latents_BCHW: Tensor, tiling: Tiling | None = None) -> Tensor:
        """Return the pixels [B, outputs, factor x H, factor x W], about -1 to 1, of latents [B, channels, H, W].

        Latents have the denoiser's scale. Pixels are in the model's dtype; in fp32 if `tiling` divides the latents into
        several tiles.

        Raises:
            ValueError: If the latents have another shape.
        """
        grid = self._grid(latents_BCHW, self.channels, "latents")
        if tiling is not None and tiling.tiles(grid) > 1:
            return tiled(self.decode, latents_BCHW, tiling, self.factor, self.shape.outputs)
        grids = self._grids(grid)
        return grids[0].to_images(self._decode(grid.to_rows(latents_BCHW), grids))

    def encode(self, pixels_BCHW: Tensor) -> Posterior:
        """Return the distribution of the latents of pixels [B, inputs, H, W] from -1 to 1.

        Raises:
            ValueError: If the shape is wrong, or H or W is no multiple of `factor`.
        """
        latents = self._latents_of(pixels_BCHW)
        grids = self._grids(latents)
        mean_PC, logvar_PC = self._encode(grids[0].to_rows(pixels_BCHW), grids)
        return Posterior(latents.to_images(mean_PC), latents.to_images(logvar_PC))

    def _decode(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return pixel rows [pixels of the first grid, outputs] of latent rows [pixels of the last grid, channels].

        `grids` are the resolutions, the finest first.
        """
        x_PC, own = self._restored(x_PC, grids), self._own(grids)
        if self.post_quant_conv is not None:
            x_PC = self.post_quant_conv(x_PC, own[-1])
        return self.decoder(x_PC, own)

    @override
    def _encode(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance, each [pixels of the last grid, channels], of pixel rows."""
        own = self._own(grids)
        x_PC = self.encoder(x_PC, own)
        if self.quant_conv is not None:
            x_PC = self.quant_conv(x_PC, own[-1])
        mean_PC, logvar_PC = x_PC.chunk(2, dim=1)
        return self._normalised(mean_PC, self.normalise_logvar(logvar_PC), grids)

    def _own(self, grids: Sequence[PixelGrid]) -> Sequence[PixelGrid]:
        """Return the pixel grids of a VAE's encoder and decoder themselves, without that of packed latents."""
        return grids[: len(grids) - self.packs]

    def _restored(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return latents in the scale of a VAE's decoder, one row per pixel of its coarsest grid."""
        return self.denormalise(x_PC)

    def _normalised(self, mean_PC: Tensor, logvar_PC: Tensor, grids: Sequence[PixelGrid]) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of latents in the denoiser's scale."""
        return self.normalise_mean(mean_PC), logvar_PC

    # -- what it costs ------------------------------------------------------------------------------------------------

    def decode_bytes(self, latents: PixelGrid, tiling: Tiling | None = None) -> int:
        """Return the peak bytes of activations while latents of this size are decoded, including the latents.

        A tiled decode holds the activations of one tile, all latents, and the image that the tiles form.
        """
        if tiling is not None and tiling.tiles(latents) > 1:
            tile, numbers = tiling.tile(latents), self.shape.outputs * latents.finer(self.factor).rows
            return self.decode_bytes(tile) + 4 * (numbers + self.channels * (latents.rows - tile.rows))
        grids = self._grids(latents)
        return peak_bytes(self, (latents.rows, self.channels), lambda x_PC: self._decode(x_PC, grids))

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        """Run a VAE's encoder and decoder once on meta tensors with these numbers of rows."""
        decoded, encoded = self._outlined(rows)
        self._decode(torch.empty(decoded[-1].rows, self.channels), decoded)
        self._encode(torch.empty(encoded[0].rows, self.shape.inputs), encoded)


class PackedAutoencoderKL(AutoencoderKL):
    """The VAE of FLUX.2, which packs SIDE x SIDE latents into one."""

    packs = True

    def __init__(self, widths: Widths, shape: KLShape, storage: StorageConfig) -> None:
        super().__init__(widths, shape, storage)
        assert shape.eps is not None
        self.bn = RunningNorm(self.channels, shape.eps, widths.dtype)
        self.pack, self.unpack = Pack(shape.latents), Unpack(self.channels)

    @property
    @override
    def channels(self) -> int:
        return SIDE**2 * self.shape.latents

    @override
    def _restored(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return packed latents, denormalised and unpacked, as the decoder reads them."""
        return self.unpack(self.bn(x_PC, "restore"), grids[-1], grids[-2])

    @override
    def _normalised(self, mean_PC: Tensor, logvar_PC: Tensor, grids: Sequence[PixelGrid]) -> tuple[Tensor, Tensor]:
        mean_QF, logvar_QF = (self.pack(own_PC, grids[-1]) for own_PC in (mean_PC, logvar_PC))
        return self.bn(mean_QF, "normalise"), self.bn(logvar_QF, "logvar")


@dataclass(frozen=True, slots=True)
class _Defaults:
    """The settings that configs of an autoencoder class may leave out."""

    widths: tuple[int, ...]
    latents: int
    depth: int


_DEFAULTS = {_ARCHITECTURE: _Defaults((64,), 4, 1), _PACKED: _Defaults((128, 256, 512, 512), 32, 2)}


def build(fields: Fields, storage: StorageConfig) -> AutoencoderKL:
    """Build the VAE of a diffusers config on the meta device.

    Raises:
        ModelRefused: If the config has another class or kind of block, or a key that is set and that nothing reads.
    """
    kind = fields.architecture
    if kind not in _DEFAULTS:
        raise fields.refuse(
            f"autoencoder architecture {kind or '(none)'} is not supported; {' and '.join(_DEFAULTS)} are"
        )
    defaults = _DEFAULTS[kind]
    widths = _widths(fields, defaults, storage)
    # The size of diffusers' tiles, and a flag that fp16 overflows; nothing here runs in fp16.
    fields.ignore("sample_size", "force_upcast")
    scale, shift, eps = 1.0, 0.0, None
    if kind == _PACKED:
        fields.ignore("batch_norm_momentum")  # for training
        fields.require("patch_size", [SIDE, SIDE])
        fields.require("decoder_block_out_channels", list(widths.channels))
        eps = fields.positive("batch_norm_eps", 1e-4)
    else:
        for name in ("latents_mean", "latents_std"):
            fields.require_off(name)
        scale, shift = fields.positive("scaling_factor", 0.18215), fields.number("shift_factor", 0.0)
    shape = KLShape(
        inputs=fields.count("in_channels", 3),
        outputs=fields.count("out_channels", 3),
        latents=fields.count("latent_channels", defaults.latents),
        depth=fields.count("layers_per_block", defaults.depth, most=MAX_LAYERS),
        scale=scale,
        shift=shift,
        quant=fields.flag("use_quant_conv", True),
        post_quant=fields.flag("use_post_quant_conv", True),
        eps=eps,
    )
    if unread := fields.unread():
        name = unread[0]
        raise fields.refuse(f"{name} = {fields.value(name)} is not supported; remove it if it changes nothing")
    with torch.device("meta"):
        return (PackedAutoencoderKL if kind == _PACKED else AutoencoderKL)(widths, shape, storage).eval()


def _widths(fields: Fields, defaults: _Defaults, storage: StorageConfig) -> Widths:
    """Read the widths of a VAE's resolutions from its config.

    Raises:
        ModelRefused: If they are invalid, or the blocks are of another kind.
    """
    channels = tuple(fields.integers("block_out_channels")) or defaults.widths
    if len(channels) > MAX_RESOLUTIONS or not all(1 <= width <= MAX_WIDTH for width in channels):
        raise fields.refuse(
            f"block_out_channels is {list(channels)}; it must be 1 to {MAX_RESOLUTIONS} integers from 1 to {MAX_WIDTH}"
        )
    blocks = len(defaults.widths)
    for name, only in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        kinds = fields.value(name) or [only] * blocks
        if kinds != [only] * len(channels):
            raise fields.refuse(
                f"{name} is {kinds}; it must be {len(channels)} times {only}, one for each of block_out_channels"
            )
    if fields.text("act_fn", "silu") not in ("silu", "swish"):
        raise fields.refuse(f"act_fn = {fields.text('act_fn')} is not supported; silu is")
    groups = fields.count("norm_num_groups", 32)
    if uneven := [width for width in channels if width % groups]:
        raise fields.refuse(f"{uneven[0]} of block_out_channels does not divide into {groups} groups")
    return Widths(channels, groups, fields.flag("mid_block_add_attention", True), storage.dtype)


FAMILY = Family(
    _ARCHITECTURE, "", build, "", ignored=(r"bn\.num_batches_tracked",), also=(_PACKED,), old_names=_OLD_NAMES,
    kind="autoencoder",
)  # fmt: skip
