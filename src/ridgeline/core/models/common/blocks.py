"""Blocks: in what order a layer normalises, attends and passes its feed-forward part.

The residual stream is passed on as two summands, x and what the last part adds to it, because the addition belongs to
the norm that follows (`core/ops/norm.py`). The first block has nothing to add.

Shapes: T rows of a step, D hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.ops.collective import AllReduce
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.norm import (
    AddLayerNorm,
    AddNorm,
    AddRMSNorm,
    LayerNorm,
    Norm,
    RMSNorm,
    RMSNormBySquares,
    SumOfSquares,
)
from ridgeline.core.ops.residual import ResidualAdd
from ridgeline.core.ops.rotary import Angles
from ridgeline.core.ops.shard import Shard


@dataclass(frozen=True, slots=True)
class Norms:
    """What a family normalises its stream with. alone: a norm; adding: one with the addition before it; add: that
    addition alone.
    """

    alone: Callable[[], Norm]
    adding: Callable[[], AddNorm]
    add: Callable[[], ResidualAdd]

    @classmethod
    def rms(cls, d: Dimensions, *, multiplier: float = 1.0, from_one: bool = False, cast_last: bool = False) -> "Norms":
        """RMSNorms. multiplier: as of AddNorm; the others as of RMSNorm."""
        return cls(
            lambda: RMSNorm(d.hidden, d.eps, d.dtype, from_one=from_one, cast_last=cast_last),
            lambda: AddRMSNorm(d.hidden, d.eps, d.dtype, multiplier=multiplier, from_one=from_one, cast_last=cast_last),
            lambda: ResidualAdd(d.hidden, d.dtype),
        )

    @classmethod
    def layer(cls, d: Dimensions, *, with_bias: bool = True) -> "Norms":
        """LayerNorms."""
        return cls(
            lambda: LayerNorm(d.hidden, d.eps, d.dtype, with_bias=with_bias),
            lambda: AddLayerNorm(d.hidden, d.eps, d.dtype, with_bias=with_bias),
            lambda: ResidualAdd(d.hidden, d.dtype),
        )

    def entry(self, first: bool) -> Norm:
        """The norm that a block begins with; the first block's adds nothing."""
        return self.alone() if first else self.adding()


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); the second sum is left to the norm that follows."""

    def __init__(
        self,
        d: Dimensions,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        first: bool,
        norms: Norms | None = None,
        name: str = "self_attn",
    ) -> None:
        """attention: called as SelfAttention is. first: whether the block is the first, to which nothing is to be
        added. norms: RMSNorms where none are given. name: what checkpoints call the attention.
        """
        super().__init__()
        norms = norms or Norms.rms(d)
        self.input_layernorm = norms.entry(first)
        self.attention_name = name
        self.add_module(name, attention)
        self.post_attention_layernorm = norms.adding()
        self.mlp = feed_forward

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """The stream as two summands [rows, hidden], the second None in the first block -> as two summands."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        attention = self.get_submodule(self.attention_name)
        x_TD, normed_TD = self.post_attention_layernorm(x_TD, attention(normed_TD, angles, kv))
        return x_TD, self.mlp(normed_TD)


class MixerBlock(nn.Module):
    """x + mixer(norm(x)), of one mixer: attention, something recurrent, or a feed-forward part; the sum is left to the
    norm that follows.
    """

    def __init__(self, mixer: nn.Module, *, first: bool, norms: Norms) -> None:
        """mixer: called as SelfAttention is. first, norms: as of Block."""
        super().__init__()
        self.norm = norms.entry(first)
        self.mixer = mixer

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles | None, kv: KVContext) -> tuple[Tensor, Tensor]:
        """As Block's."""
        x_TD, normed_TD = add_norm(self.norm, x_TD, y_TD)
        return x_TD, self.mixer(normed_TD, angles, kv)


