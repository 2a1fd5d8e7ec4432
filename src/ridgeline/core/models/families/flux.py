"""FLUX.1 (arXiv:2506.15742, section 2) and FLUX.2: the config readers of the MMDiT in mmdit.py."""

from collections.abc import Sequence

from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields
from ridgeline.core.models.common.mmdit import MMDiT, MMDiTSizes
from ridgeline.core.models.common.mmdit_blocks import MMDiTStyle
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_layout import TEXT_POSITION_AXES

_RENAMES = (
    (".net.0.proj.", ".linear_in."),
    (".net.2.", ".linear_out."),
    (".proj_mlp.", ".attn.proj_mlp."),
    (".proj_out.", ".attn.proj_out."),
)
_RENAMES_OF_SECOND = (("time_guidance_embed.", "time_text_embed."),)

_PACKED = 2  # latents on a side of a FLUX.1 token: its pipeline packs them, and configs count them as channels
_EPS = 1e-6  # of FLUX.1's norms, which configs do not state
_SINUSOIDS = 256


def build(fields: Fields, storage: StorageConfig) -> MMDiT:
    """Build the denoiser of a FLUX.1 config (dev, schnell and models of their sizes)."""
    axes = _axes(fields, (16, 56, 56))
    channels = fields.count("in_channels", 64)
    if channels % _PACKED**2:
        raise fields.refuse(
            f"in_channels is {channels}; it must be a multiple of {_PACKED**2}, because a patch is "
            f"{_PACKED} x {_PACKED} latents"
        )
    d = _dimensions(fields, storage, axes, layers=19, heads=24, ratio=4.0, activation="gelu_pytorch_tanh", eps=_EPS)
    sizes = MMDiTSizes(
        channels=channels // _PACKED**2,
        patch=_PACKED,
        text_width=fields.count("joint_attention_dim", 4096),
        singles=fields.count("num_single_layers", 38, most=MAX_LAYERS),
        sinusoids=_SINUSOIDS,
        pooled=fields.count("pooled_projection_dim", 768),
        guided=fields.flag("guidance_embeds", False),
        axes=axes,
    )
    _check_sides(fields, channels)
    return MMDiT(d, sizes, MMDiTStyle(bias=True, shared=False, gated=False, theta=10_000.0))


def build_second(fields: Fields, storage: StorageConfig) -> MMDiT:
    """Build the denoiser of a FLUX.2 config (klein and dev)."""
    axes = _axes(fields, (32,) * TEXT_POSITION_AXES)
    channels, ratio = fields.count("in_channels", 128), fields.positive("mlp_ratio", 3.0)
    eps = fields.positive("eps", 1e-6)
    d = _dimensions(fields, storage, axes, layers=8, heads=48, ratio=ratio, activation="silu", eps=eps)
    sinusoids = fields.count("timestep_guidance_channels", _SINUSOIDS)
    if sinusoids % 2:
        raise fields.refuse(f"timestep_guidance_channels is {sinusoids}; it must be even, a sine for each cosine")
    sizes = MMDiTSizes(
        channels=channels,
        patch=1,
        text_width=fields.count("joint_attention_dim", 15360),
        singles=fields.count("num_single_layers", 48, most=MAX_LAYERS),
        sinusoids=sinusoids,
        pooled=None,
        guided=fields.flag("guidance_embeds", True),
        axes=axes,
    )
    _check_sides(fields, channels)
    theta = fields.positive("rope_theta", 2000.0)
    return MMDiT(d, sizes, MMDiTStyle(bias=False, shared=True, gated=True, theta=theta))


def _dimensions(
    fields: Fields,
    storage: StorageConfig,
    axes: Sequence[int],
    *,
    layers: int,
    heads: int,
    ratio: float,
    activation: str,
    eps: float,
) -> Dimensions:
    """Read the sizes of the blocks of a FLUX config.

    Args:
        fields: The config.
        storage: The dtype and the rank.
        axes: Entries of a head that each coordinate rotates.
        layers: Default number of double blocks.
        heads: Default number of heads.
        ratio: The ratio of the feed-forward width to the hidden size.
        activation: The activation of the feed-forward parts.
        eps: The epsilon of the norms.
    """
    heads, width = fields.count("num_attention_heads", heads), fields.count("attention_head_dim", 128)
    if width != sum(axes):
        raise fields.refuse(f"attention_head_dim is {width}; it must be {sum(axes)}, the sum of axes_dims_rope")
    hidden = heads * width
    return Dimensions(
        vocabulary=0,  # it reads no tokens
        context=0,  # positions are unlimited
        layers=fields.count("num_layers", layers, most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        width=int(hidden * ratio),
        activation=activation,
        eps=eps,
        storage=storage,
    )


def _axes(fields: Fields, default: tuple[int, ...]) -> tuple[int, ...]:
    """Read the entries of a head that each coordinate of a position rotates."""
    axes = tuple(fields.integers("axes_dims_rope")) or default
    if len(axes) != len(default) or any(width < 1 or width % 2 for width in axes):
        raise fields.refuse(f"axes_dims_rope is {list(axes)}; it must be {len(default)} positive even numbers")
    return axes


def _check_sides(fields: Fields, channels: int) -> None:
    """Refuse FLUX configs with patches of patches, or with other output than input channels (Fill, Depth)."""
    fields.require("patch_size", 1)
    fields.require("out_channels", channels)


FAMILIES = (
    Family("FluxTransformer2DModel", "", build, "", _RENAMES, (), kind="denoiser"),
    Family("Flux2Transformer2DModel", "", build_second, "", _RENAMES_OF_SECOND, (), kind="denoiser"),
)
