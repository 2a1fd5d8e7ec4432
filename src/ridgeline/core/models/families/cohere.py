"""Command R (Cohere, 2024), and Command R7B and Command A (2025): parallel attention and feed-forward layer.

They have LayerNorms without biases, scaled logits, and rotary positions in neighbouring pairs. In the second generation
three of four layers have a sliding window, and the fourth has no rotary positions.
"""

from ridgeline.core.models.common.blocks import Norms, ParallelBlock
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, all_but_every, read_window
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.norm import HeadLayerNorm
from ridgeline.core.ops.rotary import Rope


def _read(fields: Fields, storage: StorageConfig, theta: float) -> tuple[Dimensions, Rope]:
    """Read the sizes and the rotary embedding of a Command R config."""
    heads, eps = fields.count("num_attention_heads"), fields.positive("layer_norm_eps", 1e-5)
    d = read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", heads), eps=eps)
    return d, read_rope(fields, d.head_dim, RopeDefaults(theta, interleaved=True))


def _decoder(fields: Fields, d: Dimensions, rope: Rope, attends: list[Attention], *, head_norms: bool) -> Decoder:
    """Build a Command R decoder around one attention op per layer; `head_norms` adds norms of each head's q and k."""
    bias, norms = fields.flag("attention_bias", False), Norms.layer(d, with_bias=False)

    def block(attend: Attention) -> ParallelBlock:
        over = None
        if head_norms:
            queries = HeadLayerNorm(d.heads, d.head_dim, d.eps, d.dtype, d.shard)
            keys = HeadLayerNorm(d.kv_heads, d.head_dim, d.eps, d.dtype, d.shard.for_kv_heads(d.kv_heads))
            over = queries, keys
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias, head_norms=over)
        return ParallelBlock(attention, GatedMLP(d, d.gate_up()), first=attend.layer == 0, norms=norms)

    trunk = Backbone(d, rope, [block(attend) for attend in attends], norm=norms.adding())
    tied, multiplier = fields.flag("tie_word_embeddings", True), fields.positive("logit_scale", 0.0625)
    return Decoder(d, trunk, tied=tied, multiplier=multiplier)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Command R, Command R+ or Aya config."""
    d, rope = _read(fields, storage, 500_000.0)
    attends = [Attention(layer, d.own_heads, d.kv_spec(), rope=rope) for layer in range(d.layers)]
    return _decoder(fields, d, rope, attends, head_norms=fields.flag("use_qk_norm", False))


def build_second(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Command R7B or Command A config.

    Layers without a window have no rotary positions. If `sliding_window` is null, no layer has any.
    """
    # The releases state what the reference assumes.
    for name, only in (("use_parallel_block", True), ("use_gated_activation", True), ("rotary_pct", 1.0)):
        fields.require(name, only)
    fields.require_off("use_qk_norm")
    fields.require_off("position_embedding_type", "rope_gptj")
    fields.ignore("order_of_interleaved_layers", "layer_switch", "use_embedding_sharing", "use_parallel_embedding")
    d, rope = _read(fields, storage, 10_000.0)
    window, is_local = read_window(fields, UNSTATED_WINDOW), all_but_every(fields, 4)

    def attend(layer: int) -> Attention:
        own = window if is_local[layer] else None
        return Attention(layer, d.own_heads, d.kv_spec(own), rope=rope if own else None)

    return _decoder(fields, d, rope, [attend(layer) for layer in range(d.layers)], head_norms=False)


FAMILIES = (
    Family("CohereForCausalLM", "cohere", build),
    Family("Cohere2ForCausalLM", "cohere2", build_second),
)
