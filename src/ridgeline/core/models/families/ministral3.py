"""Ministral 3 (Mistral AI, arXiv:2601.08584) and Devstral 2: Mistral's block with a scaled rotary embedding.

Queries are scaled by their position.
"""

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.rope import RopeDefaults, read_rope, rope_section
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_window
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.query_scale import QueryScale
from ridgeline.core.ops.rotary import Llama3Scaling, Rope, Yarn

_SLOPE = "llama_4_scaling_beta"
# The default of transformers if a config states nothing about the rotary embedding.
_UNSTATED_ROPE = {
    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, _SLOPE: 0.1,
}  # fmt: skip
_ROPE = RopeDefaults(section=_UNSTATED_ROPE, further=frozenset({_SLOPE, "max_position_embeddings"}))


def read_query_scale(fields: Fields, rope: Rope) -> QueryScale | None:
    """Read the scale of queries, which depends on the context before rope scaling; None for a slope of 0."""
    section = rope_section(fields, _ROPE)
    if section.value(_SLOPE) == 0:
        return None
    match rope.scaling:
        case Llama3Scaling() | Yarn() as scaling:
            span = scaling.original_context
        case _:
            span = section.count("original_max_position_embeddings")
    return QueryScale(section.positive(_SLOPE), span)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Ministral 3 or Devstral 2 config."""
    d, window = read_dimensions(fields, storage, head_dim=fields.count("head_dim", 128)), read_window(fields)
    rope = read_rope(fields, d.head_dim, _ROPE)
    scale = read_query_scale(fields, rope)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        attention = SelfAttention(d, attend, d.qkv(), scaled=scale is not None)
        return Block(d, attention, GatedMLP(d, d.gate_up()), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)], query_scale=scale)


FAMILY = Family("Ministral3ForCausalLM", "ministral3", build)
