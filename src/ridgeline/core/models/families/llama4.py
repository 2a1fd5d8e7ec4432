"""The text model of Llama 4 Scout and Maverick (Meta, 2025): chunked attention, NoPE layers and mixtures of experts.

Layers with rotary positions attend to a chunk. Between them are layers without rotary positions (NoPE,
arXiv:2501.18795), which attend to everything and scale queries by their position. In mixtures the inputs of experts are
scaled by the routing weights, and one shared expert processes all tokens.
"""

from torch import nn

from ridgeline.core.models.common.blocks import Block, HeadNorm
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import SHARED_EXPERT, Mixture, read_experts
from ridgeline.core.models.common.rope import RopeDefaults, read_rope, read_rotary_layers
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_layer_types
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.expert_layout import TURNED
from ridgeline.core.ops.norm import UnweightedRMSNorm
from ridgeline.core.ops.query_scale import QueryScale
from ridgeline.core.ops.rotary import Rope
from ridgeline.core.ops.router import RoutingRule

_ROPE = RopeDefaults(500_000.0, interleaved=True)
_LAYER_TYPES = {"full_attention": False, "chunked_attention": True}


def read_chunks(fields: Fields, turned: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Return each layer's attention chunk size, None for full attention.

    It follows `layer_types`; without it, all layers with rotary positions have a chunk.
    """
    listed = read_layer_types(fields, _LAYER_TYPES) or turned
    if any(listed) and "attention_chunk_size" in fields.values and not fields.has("attention_chunk_size"):
        raise fields.refuse("attention_chunk_size is null, but there are layers with chunked attention; give its size")
    size = fields.count("attention_chunk_size", 8192)
    return tuple(size if chunked else None for chunked in listed)


def read_query_scale(fields: Fields) -> QueryScale | None:
    """Read the scale of queries in layers without rotary positions; None if it is off.

    The first releases wrote 4 for true.
    """
    slope, span = fields.value("attn_scale"), fields.count("floor_scale", 8192)
    tuned = fields.value("attn_temperature_tuning")
    if isinstance(tuned, int) and not isinstance(tuned, bool):
        tuned = fields.natural("attn_temperature_tuning") > 0
    else:
        tuned = fields.flag("attn_temperature_tuning", True)
    return QueryScale(fields.positive("attn_scale", 0.1), span, offset=1) if tuned and slope != 0 else None


def read_mixtures(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it is a mixture of experts: from `moe_layers`, else every n-th."""
    if fields.has("moe_layers"):
        listed = fields.integers("moe_layers")
        fields.ignore("interleave_moe_layer_step")
        return tuple(layer in listed for layer in range(fields.layers))
    every = fields.count("interleave_moe_layer_step", 1)
    return tuple((layer + 1) % every == 0 for layer in range(fields.layers))


def unweighted_norms(d: Dimensions, rope: Rope, fields: Fields) -> tuple[HeadNorm, HeadNorm] | None:
    """Return norms, without weights, of each head's queries and keys; None if the config has none.

    The reference rotates before it normalises. This gives the same result as long as the rotation does not change
    lengths.

    Raises:
        ModelRefused: If the rotary embedding multiplies lengths.
    """
    if not fields.flag("use_qk_norm", True):
        return None
    if rope.magnitude != 1:
        raise fields.refuse(
            f"a rope with attention_factor {rope.magnitude:g} is not supported together with use_qk_norm"
        )
    queries, keys = (UnweightedRMSNorm(d.head_dim, d.eps, d.dtype, heads) for heads in (d.own_heads, d.kv_spec().heads))
    return queries, keys


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the text model of a Llama 4 config."""
    turned, mixtures = read_rotary_layers(fields), read_mixtures(fields)
    d, chunks = read_dimensions(fields, storage, head_dim=fields.count("head_dim", 128)), read_chunks(fields, turned)
    rope, scale = read_rope(fields, d.head_dim, _ROPE), read_query_scale(fields)
    bias, width = fields.flag("attention_bias", False), fields.count("intermediate_size_mlp", 16_384)
    fields.ignore("num_local_experts", "num_experts_per_tok")  # unused if no layer is a mixture
    sizes = read_experts(fields, "num_local_experts", "intermediate_size") if any(mixtures) else None

    def feed_forward(layer: int) -> nn.Module:
        if sizes is None or not mixtures[layer]:
            return GatedMLP(d, d.gate_up(width=width), width=width)
        rule = RoutingRule(sizes.active, "sigmoid")
        return Mixture(d, sizes, rule, shared=sizes.width, layout=TURNED, weighs_inputs=True)

    def block(layer: int) -> Block:
        own_rope = rope if turned[layer] else None
        attend = Attention(layer, d.own_heads, d.kv_spec(chunk=chunks[layer]), rope=own_rope)
        norms = unweighted_norms(d, rope, fields) if turned[layer] else None
        scaled = scale is not None and not turned[layer]
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias, head_norms=norms, scaled=scaled)
        return Block(d, attention, feed_forward(layer), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)], query_scale=scale)


FAMILY = Family(
    "Llama4ForCausalLM",
    "llama4_text",
    build,
    renames=((".feed_forward.", ".mlp."), (".mlp.router.", ".mlp.gate."), *SHARED_EXPERT),
)
