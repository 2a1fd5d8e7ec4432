"""Wan 2.1 and 2.2 (arXiv:2503.20314): a video denoiser with self-attention over latents and cross-attention to a text.

Rotary positions have three coordinates. A text is padded with zeros to 512 tokens, which are not masked, as in
training. In Wan 2.2's 5B model a video may begin with frames that are less noisy than the others, so that each token
has its own noise level.
"""

from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.cross_blocks import CrossStyle
from ridgeline.core.models.common.cross_denoiser import CrossDenoiser, CrossGrid, CrossSizes
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.rotary import Angles, AxialRotaryTable, Rope

_RENAMES = (
    (".to_out.0.", ".o_proj."),
    (".norm_q.", ".q_norm."),
    (".norm_k.", ".k_norm."),
    (".ffn.net.0.proj.", ".ffn.widen."),
    (".ffn.net.2.", ".ffn.narrow."),
)
_TEXT = 512  # tokens of every text, with padding
_THETA = 10_000.0
_TRAIN_STEPS = 1000.0  # timesteps of its training
_MAX_PATCH = 64


class Wan(CrossDenoiser):
    """The Wan denoiser; checkpoints call it WanTransformer3DModel."""

    generates_video = True

    def __init__(self, d: Dimensions, sizes: CrossSizes, style: CrossStyle) -> None:
        super().__init__(d, sizes, style, d)
        side = 2 * (d.head_dim // 6)
        self.rotary = AxialRotaryTable((d.head_dim - 2 * side, side, side), _THETA)

    @override
    def _placed(self, x_ND: Tensor, positions_N3: Tensor, grid: CrossGrid) -> tuple[Tensor, Angles | None]:
        return x_ND, self.rotary(positions_N3)


def build(fields: Fields, storage: StorageConfig) -> Wan:
    """Build the denoiser of a Wan 2.1 or 2.2 config for text to video (T2V, and TI2V of the 5B model)."""
    for name in ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len"):
        if fields.has(name):
            raise fields.refuse(f"{name} is set, but Wan's image-to-video models are not supported; T2V and TI2V are")
    heads, head_dim = fields.count("num_attention_heads", 40), fields.count("attention_head_dim", 128)
    channels = fields.count("in_channels", 16)
    if head_dim % 2 or head_dim < 6:
        raise fields.refuse(
            f"attention_head_dim is {head_dim}; it must be even and at least 6, because rotary rotates pairs"
        )
    if heads * head_dim > MAX_WIDTH:
        raise fields.refuse(f"num_attention_heads {heads} x attention_head_dim {head_dim} is more than {MAX_WIDTH}")
    if fields.count("out_channels", 16) != channels:
        raise fields.refuse(
            f"in_channels {channels} differs from out_channels {fields.value('out_channels') or 16}, but Wan's "
            "image-to-video models are not supported; T2V and TI2V are"
        )
    patch = fields.integers("patch_size") or [1, 2, 2]
    if len(patch) != 3 or patch[0] != 1 or patch[1] != patch[2] or not 1 <= patch[1] <= _MAX_PATCH:
        raise fields.refuse(f"patch_size {patch} is not supported; [1, n, n] is, with n from 1 to {_MAX_PATCH}")
    fields.require("qk_norm", "rms_norm_across_heads")
    d = Dimensions(
        vocabulary=0,  # it reads no tokens
        context=fields.count("rope_max_seq_len", 1024, most=MAX_CONTEXT),
        layers=fields.count("num_layers", 40, most=MAX_LAYERS),
        hidden=heads * head_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        width=fields.count("ffn_dim", 13824),
        activation="gelu_new",
        eps=fields.positive("eps", 1e-6),
        storage=storage,
    )
    sizes = CrossSizes(
        channels=channels,
        outputs=channels,
        patch=patch[1],
        text_width=fields.count("text_dim", 4096),
        text=_TEXT,
        max_positions=d.context,
        sinusoids=_even(fields, "freq_dim", 256),
        scale=_TRAIN_STEPS,
    )
    rope = Rope(head_dim, _THETA, interleaved=True)
    return Wan(
        d, sizes, CrossStyle(rope, heads=True, cross_attention_norm=fields.flag("cross_attn_norm", True), bias=True)
    )


def _even(fields: Fields, name: str, default: int) -> int:
    """Read a config field that must be an even number."""
    value = fields.count(name, default)
    if value % 2:
        raise fields.refuse(f"{name} is {value}; it must be even, for sines and cosines")
    return value


FAMILY = Family("WanTransformer3DModel", "", build, "", _RENAMES, (), kind="denoiser")
