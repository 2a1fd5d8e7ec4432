"""gpt-oss-20b and gpt-oss-120b (arXiv:2508.10925): experts with biases and a clamped gate, and attention sinks.

Every second layer has a sliding window.
"""

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Decoder, SelfAttention
from ridgeline.core.models.common.dimensions import read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_decoder
from ridgeline.core.models.common.mixture import Mixture, read_experts
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_layer_types, read_window
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.expert_layout import INTERLEAVED
from ridgeline.core.ops.nonlinearity import ClampedGate
from ridgeline.core.ops.number_formats import MXFP4
from ridgeline.core.ops.router import RoutingRule


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a gpt-oss config; core/ops/expert_layout.py explains how its experts are stored."""
    # Releases repeat these under the names that are read, and the gate is not the activation in `hidden_act`.
    fields.ignore("experts_per_token", "initial_context_length", "hidden_act")
    sizes = read_experts(fields, "num_local_experts", "intermediate_size")
    # The softmax of the selected logits equals the softmax of all, renormalised over the selected ones.
    rule = RoutingRule(sizes.active, renormalise=True)
    gate = ClampedGate(fields.positive("swiglu_alpha", 1.702), fields.positive("swiglu_limit", 7.0))
    d = read_dimensions(fields, storage, head_dim=fields.count("head_dim", 64), activation="silu")
    bias, window = fields.flag("attention_bias", True), read_window(fields, 128)
    listed = read_layer_types(fields) or tuple(layer % 2 == 0 for layer in range(d.layers))
    if not (fields.has("rope_scaling") or fields.has("rope_parameters")):
        raise fields.refuse("rope_scaling is missing; add it, because every release extends its context by it")
    rope = read_rope(fields, d.head_dim, RopeDefaults(150_000.0))

    def block(layer: int) -> Block:
        spec = d.kv_spec(window if listed[layer] else None)
        attend = Attention(layer, d.own_heads, spec, rope=rope, sinks=True, shard=d.shard)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        mixture = Mixture(d, sizes, rule, activation=gate, bias=True, layout=INTERLEAVED)
        return Block(d, attention, mixture, first=layer == 0)

    return build_decoder(fields, d, rope, [block(layer) for layer in range(d.layers)])


FAMILY = Family(
    "GptOssForCausalLM",
    "gpt_oss",
    build,
    renames=((".mlp.router.", ".mlp.gate."), (".self_attn.sinks", ".self_attn.attend.sinks_H")),
    upcast_from=(MXFP4.name,),
)
