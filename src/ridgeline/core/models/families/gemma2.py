"""Gemma 2 (arXiv:2408.00118): a norm before and after each half of a block, and soft caps of scores and logits.

Every second layer has a sliding window, and embeddings are scaled.
"""

import math

from ridgeline.core.models.common.blocks import Norms, SandwichBlock
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_activation, read_dimensions, read_softcap
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, read_layer_types, read_window
from ridgeline.core.ops.attention import Attention

_UNSTATED_HEAD_DIM = 256  # the default of transformers, for `query_pre_attn_scalar` too


def alternating_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return each layer's window size (None: full attention): from `layer_types`, else layers 0, 2, 4, ... have one."""
    window = read_window(fields, UNSTATED_WINDOW)
    listed = read_layer_types(fields) or tuple(layer % 2 == 0 for layer in range(fields.layers))
    return tuple(window if has else None for has in listed)


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Gemma 2 config."""
    fields.ignore("hidden_act", "sliding_window_size")  # releases repeat both under the names that are read
    head_dim = fields.count("head_dim", _UNSTATED_HEAD_DIM)
    activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    d = read_dimensions(fields, storage, head_dim=head_dim, activation=activation)
    rope, windows, bias = read_rope(fields, head_dim), alternating_windows(fields), fields.flag("attention_bias", False)
    scale = 1 / math.sqrt(fields.positive("query_pre_attn_scalar", _UNSTATED_HEAD_DIM))
    softcap = read_softcap(fields, "attn_logit_softcapping", 50.0)

    norms = Norms.rms(d, from_one=True)

    def block(layer: int) -> SandwichBlock:
        attend = Attention(layer, d.own_heads, d.kv_spec(windows[layer]), rope=rope, scale=scale, softcap=softcap)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        return SandwichBlock(attention, GatedMLP(d, d.gate_up()), first=layer == 0, norms=norms)

    blocks = [block(layer) for layer in range(d.layers)]
    trunk = Backbone(d, rope, blocks, norm=norms.adding(), embedding_scale=math.sqrt(d.hidden))
    tied, logit_cap = fields.flag("tie_word_embeddings", True), read_softcap(fields, "final_logit_softcapping", 30.0)
    return Decoder(d, trunk, tied=tied, softcap=logit_cap)


FAMILY = Family("Gemma2ForCausalLM", "gemma2", build)
