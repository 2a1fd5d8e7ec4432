"""Phi-1, Phi-1.5 and Phi-2 (arXiv:2306.11644, arXiv:2309.05463): parallel attention and plain MLP.

They have LayerNorms, biases everywhere, including the head, and rotary positions on a part of each head.
"""

from ridgeline.core.models.common.blocks import Norms, ParallelBlock
from ridgeline.core.models.common.decoder import MLP, Backbone, Decoder, SelfAttention
from ridgeline.core.models.common.dimensions import read_activation, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.norm import LayerNorm, Norm


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Phi-1, Phi-1.5 or Phi-2 config."""
    heads, eps = fields.count("num_attention_heads"), fields.positive("layer_norm_eps", 1e-5)
    kv_heads, activation = fields.count("num_key_value_heads", heads), read_activation(fields, "hidden_act", "gelu_new")
    d = read_dimensions(fields, storage, kv_heads=kv_heads, activation=activation, eps=eps)
    rope = read_rope(fields, d.head_dim, RopeDefaults(share=0.5, partial=True))
    norms, head_norms = Norms.layer(d), fields.flag("qk_layernorm", False)

    def block(layer: int) -> ParallelBlock:
        attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope)
        over: tuple[Norm, Norm] | None = None
        if head_norms:
            over = (
                LayerNorm(d.head_dim, d.eps, d.dtype, d.own_heads),
                LayerNorm(d.head_dim, d.eps, d.dtype, attend.spec.heads),
            )
        attention = SelfAttention(d, attend, d.qkv(bias=True), output_bias=True, head_norms=over)
        up, down = d.column(d.hidden, d.width, bias=True), d.row(d.width, d.hidden, bias=True)
        return ParallelBlock(attention, MLP(d, {"fc1": up}, "fc2", down), first=layer == 0, norms=norms)

    fields.require_off("tie_word_embeddings")  # a head with a bias cannot be the embedding
    trunk = Backbone(d, rope, [block(layer) for layer in range(d.layers)], norm=norms.adding())
    return Decoder(d, trunk, tied=False, bias=True)


FAMILY = Family(
    "PhiForCausalLM",
    "phi",
    build,
    renames=(
        (".self_attn.dense", ".self_attn.o_proj"),
        (".q_layernorm", ".q_norm"),
        (".k_layernorm", ".k_norm"),
        ("model.final_layernorm", "model.norm"),
    ),
)
