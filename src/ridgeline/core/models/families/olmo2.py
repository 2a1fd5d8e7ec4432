"""OLMo 2 (arXiv:2501.00656) and OLMo 3: norms after attention and feed-forward layers instead of before.

A norm of queries and one of keys span all heads.
"""

from collections.abc import Sequence

from ridgeline.core.models.common.blocks import Norms, PostNormBlock, norms_over_heads
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_rope, read_ropes
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.windows import UNSTATED_WINDOW, all_but_every, read_window
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.rotary import Rope


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of an OLMo 2 config."""
    d = _read(fields, storage)
    rope = read_rope(fields, d.head_dim)
    return _decoder(fields, d, [Attention(layer, d.own_heads, d.kv_spec(), rope=rope) for layer in range(d.layers)])


def build_third(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of an OLMo 3 config: three of four layers have a window and an unscaled rotary embedding."""
    d = _read(fields, storage)
    rope, local_rope = read_ropes(fields, d.head_dim, 500_000.0, 500_000.0)
    window, is_local = read_window(fields, UNSTATED_WINDOW), all_but_every(fields, 4)

    def attend(layer: int) -> Attention:
        spec, own_rope = (d.kv_spec(window), local_rope) if is_local[layer] else (d.kv_spec(), rope)
        return Attention(layer, d.own_heads, spec, rope=own_rope)

    return _decoder(fields, d, [attend(layer) for layer in range(d.layers)], (rope, local_rope, is_local))


def _read(fields: Fields, storage: StorageConfig) -> Dimensions:
    """Read the sizes of an OLMo config."""
    fields.require("use_qk_norm", True)
    heads = fields.count("num_attention_heads")
    return read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", heads))


def _decoder(
    fields: Fields, d: Dimensions, attends: Sequence[Attention], ropes: tuple[Rope, Rope, Sequence[bool]] | None = None
) -> Decoder:
    """Build an OLMo decoder around one attention op per layer; `ropes` are the two rotary embeddings of OLMo 3."""
    bias, norms = fields.flag("attention_bias", False), Norms.rms(d, cast_last=True)

    def block(attend: Attention) -> PostNormBlock:
        over = norms_over_heads(d, cast_last=True)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias, head_norms=over)
        return PostNormBlock(attention, GatedMLP(d, d.gate_up()), first=attend.layer == 0, norms=norms)

    assert attends[0].rope is not None
    rope, local = (attends[0].rope, None) if ropes is None else (ropes[0], ropes[1:])
    trunk = Backbone(d, rope, [block(attend) for attend in attends], norm=norms.adding(), local=local)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", False))


FAMILIES = (
    Family("Olmo2ForCausalLM", "olmo2", build),
    Family("Olmo3ForCausalLM", "olmo3", build_third),
)
