"""Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama's block with fused projections in the checkpoint."""

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_window
from ridgeline.core.ops.attention import Attention

# Configs of the first releases have other names for longrope.
_ROPE = RopeDefaults(partial=True, spelt={"su": "longrope", "yarn": "longrope"}, original_context=4096)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a text-only Phi-3, Phi-3.5 or Phi-4 config."""
    d, window = read_dimensions(fields, storage), read_window(fields)
    rope = read_rope(fields, d.head_dim, _ROPE)
    for name in ("full_attn_mod", "interpolate_factor"):  # in Phi-4-mini, whose code reads neither
        fields.require_off(name, 1)
    fields.require_off("lm_head_bias")
    keys = d.kv_heads * d.head_dim
    qkv = d.fused("qkv_proj", d.heads * d.head_dim, keys, keys)
    gate_up = d.fused("gate_up_proj", d.width, d.width)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        return Block(d, SelfAttention(d, attend, qkv), GatedMLP(d, gate_up), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


FAMILY = Family("Phi3ForCausalLM", "phi3", build)
