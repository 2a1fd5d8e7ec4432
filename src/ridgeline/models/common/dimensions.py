"""Dimensions: the sizes that decoders have in common, and the parts of a block that follow from them."""

from dataclasses import dataclass

import torch

from ridgeline.models.common.storage import Storage
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.matrix import MatrixSpec
from ridgeline.ops.shard import Shard
from ridgeline.ops.work import Reach, windowed


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of a decoder, of all ranks together, and how it is stored."""

    vocabulary: int
    context: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    activation: str
    eps: float
    storage: Storage

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return self.storage.dtype

    @property
    def shard(self) -> Shard:
        """The part that this rank holds."""
        return self.storage.shard

    @property
    def expert_shard(self) -> Shard:
        """The part of the experts that this rank holds."""
        return self.storage.experts or self.shard

    @property
    def gathered(self) -> int:
        """How many ranks' rows come together at the experts."""
        return 1 if self.storage.experts is None else self.storage.experts.size

    @property
    def own_heads(self) -> int:
        """Query heads of this rank. Raises Indivisible, of the KV heads first: they are fewer."""
        self.shard.of_heads(self.kv_heads).part(self.kv_heads, "KV heads")
        return self.shard.part(self.heads, "heads")

    @property
    def vocabulary_shard(self) -> Shard:
        """The part of embedding and head that this rank holds: all of it where the vocabulary does not divide."""
        return self.shard.if_divides(self.vocabulary)

    def kv_spec(self, window: int | None = None, *, chunk: int | None = None) -> KVSpec:
        """What a layer of this rank keeps a position. window, chunk: positions that it sees, if not all before."""
        reach = windowed(window) if chunk is None else Reach("chunked", chunk)
        heads = self.shard.of_heads(self.kv_heads).part(self.kv_heads, "KV heads")
        return KVSpec(heads, self.head_dim, self.head_dim, reach, self.dtype, self.storage.kv)

    def qkv(self, *, bias: bool = False) -> dict[str, MatrixSpec]:
        """Separate projections to queries, keys and values."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        kv = self.column(self.hidden, narrow, bias=bias, shard=self.shard.of_heads(self.kv_heads))
        return {"q_proj": self.column(self.hidden, wide, bias=bias), "k_proj": kv, "v_proj": kv}

    def gate_up(self, *, bias: bool = False, width: int | None = None) -> dict[str, MatrixSpec]:
        """Separate projections to a gate and what it gates."""
        spec = self.column(self.hidden, width or self.width, bias=bias)
        return {"gate_proj": spec, "up_proj": spec}

    def fused(self, name: str, *parts: int, bias: bool = False, transposed: bool = False) -> dict[str, MatrixSpec]:
        """One stored matrix from the hidden states to several results."""
        return {name: self.column(self.hidden, sum(parts), bias=bias, parts=parts, transposed=transposed)}

    def column(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        shard: Shard | None = None,
        parts: tuple[int, ...] = (),
        transposed: bool = False,
    ) -> MatrixSpec:
        """A matrix whose outputs (of each of the fused `parts`) are divided over ranks."""
        return MatrixSpec(inputs, outputs, self.dtype, bias, "column", shard or self.shard, parts, transposed)

    def row(self, inputs: int, outputs: int, *, bias: bool = False, transposed: bool = False) -> MatrixSpec:
        """A matrix whose inputs are divided over ranks; an all-reduce follows."""
        return MatrixSpec(inputs, outputs, self.dtype, bias, "row", self.shard, transposed=transposed)

    def whole(self, inputs: int, outputs: int, *, bias: bool = False) -> MatrixSpec:
        """A matrix that every rank holds whole."""
        return MatrixSpec(inputs, outputs, self.dtype, bias)
