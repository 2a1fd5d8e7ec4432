"""Qwen3 (arXiv:2505.09388), dense and mixture of experts: Llama with an RMSNorm of each head's queries and keys."""

from torch import nn

from ridgeline.core.models.common.blocks import Block, head_norms
from ridgeline.core.models.common.decoder import Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import Mixture, read_dense_layers, read_experts
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, read_window, upper_windows
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.rotary import Rope
from ridgeline.core.ops.router import RoutingRule


def _attention(fields: Fields, d: Dimensions, rope: Rope, layer: int, window: int | None) -> SelfAttention:
    """Return the self-attention of a Qwen3 layer."""
    bias = fields.flag("attention_bias", False)
    attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
    return SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias, head_norms=head_norms(d))


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a dense Qwen3 config."""
    fields.require("use_qk_norm", True)
    d, windows = read_dimensions(fields, storage), upper_windows(fields)
    rope = read_rope(fields, d.head_dim)

    def block(layer: int) -> Block:
        attention = _attention(fields, d, rope, layer, windows[layer])
        return Block(d, attention, GatedMLP(d, d.gate_up()), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


def build_mixture(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Qwen3-30B-A3B, Qwen3-235B-A22B or Qwen3-Coder-480B-A35B config, or a similar one."""
    fields.require("use_qk_norm", True)
    name = "num_local_experts" if fields.has("num_local_experts") else "num_experts"  # transformers 5 renamed it
    sizes = read_experts(fields, name, "moe_intermediate_size")
    rule = RoutingRule(sizes.active, renormalise=fields.flag("norm_topk_prob", False))
    dense = read_dense_layers(fields)
    # Unlike dense Qwen3, it has one window for all layers, whatever these fields say.
    fields.ignore("max_window_layers", "layer_types")
    window = read_window(fields, UNSTATED_WINDOW)
    window = window if fields.flag("use_sliding_window", False) else None
    d = read_dimensions(fields, storage)
    rope = read_rope(fields, d.head_dim)

    def feed_forward(layer: int) -> nn.Module:
        return GatedMLP(d, d.gate_up()) if layer in dense else Mixture(d, sizes, rule)

    def block(layer: int) -> Block:
        return Block(d, _attention(fields, d, rope, layer, window), feed_forward(layer), first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


# Model cards of Qwen3, "Processing Long Texts": trained on 32,768 positions, of which YaRN makes 131,072. The config's
# 40,960 are 32,768 for the output and 8,192 for a prompt.
_TRAINED = ((40_960, 32_768),)

FAMILIES = (
    Family("Qwen3ForCausalLM", "qwen3", build, also=("Qwen3Model",), trained_contexts=_TRAINED),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", build_mixture, trained_contexts=_TRAINED),
)
