"""StarCoder2 (arXiv:2402.19173): Mistral with LayerNorms, a plain MLP and biases."""

from ridgeline.core.models.common.blocks import Block, Norms
from ridgeline.core.models.common.decoder import MLP, Backbone, Decoder, SelfAttention
from ridgeline.core.models.common.dimensions import read_activation, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import read_window
from ridgeline.core.ops.attention import Attention

# Settings of the training code; transformers behaves the same whatever they are.
_TRAINING = (
    "activation_function", "scale_attn_weights", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    "layer_norm_epsilon",
)  # fmt: skip


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a StarCoder2 config."""
    for name, only in (("norm_type", "layer_norm"), ("mlp_type", "default")):  # in the releases; no code reads them
        fields.require_off(name, only)
    fields.ignore(*_TRAINING)
    activation = read_activation(fields, "hidden_act", "gelu_pytorch_tanh")
    d = read_dimensions(fields, storage, activation=activation, eps=fields.positive("norm_epsilon", 1e-5))
    rope, window, bias = read_rope(fields, d.head_dim), read_window(fields), fields.flag("use_bias", True)
    norms = Norms.layer(d)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(window), rope=rope)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        up, down = d.column(d.hidden, d.width, bias=bias), d.row(d.width, d.hidden, bias=bias)
        return Block(d, attention, MLP(d, {"c_fc": up}, "c_proj", down), first=layer == 0, norms=norms)

    trunk = Backbone(d, rope, [block(layer) for layer in range(d.layers)], norm=norms.adding())
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", True))


FAMILY = Family("Starcoder2ForCausalLM", "starcoder2", build)
