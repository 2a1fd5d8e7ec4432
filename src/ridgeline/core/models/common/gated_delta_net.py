"""Linear attention by the gated delta rule (arXiv:2412.06464), and decoders that use it in most layers.

Sizes and names are those of transformers' modeling_qwen3_next.py.
"""

from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.blocks import Block, Norms, head_norms
from ridgeline.core.models.common.decoder import Backbone, Decoder, SelfAttention
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.rope import RopeDefaults, read_rope
from ridgeline.core.models.common.windows import read_layer_types
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.collective import all_reduce
from ridgeline.core.ops.gated_delta import DeltaSizes, GatedDeltaRule
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.linear import Linear, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import AddRMSNorm
from ridgeline.core.ops.output_gate import GatedRMSNorm
from ridgeline.core.ops.recurrence import ShortConvolution
from ridgeline.core.ops.rotary import Angles, Rope

_ROPE = RopeDefaults(share=0.25, partial=True)
_LAYER_TYPES = {"full_attention": False, "linear_attention": True}


class GatedDeltaNet(nn.Module):
    """A linear-attention layer: a short convolution of q, k and v, the gated delta rule, and a gated norm.

    The projections return one key head after the other: its query, its key, and the values and gates of the value heads
    that share it.
    """

    part = "attention"
    by_head = True
    """Whether the input projections order their results by key head, not as all queries, all keys, all values."""

    def __init__(self, d: Dimensions, sizes: DeltaSizes, kernel: int, places: Iterator[int]) -> None:
        """Build a linear-attention layer.

        Args:
            d: The sizes of the model.
            sizes: The heads of all ranks together.
            kernel: Positions that the short convolution sees.
            places: Counts the caches of the model: the layer takes one for the convolution and one for the state.
        """
        super().__init__()
        keys, values = sizes.key_heads * sizes.key, sizes.value_heads * sizes.value
        own = DeltaSizes(d.shard.part(sizes.key_heads, "key heads"), sizes.share, sizes.key, sizes.value)
        self.sizes = own
        self.in_proj = Projections(self.projections(d, sizes, keys, values))
        self.conv1d = ShortConvolution(
            next(places), (keys, keys, values), kernel, d.dtype,
            activation=d.activation, by_head=sizes.key_heads if self.by_head else None, shard=d.shard,
        )  # fmt: skip
        self.rule = GatedDeltaRule(next(places), own, d.dtype, d.shard)
        self.norm = GatedRMSNorm(sizes.value, d.eps, d.dtype, own.value_heads)
        self.out_proj = Linear(d.row(values, d.hidden))
        self.all_reduce = all_reduce(d.hidden, d.dtype, d.shard)

    @staticmethod
    def projections(d: Dimensions, sizes: DeltaSizes, keys: int, values: int) -> dict[str, MatrixSpec]:
        """Return the matrix specs of a linear-attention layer's input projections, as checkpoints store them.

        `keys` and `values` are the columns of all keys and of all values.
        """
        return {
            "in_proj_qkvz": d.column(d.hidden, 2 * keys + 2 * values),
            "in_proj_ba": d.column(d.hidden, 2 * sizes.value_heads),
        }

    def mixed(self, x_TD: Tensor, kv: KVContext) -> tuple[Tensor, ...]:
        """Return the convolved inputs of the delta rule and its gate: q, k, v, b, a and z, each [rows, ...]."""
        s, rows = self.sizes, len(x_TD)
        values = s.share * s.value
        qkvz_TO, ba_TO = self.in_proj(x_TD)
        qkv_TGC, z_TGW = torch.split(qkvz_TO.view(rows, s.key_heads, -1), [2 * s.key + values, values], dim=-1)
        b_TGR, a_TGR = torch.split(ba_TO.view(rows, s.key_heads, -1), s.share, dim=-1)
        mixed_TGC = self.conv1d(qkv_TGC, kv).view(rows, s.key_heads, -1)
        return *torch.split(mixed_TGC, [s.key, s.key, values], dim=-1), b_TGR, a_TGR, z_TGW

    @override
    def forward(self, x_TD: Tensor, _: Angles, kv: KVContext) -> Tensor:
        """Return the layer's output [rows, hidden] for x_TD [rows, hidden]; only the order of positions matters."""
        *taken, z_TX = self.mixed(x_TD, kv)
        return self.all_reduce(self.out_proj(self.norm(self.rule(*taken, kv), z_TX)))


def read_linear_layers(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it is linear attention: from `layer_types`, else all but every n-th.

    n is `full_attention_interval`.
    """
    every, listed = fields.count("full_attention_interval", 4), read_layer_types(fields, _LAYER_TYPES)
    return listed or tuple((layer + 1) % every != 0 for layer in range(fields.layers))


def read_delta_sizes(fields: Fields) -> DeltaSizes:
    """Read the number and size of the heads of linear attention from a config."""
    keys, values = fields.count("linear_num_key_heads", 16), fields.count("linear_num_value_heads", 32)
    if values % keys:
        raise fields.refuse(
            f"{values} value heads (linear_num_value_heads) do not divide over {keys} key heads (linear_num_key_heads)"
        )
    widths = (fields.count(f"linear_{kind}_head_dim", 128) for kind in ("key", "value"))
    return DeltaSizes(keys, values // keys, *widths)


def read_kernel(fields: Fields) -> int:
    """Read from a config the number of positions that the short convolution sees."""
    kernel = fields.count("linear_conv_kernel_dim", 4)
    if kernel < 2:
        raise fields.refuse("linear_conv_kernel_dim is 1; it must be at least 2")
    return kernel


def _gated_attention(fields: Fields, d: Dimensions, rope: Rope, place: int) -> SelfAttention:
    """Return full attention whose query projection also returns an output gate."""
    bias = fields.flag("attention_bias", False)
    qkv = d.qkv(bias=bias) | {"q_proj": d.column(d.hidden, 2 * d.heads * d.head_dim, bias=bias)}
    attend = Attention(place, d.own_heads, d.kv_spec(), rope=rope)
    return SelfAttention(d, attend, qkv, output_bias=bias, head_norms=head_norms(d, from_one=True), gated=True)


def hybrid(
    fields: Fields, d: Dimensions, linear_attention: type[GatedDeltaNet], feed_forward: Callable[[int], nn.Module]
) -> Decoder:
    """Build a decoder whose layers have linear or full attention.

    Args:
        fields: The config.
        d: The sizes.
        linear_attention: The class of the linear-attention layers.
        feed_forward: The function that builds the feed-forward part of a layer, by its index.
    """
    fields.require("use_qk_norm", True)
    linear, delta, kernel = read_linear_layers(fields), read_delta_sizes(fields), read_kernel(fields)
    rope, norms, places = read_rope(fields, d.head_dim, _ROPE), Norms.rms(d, from_one=True), count()

    def block(layer: int) -> Block:
        if linear[layer]:
            mixer: nn.Module = linear_attention(d, delta, kernel, places)
        else:
            mixer = _gated_attention(fields, d, rope, next(places))
        name = "linear_attn" if linear[layer] else "self_attn"
        return Block(d, mixer, feed_forward(layer), first=layer == 0, norms=norms, name=name)

    last = AddRMSNorm(d.hidden, d.eps, d.dtype, from_one=True)
    trunk = Backbone(d, rope, [block(layer) for layer in range(d.layers)], norm=last)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", False))
