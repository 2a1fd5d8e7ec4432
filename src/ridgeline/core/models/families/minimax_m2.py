"""MiniMax-M2 (MiniMax, 2025): a mixture of experts in every layer, with corrected sigmoid scores.

Norms of queries and keys span all heads, and rotary positions cover a part of each head. Names are those of
transformers' modeling_minimax_m2.py and of the releases' config.json.
"""

from ridgeline.core.models.common.blocks import Block, norms_over_heads
from ridgeline.core.models.common.decoder import Decoder, SelfAttention, further_layers
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import Mixture, read_experts
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.router import RoutingRule

# Fields of the releases that transformers does not have, with the value that all releases state.
_ALWAYS = {
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
}
# Fields of layers that the model does not have: linear attention, dense MLPs, a shared expert.
_OF_OTHERS = (
    "layernorm_linear_attention_beta", "mlp_intermediate_size", "shared_moe_mode",
)  # fmt: skip


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a MiniMax-M2 config, or of a successor's."""
    for name, only in _ALWAYS.items():
        fields.require(name, only)
    if set(fields.integers("attn_type_list")) - {1}:
        raise fields.refuse("attn_type_list has a type other than 1 (full attention), which is not supported")
    fields.ignore(*_OF_OTHERS)
    sizes = read_experts(fields, "num_local_experts", "intermediate_size")
    rule = RoutingRule(sizes.active, "sigmoid", renormalise=True, corrected=True)
    d = read_dimensions(fields, storage, head_dim=fields.count("head_dim", 128))
    share = fields.count("rotary_dim", d.head_dim) / d.head_dim
    rope = read_rope(fields, d.head_dim, RopeDefaults(5_000_000.0, share=share, partial=True))

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope)
        attention = SelfAttention(d, attend, d.qkv(), head_norms=norms_over_heads(d))
        return Block(d, attention, Mixture(d, sizes, rule, names=("w1", "w3", "w2")), first=layer == 0)

    built = build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])
    built.ignored_tensors = further_layers(fields, d.layers, "num_mtp_modules")
    return built


FAMILY = Family(
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    build,
    renames=(
        (".block_sparse_moe.", ".mlp."),
        (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    ),
)
