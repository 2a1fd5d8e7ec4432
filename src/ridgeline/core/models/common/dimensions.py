"""Dimensions: the sizes that decoders have in common, how configs spell them, and the matrices of these sizes."""

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
from ridgeline.core.ops.work import AttentionPattern, sliding_window


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of a transformer over all ranks, and the dtype and rank of its weights."""

    vocabulary: int
    """The number of token ids of a model."""
    context: int
    """Maximum number of positions of a sequence."""
    layers: int
    hidden: int
    """The width of a model's residual stream."""
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    """The width of a model's feed-forward layers."""
    activation: str
    eps: float
    """The constant under the root of a model's norms (epsilon)."""
    storage: StorageConfig

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, activations and the KV cache."""
        return self.storage.dtype

    @property
    def shard(self) -> Shard:
        """The share of the model that this tensor-parallel rank holds."""
        return self.storage.shard

    @property
    def expert_shard(self) -> Shard:
        """The share of the experts that this rank holds, under tensor or expert parallelism."""
        return self.storage.experts or self.shard

    @property
    def gathered(self) -> int:
        """The number of ranks whose rows are processed together at the experts."""
        return 1 if self.storage.experts is None else self.storage.experts.size

    @property
    def own_heads(self) -> int:
        """The number of query heads that this rank holds.

        Raises:
            Indivisible: If heads do not divide over the ranks; it names the KV heads first, because there are fewer of
                them.
        """
        self.shard.for_kv_heads(self.kv_heads).part(self.kv_heads, "KV heads")
        return self.shard.part(self.heads, "heads")

    @property
    def vocabulary_shard(self) -> Shard:
        """The shard of the embedding and the head on this rank: the whole vocabulary if the ranks do not divide it."""
        return self.shard.if_divides(self.vocabulary)

    def kv_spec(self, window: int | None = None, *, chunk: int | None = None) -> KVSpec:
        """Return the KV-cache spec of a layer of this rank, optionally with a sliding window or a chunk size."""
        reach = sliding_window(window) if chunk is None else AttentionPattern("chunked", chunk)
        heads = self.shard.for_kv_heads(self.kv_heads).part(self.kv_heads, "KV heads")
        return KVSpec(heads, self.head_dim, self.head_dim, reach, self.dtype, self.storage.kv)

    def qkv(self, *, bias: bool = False) -> dict[str, MatrixSpec]:
        """Return the specs of separate query, key and value projections."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        kv = self.column(self.hidden, narrow, bias=bias, shard=self.shard.for_kv_heads(self.kv_heads))
        return {"q_proj": self.column(self.hidden, wide, bias=bias), "k_proj": kv, "v_proj": kv}

    def gate_up(self, *, bias: bool = False, width: int | None = None) -> dict[str, MatrixSpec]:
        """Return the specs of separate gate and up projections."""
        spec = self.column(self.hidden, width or self.width, bias=bias)
        return {"gate_proj": spec, "up_proj": spec}

    def fused(self, name: str, *parts: int, bias: bool = False, transposed: bool = False) -> dict[str, MatrixSpec]:
        """Return the spec of one stored matrix that projects the hidden states to several fused `parts`."""
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
        """Return the spec of a column-parallel matrix: ranks divide the outputs of each of its fused `parts`."""
        return MatrixSpec(inputs, outputs, self.dtype, bias, "column", shard or self.shard, parts, transposed)

    def row(self, inputs: int, outputs: int, *, bias: bool = False, transposed: bool = False) -> MatrixSpec:
        """Return the spec of a row-parallel matrix: ranks divide its inputs, and an all-reduce follows."""
        return MatrixSpec(inputs, outputs, self.dtype, bias, "row", self.shard, transposed=transposed)

    def whole(self, inputs: int, outputs: int, *, bias: bool = False) -> MatrixSpec:
        """Return the spec of a matrix that every rank holds whole."""
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
    """Read the sizes of a decoder that spells them as Llama does.

    Args:
        fields: The config.
        storage: The dtype, the KV format and the rank.
        kv_heads: The number of KV heads, if the family reads it itself because its name or default differs.
        head_dim: The same for the size of a head.
        activation: The same for the activation.
        eps: The same for the epsilon of norms.
        unstated: The defaults of counts that releases leave out, by field.

    Raises:
        ModelRefused: If a size is missing or invalid.
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
    """Read `head_dim` from a config; by default the hidden size divided by the number of heads."""
    if not fields.has("head_dim") and hidden % heads:
        raise fields.refuse(f"hidden_size {hidden} does not divide into {heads} heads; state head_dim")
    return fields.count("head_dim", hidden // heads)


def divided(fields: Fields, name: str, hidden: int, heads: int) -> int:
    """Return the size of a head, `hidden / heads`, or refuse the config's field `name` if heads do not divide it."""
    if hidden % heads:
        raise fields.refuse(f"{name} {hidden} does not divide into {heads} heads")
    return hidden // heads


def check_groups(fields: Fields, heads: int, kv_heads: int) -> None:
    """Raise ModelRefused if the query heads do not divide evenly over the KV heads."""
    if heads % kv_heads:
        raise fields.refuse(f"{heads} attention heads do not divide over {kv_heads} KV heads (num_key_value_heads)")


def read_activation(fields: Fields, name: str, default: str) -> str:
    """Read the name of an activation function from a config, and refuse an unsupported one."""
    activation = fields.text(name, default)
    if activation not in ACTIVATIONS:
        raise fields.refuse(f"{name} {activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    return activation


def read_softcap(fields: Fields, name: str, unstated: float | None) -> float | None:
    """Read a soft cap of logits from a config: None if the field is null, `unstated` if the field is absent."""
    if fields.has(name):
        return fields.positive(name)
    return None if name in fields.values else unstated
