"""Llama 2, 3, 3.1 and 3.2 (arXiv:2307.09288, arXiv:2407.21783), and the reading of config.json that its kin share."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import nn

from ridgeline.models.common.blocks import Block
from ridgeline.models.common.decoder import Decoder, GatedMLP, SelfAttention, Trunk
from ridgeline.models.common.dimensions import Dimensions
from ridgeline.models.common.fields import MAX_WIDTH, Fields
from ridgeline.models.common.rope import read_rope
from ridgeline.models.common.storage import Storage
from ridgeline.ops.attention import Attention
from ridgeline.ops.nonlinearity import ACTIVATIONS
from ridgeline.ops.query_scale import QueryScale
from ridgeline.ops.rotary import Rope


def read_dimensions(
    fields: Fields,
    storage: Storage,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: str | None = None,
    eps: float | None = None,
    unstated: Mapping[str, int] = MappingProxyType({}),
) -> Dimensions:
    """The sizes that Llama's descendants spell alike. kv_heads, head_dim, activation, eps: where a family reads them
    itself, as it has them under another name or by another default. unstated: what counts are where releases leave them
    out."""
    fields.refuse_but("is_causal", True)
    heads, hidden = (fields.count(name, unstated.get(name)) for name in ("num_attention_heads", "hidden_size"))
    head_dim = head_dim or _head_dim(fields, hidden, heads)
    kv_heads = kv_heads or fields.count("num_key_value_heads", unstated.get("num_key_value_heads"))
    if heads * head_dim > MAX_WIDTH:
        raise fields.refuse(f"num_attention_heads {heads} x head_dim {head_dim} is more than {MAX_WIDTH}")
    check_groups(fields, heads, kv_heads)
    return Dimensions(
        vocabulary=fields.count("vocab_size", unstated.get("vocab_size")),
        context=fields.context(unstated.get("max_position_embeddings")),
        layers=fields.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=fields.count("intermediate_size", unstated.get("intermediate_size")),
        activation=activation or read_activation(fields, "hidden_act", "silu"),
        eps=eps or fields.positive("rms_norm_eps"),
        storage=storage,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """`head_dim`, or what the hidden states divide into."""
    if not fields.has("head_dim") and hidden % heads:
        raise fields.refuse(f"hidden_size {hidden} does not divide into {heads} heads; state head_dim")
    return fields.count("head_dim", hidden // heads)


def divided(fields: Fields, name: str, hidden: int, heads: int) -> int:
    """Entries of a head where heads divide the hidden states among them. name: what the config calls their size."""
    if hidden % heads:
        raise fields.refuse(f"{name} {hidden} does not divide into {heads} heads")
    return hidden // heads


def check_groups(fields: Fields, heads: int, kv_heads: int) -> None:
    """Raises ModelRefused for query heads that do not share KV heads evenly."""
    if heads % kv_heads:
        raise fields.refuse(f"{heads} attention heads do not divide over {kv_heads} KV heads (num_key_value_heads)")


def read_activation(fields: Fields, name: str, default: str) -> str:
    """The activation that a field names."""
    activation = fields.text(name, default)
    if activation not in ACTIVATIONS:
        raise fields.refuse(f"{name} {activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    return activation


def decoder(
    fields: Fields,
    d: Dimensions,
    rope: Rope,
    blocks: Sequence[nn.Module],
    *,
    tied_by_default: bool = False,
    query_scale: QueryScale | None = None,
) -> Decoder:
    """A trunk of these blocks, and its head. query_scale: as of Trunk."""
    trunk = Trunk(d, rope, blocks, query_scale=query_scale)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", tied_by_default))


def read_trunk(fields: Fields, storage: Storage) -> tuple[Dimensions, Trunk]:
    """Llama without its head: grouped heads from Llama 2 70B on; one KV head a query head where the config does not
    say."""
    heads = fields.count("num_attention_heads")
    d = read_dimensions(fields, storage, kv_heads=fields.count("num_key_value_heads", heads))
    rope = read_rope(fields, d.head_dim)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)

    def block(layer: int) -> Block:
        attend = Attention(layer, d.own_heads, d.kv_spec(), rope=rope)
        attention = SelfAttention(d, attend, d.qkv(bias=bias), output_bias=bias)
        return Block(d, attention, GatedMLP(d, d.gate_up(bias=mlp_bias), bias=mlp_bias), first=layer == 0)

    return d, Trunk(d, rope, [block(layer) for layer in range(d.layers)])


def build(fields: Fields, storage: Storage) -> Decoder:
    """Llama of every size."""
    d, trunk = read_trunk(fields, storage)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", False))
