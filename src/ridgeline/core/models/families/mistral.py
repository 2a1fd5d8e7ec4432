"""Mistral 7B (arXiv:2310.06825) and Mixtral (arXiv:2401.04088): Llama with an optional sliding window.

Mixtral's feed-forward layers are mixtures of experts.
"""

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import Mixture, read_experts
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, read_window
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.router import RoutingRule


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a config of Mistral 7B, or of a successor with the same block."""
    d, window = read_dimensions(fields, storage), read_window(fields, UNSTATED_WINDOW)
    rope = read_rope(fields, d.head_dim)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        return Block(d, SelfAttention(d, attend, d.qkv()), GatedMLP(d, d.gate_up()), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


def build_mixture(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Mixtral config; the weights of the selected experts are always renormalised."""
    sizes = read_experts(fields, "num_local_experts", "intermediate_size")
    rule = RoutingRule(sizes.active, renormalise=True)
    d, window = read_dimensions(fields, storage), read_window(fields)
    rope = read_rope(fields, d.head_dim, RopeDefaults(1_000_000.0))

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        mixture = Mixture(d, sizes, rule, names=("w1", "w3", "w2"))  # gate, up, down
        return Block(d, SelfAttention(d, attend, d.qkv()), mixture, first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


FAMILIES = (
    Family("MistralForCausalLM", "mistral", build),
    Family("MixtralForCausalLM", "mixtral", build_mixture, renames=((".block_sparse_moe.", ".mlp."),)),
)
