"""PixArt-alpha and its LCM (arXiv:2310.00426, arXiv:2401.05252), and PixArt-Sigma (arXiv:2403.04692).

They are image denoisers that predict noise, with positions added to the tokens. The alpha models also read the size of
the image. Released models predict a variance next to the noise, which no sampler here reads.
"""

from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.cross_blocks import CrossStyle
from ridgeline.core.models.common.cross_denoiser import CrossDenoiser, CrossGrid, CrossSizes
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import MAX_LAYERS, MAX_WIDTH, Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.embedding import GridPositions
from ridgeline.core.ops.rotary import Angles

# The order matters: a rename may produce a name that the next one replaces.
_RENAMES = (
    ("adaln_single.emb.", "condition_embedder."),
    ("condition_embedder.timestep_embedder.", "condition_embedder.time_embedder."),
    ("adaln_single.linear.", "condition_embedder.time_proj."),
    ("caption_projection.", "condition_embedder.text_embedder."),
    ("pos_embed.proj.", "patch_embedding."),
    ("transformer_blocks.", "blocks."),
    (".to_out.0.", ".o_proj."),
    (".ff.net.0.proj.", ".ffn.widen."),
    (".ff.net.2.", ".ffn.narrow."),
)
_IGNORED = (r"pos_embed\.pos_embed",)  # computed here, but stored in old files
_FINAL_EPS = 1e-6  # the config's is that of the other norms
_SINUSOIDS = 256
_TRAIN_STEPS = 1000.0
_MAX_PATCH = 64


class PixArt(CrossDenoiser):
    """The PixArt denoiser; checkpoints call it PixArtTransformer2DModel, and old ones Transformer2DModel."""

    predicts = "noise"

    def __init__(self, d: Dimensions, sizes: CrossSizes, style: CrossStyle, base: int, interpolation: float) -> None:
        """Build the PixArt denoiser.

        Args:
            d: The sizes of the blocks.
            sizes: The other sizes.
            style: The differences between families.
            base: Positions per side of the image on which the model was first trained, as in GridPositions.
            interpolation: The divisor of positions, as in GridPositions.
        """
        super().__init__(d, sizes, style, replace(d, eps=_FINAL_EPS))
        self.positions = GridPositions(d.hidden, d.dtype, base, interpolation)

    @override
    def _placed(self, x_ND: Tensor, positions_N3: Tensor, grid: CrossGrid) -> tuple[Tensor, Angles | None]:
        return self.positions(x_ND, positions_N3, grid.rows, grid.columns), None


def build(fields: Fields, storage: StorageConfig) -> PixArt:
    """Build the denoiser of a PixArt-alpha, PixArt-LCM or PixArt-Sigma config."""
    heads, head_dim = fields.count("num_attention_heads", 16), fields.count("attention_head_dim", 72)
    hidden = heads * head_dim
    if hidden > MAX_WIDTH:
        raise fields.refuse(f"num_attention_heads {heads} x attention_head_dim {head_dim} is more than {MAX_WIDTH}")
    _refuse_others(fields, hidden)
    channels, side, patch = (
        fields.count("in_channels", 4), fields.count("sample_size", 128), fields.count("patch_size", 2, most=_MAX_PATCH)
    )  # fmt: skip
    outputs = channels if "out_channels" in fields.values and not fields.has("out_channels") else None
    outputs = outputs or fields.count("out_channels", 8)
    if outputs not in (channels, 2 * channels):
        raise fields.refuse(
            f"out_channels is {outputs}; it must be in_channels {channels}, or twice that to include a variance"
        )
    sized = fields.flag("use_additional_conditions", side == 128)
    if hidden % 4 or (sized and hidden % 3):
        raise fields.refuse(
            f"the hidden size {hidden} must be a multiple of 4, and of 3 with use_additional_conditions"
        )
    d = Dimensions(
        vocabulary=0,  # it reads no tokens
        context=side,
        layers=fields.count("num_layers", 28, most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        width=4 * hidden,
        activation="gelu_new",
        eps=fields.positive("norm_eps", 1e-6),
        storage=storage,
    )
    sizes = CrossSizes(
        channels=channels,
        outputs=outputs,
        patch=patch,
        text_width=fields.count("caption_channels"),
        text=None,
        max_positions=None,
        sinusoids=_SINUSOIDS,
        scale=_TRAIN_STEPS,
        sized=sized,
    )
    style = CrossStyle(None, heads=False, cross_attention_norm=False, bias=fields.flag("attention_bias", True))
    interpolation = fields.positive("interpolation_scale", max(side // 64, 1))
    return PixArt(d, sizes, style, max(side // patch, 1), interpolation)


def _refuse_others(fields: Fields, hidden: int) -> None:
    """Refuse settings of the diffusers class that no release has."""
    fields.require("norm_type", "ada_norm_single")
    if "cross_attention_dim" in fields.values and fields.value("cross_attention_dim") != hidden:
        stated = fields.value("cross_attention_dim")
        raise fields.refuse(f"cross_attention_dim = {stated} is not supported; {hidden} is")
    fields.require("activation_fn", "gelu-approximate")
    fields.require("attention_type", "default")
    for name in ("norm_elementwise_affine", "upcast_attention", "double_self_attention", "only_cross_attention"):
        fields.require_off(name)
    for name in ("num_vector_embeds", "use_linear_projection"):
        fields.require_off(name)
    fields.ignore("norm_num_groups", "num_embeds_ada_norm")


FAMILY = Family(
    "PixArtTransformer2DModel", "", build, "", _RENAMES, _IGNORED, also=("Transformer2DModel",), kind="denoiser"
)
