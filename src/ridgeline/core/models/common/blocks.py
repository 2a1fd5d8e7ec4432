"""Transformer blocks, which differ in the order of norms, attention and feed-forward part.

The residual stream is passed on as two summands, x and the output of the last part, because the next norm does the
addition (`core/ops/norm.py`). The first block has nothing to add.

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
    """The constructors of the norms in a model family's blocks, with or without a residual addition before them."""

    alone: Callable[[], Norm]
    """The constructor of a norm without a residual addition before it."""
    adding: Callable[[], AddNorm]
    """The constructor of a norm that first adds its two inputs (a residual addition)."""
    add: Callable[[], ResidualAdd]
    """The constructor of a residual addition without a norm."""

    @classmethod
    def rms(cls, d: Dimensions, *, multiplier: float = 1.0, from_one: bool = False, cast_last: bool = False) -> "Norms":
        """Return constructors of RMSNorms; `multiplier` scales the added part, and the other options are RMSNorm's."""
        return cls(
            lambda: RMSNorm(d.hidden, d.eps, d.dtype, from_one=from_one, cast_last=cast_last),
            lambda: AddRMSNorm(d.hidden, d.eps, d.dtype, multiplier=multiplier, from_one=from_one, cast_last=cast_last),
            lambda: ResidualAdd(d.hidden, d.dtype),
        )

    @classmethod
    def layer(cls, d: Dimensions, *, with_bias: bool = True) -> "Norms":
        """Return constructors of LayerNorms, for the norms of a family's residual stream."""
        return cls(
            lambda: LayerNorm(d.hidden, d.eps, d.dtype, with_bias=with_bias),
            lambda: AddLayerNorm(d.hidden, d.eps, d.dtype, with_bias=with_bias),
            lambda: ResidualAdd(d.hidden, d.dtype),
        )

    def entry(self, first: bool) -> Norm:
        """Return the first norm of a transformer block; that of the first block has nothing to add."""
        return self.alone() if first else self.adding()


class Block(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x)).

    The next norm performs the last addition.
    """

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
        """Build a transformer block around its attention and feed-forward modules.

        Args:
            d: The sizes.
            attention: The attention, which is called as SelfAttention is.
            feed_forward: The feed-forward layer.
            first: Whether it is the model's first block, whose stream has no pending addition.
            norms: The constructors of its norms. Default: RMSNorms.
            name: The checkpoint's name of the attention.
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
        """Return the residual stream after a pre-norm block; it comes and goes as two summands [rows, hidden].

        The second summand that comes in is None in the first block.
        """
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        attention = self.get_submodule(self.attention_name)
        x_TD, normed_TD = self.post_attention_layernorm(x_TD, attention(normed_TD, angles, kv))
        return x_TD, self.mlp(normed_TD)


class MixerBlock(nn.Module):
    """A block with one part: x + mixer(norm(x)), where the mixer is attention, a recurrence or a feed-forward layer.

    The next norm performs the addition.
    """

    def __init__(self, mixer: nn.Module, *, first: bool, norms: Norms) -> None:
        """Build a block around one mixer (attention, recurrence or feed-forward layer), called as SelfAttention is.

        The other arguments are those of Block.
        """
        super().__init__()
        self.norm = norms.entry(first)
        self.mixer = mixer

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles | None, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block with one mixer, as two summands."""
        x_TD, normed_TD = add_norm(self.norm, x_TD, y_TD)
        return x_TD, self.mixer(normed_TD, angles, kv)


class SandwichBlock(nn.Module):
    """A block with norms before and after each part, as in Gemma 2.

    It computes x + norm(attention(norm(x))), then x + norm(feed-forward(norm(x))). The next norm performs the last
    addition.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """Build a block with norms before and after attention and feed-forward layer; arguments are those of Block."""
        super().__init__()
        self.input_layernorm = norms.entry(first)
        self.self_attn = attention
        self.post_attention_layernorm = norms.alone()
        self.pre_feedforward_layernorm = norms.adding()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norms.alone()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block with norms around its parts, as two summands."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        y_TD = self.post_attention_layernorm(self.self_attn(normed_TD, angles, kv))
        x_TD, normed_TD = self.pre_feedforward_layernorm(x_TD, y_TD)
        return x_TD, self.post_feedforward_layernorm(self.mlp(normed_TD))