class SandwichBlock(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(feed-forward(norm(x))) (Gemma 2); the second sum is left to the norm
    that follows.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """As Block."""
        super().__init__()
        self.input_layernorm = norms.entry(first)
        self.self_attn = attention
        self.post_attention_layernorm = norms.alone()
        self.pre_feedforward_layernorm = norms.adding()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norms.alone()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """As Block's."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        y_TD = self.post_attention_layernorm(self.self_attn(normed_TD, angles, kv))
        x_TD, normed_TD = self.pre_feedforward_layernorm(x_TD, y_TD)
        return x_TD, self.post_feedforward_layernorm(self.mlp(normed_TD))


class PostNormBlock(nn.Module):
    """x + norm(attention(x)), then x + norm(feed-forward(x)) (OLMo 2, arXiv:2501.00656); the second sum is left to
    whoever comes next.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """As Block."""
        super().__init__()
        self.entry_add = None if first else norms.add()
        self.self_attn = attention
        self.post_attention_layernorm = norms.alone()
        self.attention_add = norms.add()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norms.alone()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """As Block's."""
        if self.entry_add is not None:
            x_TD = self.entry_add(x_TD, y_TD)
        x_TD = self.attention_add(x_TD, self.post_attention_layernorm(self.self_attn(x_TD, angles, kv)))
        return x_TD, self.post_feedforward_layernorm(self.mlp(x_TD))


class ParallelBlock(nn.Module):
    """x + attention(norm(x)) + feed-forward(norm(x)) (Wang and Komatsuzaki, GPT-J, 2021); the sum with x is left to the
    norm that follows.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """As Block."""
        super().__init__()
        self.input_layernorm = norms.entry(first)
        self.self_attn = attention
        self.mlp = feed_forward
        self.join = norms.add()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """As Block's."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        return x_TD, self.join(self.self_attn(normed_TD, angles, kv), self.mlp(normed_TD))


class DividedNorm(nn.Module):
    """An RMSNorm over all heads (OLMo 2) where a rank has some of them: the ranks add up their squares."""

    per_token = 1

    def __init__(self, d: Dimensions, heads: int, shard: Shard) -> None:
        """heads: of all ranks together, divided as `shard` says, by fewer ranks than there are where several hold the
        same ones.
        """
        super().__init__()
        repeated = d.shard.size // shard.size
        self.norm = RMSNormBySquares(heads * d.head_dim, d.eps, d.dtype, shard, repeated)
        self.width = self.norm.width
        self.squares = SumOfSquares(self.width, d.dtype)
        self.all_reduce = AllReduce(1, torch.float32, d.shard)

    @override
    def forward(self, x_T1W: Tensor) -> Tensor:
        """x_T1W [rows, 1, own width] -> normalised."""
        normed: Tensor = self.norm(x_T1W, self.all_reduce(self.squares(x_T1W)))
        return normed


HeadNorm = Norm | DividedNorm
"""A norm of queries or keys."""


def head_norms(d: Dimensions, *, from_one: bool = False) -> tuple[Norm, Norm]:
    """RMSNorms of each head's queries and of its keys. from_one: as of RMSNorm."""
    queries, keys = d.own_heads, d.kv_spec().heads
    return (
        RMSNorm(d.head_dim, d.eps, d.dtype, queries, from_one=from_one),
        RMSNorm(d.head_dim, d.eps, d.dtype, keys, from_one=from_one),
    )


def norms_over_heads(d: Dimensions, *, cast_last: bool = False) -> tuple[HeadNorm, HeadNorm]:
    """RMSNorms of all heads' queries at once, and of all keys. cast_last: as of RMSNorm."""

    def norm(heads: int) -> HeadNorm:
        if d.shard.size > 1:
            return DividedNorm(d, heads, d.shard.of_heads(heads))
        return RMSNorm(heads * d.head_dim, d.eps, d.dtype, cast_last=cast_last)

    return norm(d.heads), norm(d.kv_heads)


def add_norm(norm: nn.Module, x_TD: Tensor, y_TD: Tensor | None) -> tuple[Tensor, Tensor]:
    """X + y and its norm; of x alone where there is no y."""
    if y_TD is None:
        return x_TD, norm(x_TD)
    sum_TD, normed_TD = norm(x_TD, y_TD)
    return sum_TD, normed_TD


BLOCKS = Block | MixerBlock | SandwichBlock | PostNormBlock | ParallelBlock
"""What takes the stream as two summands and gives it as two."""
