"""The image tokenizer of Janus (arXiv:2410.13848), a VQGAN (Esser et al., arXiv:2012.09841): pixels to tokens and back.

The encoder's output for a square of pixels is replaced by the nearest row of a codebook, whose index is the token. The
decoder reads these rows, normalised to length 1. Pixels are from -1 to 1.

Shapes: B images, H, W rows and columns, P pixels of all images, C channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.activation_peak import peak_bytes
from ridgeline.core.models.common.autoencoder_blocks import ImageDecoder, ImageEncoder, Widths
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.core.models.common.image_autoencoder import MAX_RESOLUTIONS, ImageAutoencoder
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.convolution2d import Convolution2d
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.pooling import Normalise
from ridgeline.core.ops.vector_quantiser import NearestCode
from ridgeline.core.ops.work import RowAxis

_ARCHITECTURE = "JanusVQVAE"
SECTION = "vq_config"
"""The section of a Janus config that holds the autoencoder's config."""
_PREFIX = "model.vqmodel."
"""The prefix of the autoencoder's tensors in checkpoints of Janus."""
_RENAMES = (
    ("encoder.down.", "encoder.down_blocks."),
    ("decoder.up.", "decoder.up_blocks."),
    (".block.", ".resnets."),
    (".attn.", ".attentions."),
    (".mid.block_1.", ".mid_block.resnets.0."),
    (".mid.block_2.", ".mid_block.resnets.1."),
    (".mid.attn_1.", ".mid_block.attentions.0."),
    (".downsample.", ".downsamplers.0."),
    (".upsample.", ".upsamplers.0."),
    (".nin_shortcut.", ".conv_shortcut."),
    (".norm_out.", ".conv_norm_out."),
    (".norm.", ".group_norm."),
    (".q.", ".to_q."),
    (".k.", ".to_k."),
    (".v.", ".to_v."),
    (".proj_out.", ".to_out.0."),
)
"""Pairs of a part of a tensor's name in checkpoints and its name here, which is that of AutoencoderKL."""
_GROUPS = 32  # of every norm, which configs do not state


@dataclass(frozen=True, slots=True)
class VQShape:
    """The settings of an image tokenizer's config besides the widths: channels, codebook, depth and tokens."""

    inputs: int
    """The channels of the pixels that an image tokenizer encodes."""
    outputs: int
    """The channels of the pixels that an image tokenizer decodes to."""
    latents: int
    """The channels of an image tokenizer's encoder output."""
    codes: int
    """The number of rows of the codebook, which are the possible image tokens."""
    code: int
    """The count of numbers in each row of the codebook."""
    depth: int
    """The number of residual blocks per resolution of an image tokenizer's encoder."""
    side: int
    """The number of tokens on a side of an image."""


