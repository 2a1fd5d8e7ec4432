"""Dimensions: the sizes that decoders have in common, how a config spells them, and the matrices that they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ridgeline.core.models.common.fields import MAX_WIDTH, Fields
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.work import AttentionPattern, windowed


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
    storage: StorageConfig

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
        reach = windowed(window) if chunk is None else AttentionPattern("chunked", chunk)
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


def read_dimensions(
    fields: Fields,
    storage: StorageConfig,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: str | None = None,
    eps: float | None = None,
    unstated: Mapping[str, int] = MappingProxyType({}),
) -> Dimensions:
    """The sizes that Llama's descendants spell alike. kv_heads, head_dim, activation, eps: where a family reads them
    itself, as it has them under another name or by another default. unstated: what counts are where releases leave them
    out.
    """
    fields.require("is_causal", True)
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


def read_softcap(fields: Fields, name: str, unstated: float | None) -> float | None:
    """A soft cap: null for none, `unstated` where the config does not have the field."""
    if fields.has(name):
        return fields.positive(name)
    return None if name in fields.values else unstated
