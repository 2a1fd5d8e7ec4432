"""GLM-4 (arXiv:2406.12793): rotary positions on half of each head, in neighbouring pairs, and fused gate and up.

The releases of 0414 also have a norm after attention and one after the feed-forward layer.
"""

from ridgeline.core.models.common.blocks import Block, Norms, SandwichBlock
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.rotary import Rope

_ROPE = RopeDefaults(share=0.5, partial=True, interleaved=True)


def _read(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Rope, bool]:
    """Read the sizes, the rotary embedding and the use of biases from a GLM-4 config.

    The biases are those of queries, keys and values.
    """
    head_dim = fields.count("head_dim", 128)
    d = read_dimensions(fields, storage, head_dim=head_dim)
    return d, read_rope(fields, head_dim, _ROPE), fields.flag("attention_bias", True)


def _parts(d: Dimensions, rope: Rope, layer: int, bias: bool) -> tuple[SelfAttention, GatedMLP]:
    """Return the attention and the feed-forward layer of a GLM-4 block."""
    attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope)
    return SelfAttention(d, attend, d.qkv(bias=bias)), GatedMLP(d, d.fused("gate_up_proj", d.width, d.width))


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a GLM-4 config of 2024."""
    d, rope, bias = _read(fields, storage)
    blocks = [Block(d, *_parts(d, rope, layer, bias), first=layer == 0) for layer in range(d.layers)]
    return build_decoder(fields, d, rope, blocks)


def build_0414(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a GLM-4-0414 or GLM-Z1 config."""
    d, rope, bias = _read(fields, storage)
    norms, layers = Norms.rms(d), range(d.layers)
    blocks = [SandwichBlock(*_parts(d, rope, layer, bias), first=layer == 0, norms=norms) for layer in layers]
    return build_decoder(fields, d, rope, blocks)


# The order matters: a rename may produce a name that the rename before it replaces.
_RENAMES_0414 = (
    (".post_attention_layernorm", ".pre_feedforward_layernorm"),
    (".post_self_attn_layernorm", ".post_attention_layernorm"),
    (".post_mlp_layernorm", ".post_feedforward_layernorm"),
)

FAMILIES = (
    Family("GlmForCausalLM", "glm", build),
    Family("Glm4ForCausalLM", "glm4", build_0414, renames=_RENAMES_0414),
)
