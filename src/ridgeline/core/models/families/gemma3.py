"""The text model of Gemma 3 (arXiv:2503.19786): Gemma 2's block, with norms of queries and keys instead of soft caps.

The norms apply to each head. Five of six layers have a sliding window and a rotary embedding of their own.
"""

import math

from ridgeline.core.models.common.blocks import Norms, SandwichBlock, head_norms
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import read_activation, read_dimensions, read_softcap
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_ropes
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, all_but_every, read_window
from ridgeline.core.ops.attention import Attention

_UNSTATED_HEAD_DIM = 256  # the default of transformers, for `query_pre_attn_scalar` too
# Half of the releases state only values that differ from these defaults (transformers' Gemma3TextConfig).
_UNSTATED = {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the text model of a Gemma 3 config."""
    for name in ("use_bidirectional_attention", "attn_logit_softcapping"):
        fields.require_off(name)
    fields.require("use_qk_norm", True)
    fields.ignore("hidden_act")  # releases repeat it under the name that is read
    head_dim = fields.count("head_dim", _UNSTATED_HEAD_DIM)
    activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    eps = fields.positive("rms_norm_eps", 1e-6)
    d = read_dimensions(fields, storage, head_dim=head_dim, activation=activation, eps=eps, unstated=_UNSTATED)
    local_theta = fields.positive("rope_local_base_freq", 10_000.0)
    rope, local_rope = read_ropes(fields, head_dim, 1_000_000.0, local_theta)
    window, bias = read_window(fields, UNSTATED_WINDOW), fields.flag("attention_bias", False)
    is_local = all_but_every(fields, 6)
    scale = 1 / math.sqrt(fields.positive("query_pre_attn_scalar", _UNSTATED_HEAD_DIM))
    norms = Norms.rms(d, from_one=True)

    def block(layer: int) -> SandwichBlock:
        spec, own_rope = (d.kv_spec(window), local_rope) if is_local[layer] else (d.kv_spec(), rope)
        attend = Attention(layer, d.own_heads, spec, rope=own_rope, scale=scale)
        attention = SelfAttention(
            d, attend, d.qkv(bias=bias), output_bias=bias, head_norms=head_norms(d, from_one=True)
        )
        return SandwichBlock(attention, GatedMLP(d, d.gate_up()), first=layer == 0, norms=norms)

    blocks = [block(layer) for layer in range(d.layers)]
    trunk = Backbone(
        d, rope, blocks, norm=norms.adding(), embedding_scale=math.sqrt(d.hidden), local=(local_rope, is_local)
    )
    tied, logit_cap = fields.flag("tie_word_embeddings", True), read_softcap(fields, "final_logit_softcapping", None)
    return Decoder(d, trunk, tied=tied, softcap=logit_cap)


FAMILY = Family("Gemma3ForCausalLM", "gemma3_text", build)