class PostNormBlock(nn.Module):
    """A block with norms after its parts (OLMo 2): x + norm(attention(x)), then x + norm(feed-forward(x)).

    See arXiv:2501.00656. The next block or the final norm performs the last addition.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """Build a block with norms after attention and feed-forward layer; the arguments are those of Block."""
        super().__init__()
        self.entry_add = None if first else norms.add()
        self.self_attn = attention
        self.post_attention_layernorm = norms.alone()
        self.attention_add = norms.add()
        self.mlp = feed_forward
        self.post_feedforward_layernorm = norms.alone()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block with norms after its parts, as two summands."""
        if self.entry_add is not None:
            x_TD = self.entry_add(x_TD, y_TD)
        x_TD = self.attention_add(x_TD, self.post_attention_layernorm(self.self_attn(x_TD, angles, kv)))
        return x_TD, self.post_feedforward_layernorm(self.mlp(x_TD))


class ParallelBlock(nn.Module):
    """A block with parallel parts: x + attention(norm(x)) + feed-forward(norm(x)) (GPT-J, Wang and Komatsuzaki, 2021).

    The next norm performs the addition to x.
    """

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, *, first: bool, norms: Norms) -> None:
        """Build a block with parallel attention and feed-forward layer; the arguments are those of Block."""
        super().__init__()
        self.input_layernorm = norms.entry(first)
        self.self_attn = attention
        self.mlp = feed_forward
        self.join = norms.add()

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor | None, angles: Angles, kv: KVContext) -> tuple[Tensor, Tensor]:
        """Return the residual stream after a block with parallel parts, as two summands."""
        x_TD, normed_TD = add_norm(self.input_layernorm, x_TD, y_TD)
        return x_TD, self.join(self.self_attn(normed_TD, angles, kv), self.mlp(normed_TD))


class DividedNorm(nn.Module):
    """An RMSNorm over the vectors of all heads (OLMo 2), for ranks that hold a part of the heads each.

    The ranks add up their sums of squares.
    """

    per_token = 1

    def __init__(self, d: Dimensions, heads: int, shard: Shard) -> None:
        """Build the RMSNorm over all heads for the heads of this rank.

        Args:
            d: The sizes.
            heads: Heads of all ranks together.
            shard: The division of the heads. Its size is below the number of ranks if several ranks hold the same
                heads.
        """
        super().__init__()
        repeated = d.shard.size // shard.size
        self.norm = RMSNormBySquares(heads * d.head_dim, d.eps, d.dtype, shard, repeated)
        self.width = self.norm.width
        self.squares = SumOfSquares(self.width, d.dtype)
        self.all_reduce = AllReduce(1, torch.float32, d.shard)

    @override
    def forward(self, x_T1W: Tensor) -> Tensor:
        """Return this rank's queries or keys x_T1W [rows, 1, own width], normalised over the heads of all ranks."""
        return self.norm(x_T1W, self.all_reduce(self.squares(x_T1W)))


HeadNorm = Norm | DividedNorm
"""The type of a norm of an attention layer's queries or keys."""


def head_norms(d: Dimensions, *, from_one: bool = False) -> tuple[Norm, Norm]:
    """Return RMSNorms of each head's queries and of each head's keys; `from_one` is as in RMSNorm."""
    queries, keys = d.own_heads, d.kv_spec().heads
    return (
        RMSNorm(d.head_dim, d.eps, d.dtype, queries, from_one=from_one),
        RMSNorm(d.head_dim, d.eps, d.dtype, keys, from_one=from_one),
    )


def norms_over_heads(d: Dimensions, *, cast_last: bool = False) -> tuple[HeadNorm, HeadNorm]:
    """Return an RMSNorm of all heads' queries at once, and one of all keys; `cast_last` is as in RMSNorm."""

    def norm(heads: int) -> HeadNorm:
        if d.shard.size > 1:
            return DividedNorm(d, heads, d.shard.for_kv_heads(heads))
        return RMSNorm(heads * d.head_dim, d.eps, d.dtype, cast_last=cast_last)

    return norm(d.heads), norm(d.kv_heads)


def add_norm(norm: nn.Module, x_TD: Tensor, y_TD: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x + y and its norm, or x and its norm if y is None, as a block of a residual stream needs them."""
    if y_TD is None:
        return x_TD, norm(x_TD)
    sum_TD, normed_TD = norm(x_TD, y_TD)
    return sum_TD, normed_TD


BLOCKS = Block | MixerBlock | SandwichBlock | PostNormBlock | ParallelBlock
"""The block classes that take and return the residual stream as two summands."""