class Codebook(nn.Module):
    """The codebook of image tokens, with the search for the nearest row."""

    def __init__(self, shape: VQShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = Embedding(shape.codes, shape.code, dtype)
        self.nearest = NearestCode(shape.codes, shape.code, dtype)
        self.normalise = Normalise(shape.code, dtype)


class VQAutoencoder(ImageAutoencoder):
    """An image autoencoder whose latents are rows of a codebook."""

    def __init__(self, widths: Widths, shape: VQShape, storage: StorageConfig) -> None:
        super().__init__(len(widths.channels), storage)
        self.shape, self.inputs = shape, shape.inputs
        latents, dtype = shape.latents, widths.dtype
        self.encoder = ImageEncoder(widths, shape.inputs, latents, shape.depth, self.encoder_spaces[-1])
        self.quant_conv = Convolution2d(latents, shape.code, dtype, kernel=1)
        self.quantize = Codebook(shape, dtype)
        self.post_quant_conv = Convolution2d(shape.code, latents, dtype, kernel=1)
        self.decoder = ImageDecoder(widths, latents, shape.outputs, shape.depth, self.decoder_spaces[-1])
        self.ties = {"quantize.nearest.weight": "quantize.embedding.weight"}
        self.tie()

    @property
    def tokens(self) -> int:
        """The number of tokens of an image of the size for which the model was trained."""
        return self.shape.side**2

    def decode(self, ids_BHW: Tensor) -> Tensor:
        """Return the pixels [B, outputs, factor x H, factor x W], about -1 to 1, of tokens ids_BHW int64 [B, H, W].

        Raises:
            ValueError: If the shape is wrong, or a token is no row of the codebook.
        """
        if ids_BHW.dim() != 3 or not ids_BHW.numel():
            raise ValueError(f"tokens have shape {list(ids_BHW.shape)}; they must be [images, height, width]")
        if not 0 <= int(ids_BHW.min()) <= int(ids_BHW.max()) < self.shape.codes:
            raise ValueError(f"a token is outside the codebook; give numbers from 0 to {self.shape.codes - 1}")
        grids = self._grids(PixelGrid(*ids_BHW.shape))
        return grids[0].to_images(self._decode(ids_BHW.flatten(), grids))

    def encode(self, pixels_BCHW: Tensor) -> Tensor:
        """Return the tokens int64 [B, H / factor, W / factor] of pixels [B, inputs, H, W] from -1 to 1.

        Raises:
            ValueError: If the shape is wrong, or H or W is no multiple of `factor`.
        """
        latents = self._latents_of(pixels_BCHW)
        grids = self._grids(latents)
        ids_P = self._encode(grids[0].to_rows(pixels_BCHW), grids)
        return ids_P.view(latents.images, latents.height, latents.width)

    def _decode(self, ids_P: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return pixel rows [pixels of the first grid, outputs] of tokens [pixels of the last grid].

        `grids` are the resolutions, the finest first.
        """
        x_PC = self.quantize.normalise(self.quantize.embedding(ids_P))
        return self.decoder(self.post_quant_conv(x_PC, grids[-1]), grids)

    @override
    def _encode(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> Tensor:
        """Return the tokens [pixels of the last grid] of pixel rows."""
        return self.quantize.nearest(self.quant_conv(self.encoder(x_PC, grids), grids[-1]))

    def decode_bytes(self, latents: PixelGrid) -> int:
        """Return the peak bytes of activations while tokens of this size are decoded, including the tokens."""
        grids = self._grids(latents)
        return peak_bytes(self, (latents.rows,), lambda ids_P: self._decode(ids_P, grids), torch.int64)

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        """Run an image tokenizer's encoder and decoder once on meta tensors with these numbers of rows."""
        decoded, encoded = self._outlined(rows)
        self._decode(torch.empty(decoded[-1].rows, dtype=torch.int64), decoded)
        self._encode(torch.empty(encoded[0].rows, self.inputs), encoded)


def build(fields: Fields, storage: StorageConfig) -> VQAutoencoder:
    """Build the autoencoder of a Janus config, or of its own config, on the meta device.

    Raises:
        ModelRefused: If the config has another architecture, an invalid size, or a key that is set and that nothing
            reads.
    """
    own = fields.section(SECTION) if fields.has(SECTION) else fields
    if own is fields and fields.architecture != _ARCHITECTURE:
        raise fields.refuse(f"architecture {fields.architecture or '(none)'} has no autoencoder of image tokens")
    base, multipliers = own.count("base_channels", 128), own.integers("channel_multiplier") or [1, 1, 2, 2, 4]
    if len(multipliers) > MAX_RESOLUTIONS or not all(1 <= base * times <= MAX_WIDTH for times in multipliers):
        raise own.refuse(
            f"channel_multiplier is {multipliers}; it must be 1 to {MAX_RESOLUTIONS} integers whose products with "
            f"base_channels {base} are from 1 to {MAX_WIDTH}"
        )
    if base % _GROUPS:
        raise own.refuse(f"base_channels {base} does not divide into {_GROUPS} groups")
    own.require_off("double_latent")
    # Widths of the language model's aligner and head, and a setting of training.
    own.ignore("projection_dim", "num_hidden_layers", "hidden_act", "image_token_embed_dim", "beta")
    # A generated image has as many tokens per side as the vision tower reads, whatever this section says.
    sees = fields.section("vision_config") if fields.has("vision_config") else None
    own.ignore("num_patches")
    side = own.count("num_patches", 32) if sees is None else _patches(sees)
    shape = VQShape(
        inputs=own.count("in_channels", 3),
        outputs=own.count("out_channels", 3),
        latents=own.count("latent_channels", 256),
        codes=own.count("num_embeddings", 16384),
        code=own.count("embed_dim", 8),
        depth=own.count("num_res_blocks", 2, most=MAX_LAYERS),
        side=side,
    )
    if unread := own.unread():
        raise own.refuse(f"{unread[0]} = {own.value(unread[0])} is not supported; remove it if it changes nothing")
    channels = tuple(base * times for times in multipliers)
    widths = Widths(channels, _GROUPS, True, storage.dtype, attends_often=True, stem=base, pointwise=True)
    with torch.device("meta"):
        return VQAutoencoder(widths, shape, storage).eval()


def _patches(vision: Fields) -> int:
    """Return the number of patches on a side of an image that Janus's vision tower reads."""
    return max(1, vision.count("image_size", 384) // vision.count("patch_size", 16))


FAMILY = Family(
    _ARCHITECTURE, "", build, "", _RENAMES, ignored=(r"lm_head\..*|model\.(?!vqmodel\.).*",),
    prefixes=((_PREFIX, ""),), kind="autoencoder",
)  # fmt: skip
