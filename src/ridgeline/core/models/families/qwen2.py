"""Qwen2 and Qwen2.5 (arXiv:2407.10671), dense and mixture of experts.

They are Llama with biases on queries, keys and values, and optionally a sliding window on some layers: by default the
upper ones of a dense model, and every second lower one of a mixture. The mixture of experts is that of Qwen2-57B-A14B
and Qwen1.5-MoE.
"""

from torch import nn

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import SHARED_EXPERT, Mixture, read_dense_layers, read_experts
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, read_layer_types, read_window, upper_windows
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.router import RoutingRule


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a dense Qwen2 or Qwen2.5 config."""
    d, windows = read_dimensions(fields, storage), upper_windows(fields)
    rope = read_rope(fields, d.head_dim)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=rope)
        return Block(d, SelfAttention(d, attend, d.qkv(bias=True)), GatedMLP(d, d.gate_up()), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


def lower_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return each layer's window size in a mixture model, None for full attention.

    It follows `layer_types`, else layers 0, 2, 4, ... below `max_window_layers` have a window.
    """
    fields.ignore("max_window_layers", "sliding_window")  # without windows, releases write 0
    layers, listed = fields.layers, read_layer_types(fields)
    window = read_window(fields, UNSTATED_WINDOW) if fields.flag("use_sliding_window", False) else None
    if window is None:
        return (None,) * layers
    below = fields.count("max_window_layers", 28)
    listed = listed or tuple(layer % 2 == 0 and layer < below for layer in range(layers))
    return tuple(window if has else None for has in listed)


def build_mixture(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Qwen2-57B-A14B or Qwen1.5-MoE-A2.7B config: routed experts, and a gated shared expert."""
    sizes = read_experts(fields, "num_experts", "moe_intermediate_size")
    rule = RoutingRule(sizes.active, renormalise=fields.flag("norm_topk_prob", False))
    shared, dense = fields.count("shared_expert_intermediate_size"), read_dense_layers(fields)
    bias, windows = fields.flag("qkv_bias", True), lower_windows(fields)
    d = read_dimensions(fields, storage)
    rope = read_rope(fields, d.head_dim)

    def feed_forward(layer: int) -> nn.Module:
        if layer in dense:
            return GatedMLP(d, d.gate_up())
        return Mixture(d, sizes, rule, shared=shared, weighed=True)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=rope)
        return Block(d, SelfAttention(d, attend, d.qkv(bias=bias)), feed_forward(layer), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


FAMILIES = (
    Family("Qwen2ForCausalLM", "qwen2", build),
    Family("Qwen2MoeForCausalLM", "qwen2_moe", build_mixture, renames=SHARED_EXPERT),
)
