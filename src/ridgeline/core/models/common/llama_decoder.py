"""Llama's decoder: its backbone, and the decoder that is a backbone of any blocks and a head."""

from collections.abc import Sequence

from torch import nn

from ridgeline.core.models.common.blocks import Block
from ridgeline.core.models.common.decoder import Backbone, Decoder, GatedMLP, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions, read_dimensions
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import read_rope
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.query_scale import QueryScale
from ridgeline.core.ops.rotary import Rope


def build_decoder(
    fields: Fields,
    d: Dimensions,
    rope: Rope,
    blocks: Sequence[nn.Module],
    *,
    tied_by_default: bool = False,
    query_scale: QueryScale | None = None,
) -> Decoder:
    """A trunk of these blocks, and its head. query_scale: as of Backbone."""
    trunk = Backbone(d, rope, blocks, query_scale=query_scale)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", tied_by_default))


def read_trunk(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Backbone]:
    """Llama without its head: grouped heads from Llama 2 70B on; one KV head a query head where the config does not
    say.
    """
    heads = fields.count("num_attention_heads")
    d = read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", heads))
    rope = read_rope(fields, d.head_dim)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        return Block(d, attention, GatedMLP(d, d.gate_up(bias=mlp_bias), bias=mlp_bias), first=layer == 0)

    return d, Backbone(d, rope, [block(layer) for layer in range(d.layers)])
