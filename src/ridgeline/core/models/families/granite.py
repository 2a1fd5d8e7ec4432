"""Granite 3 (IBM, 2024): Llama with multipliers of embeddings, attention scores, residual branches and logits."""

from ridgeline.core.models.common.blocks import Block, Norms
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a dense Granite 3.0 to 3.3 config."""
    heads = fields.count("num_attention_heads")
    d = read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", heads))
    rope = read_rope(fields, d.head_dim)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    scale = fields.positive("attention_multiplier", 1.0)
    norms = Norms.rms(d, multiplier=fields.positive("residual_multiplier", 1.0))

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope, scale=scale)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        mlp = GatedMLP(d, d.gate_up(bias=mlp_bias), bias=mlp_bias)
        return Block(d, attention, mlp, first=layer == 0, norms=norms)

    blocks = [block(layer) for layer in range(d.layers)]
    trunk = Backbone(d, rope, blocks, norm=norms.adding(), embedding_scale=fields.positive("embedding_multiplier", 1.0))
    tied = fields.flag("tie_word_embeddings", False)
    return Decoder(d, trunk, tied=tied, multiplier=1 / fields.positive("logits_scaling", 1.0))


FAMILY = Family("GraniteForCausalLM", "granite", build)
