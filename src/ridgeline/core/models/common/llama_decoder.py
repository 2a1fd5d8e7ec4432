"""The decoder of Llama, and the plain decoder of any blocks that many families use."""

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
    """Build a decoder from blocks: an embedding, the blocks, a final norm and a head.

    Args:
        fields: The config, which says whether the head is tied to the embedding.
        d: The sizes.
        rope: The rotary embedding of the blocks.
        blocks: The transformer blocks in order.
        tied_by_default: Whether the head is tied if the config does not say.
        query_scale: The scale of queries by position, in layers that use one.
    """
    trunk = Backbone(d, rope, blocks, query_scale=query_scale)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", tied_by_default))


def build_backbone(fields: Fields, storage: StorageConfig) -> tuple[Dimensions, Backbone]:
    """Read a Llama config and return its sizes and its backbone, which is the model without the head.

    If the config has no `num_key_value_heads`, every query head has its own KV head.
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
