"""Settings: everything that shapes a decoder, read from its config."""

from dataclasses import dataclass

import torch

from ridgeline.models.storage import Storage
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.linear import Linear
from ridgeline.ops.rotary import Rope
from ridgeline.ops.shard import Shard


@dataclass(frozen=True, slots=True)
class MixtureSettings:
    """A feed-forward part that is a mixture of experts."""

    count: int
    active: int
    width: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """Everything that shapes a decoder. `windows` and `mixtures` have one entry a layer."""

    vocabulary: int
    context: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    activation: str
    eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    mixtures: tuple[MixtureSettings | None, ...]
    storage: Storage
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return self.storage.dtype

    @property
    def shard(self) -> Shard:
        """The part that this rank holds."""
        return self.storage.shard

    @property
    def kv_shard(self) -> Shard:
        """The KV heads that this rank holds."""
        return self.shard.of_heads(self.kv_heads)

    @property
    def vocabulary_shard(self) -> Shard:
        """The part of embedding and head that this rank holds: all of it where the vocabulary does not divide."""
        return self.shard.if_divides(self.vocabulary)

    def kv_spec(self, layer: int) -> KVSpec:
        """What layer `layer` keeps a position."""
        heads = self.kv_shard.part(self.kv_heads, "KV heads")
        return KVSpec(heads, self.head_dim, self.head_dim, self.windows[layer], self.dtype, self.storage.kv)

    def column(
        self, inputs: int, outputs: int, bias: bool = False, shard: Shard | None = None, parts: list[int] | None = None
    ) -> Linear:
        """A matrix of a block whose outputs (of each of the fused `parts`) are divided over ranks."""
        stored, shard = self.storage.weights, shard or self.shard
        return Linear(inputs, outputs, self.dtype, bias, split="column", shard=shard, parts=parts, stored=stored)

    def row(self, inputs: int, outputs: int, bias: bool = False) -> Linear:
        """A matrix of a block whose inputs are divided over ranks; an all-reduce follows."""
        return Linear(inputs, outputs, self.dtype, bias, split="row", shard=self.shard, stored=self.storage.weights)
