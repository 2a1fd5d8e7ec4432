"""Attention with any mask pattern: the op and its cost.

The op does not know where keys and values are stored: that is the caller's KVContext (kv_context.py). The PyTorch
implementation is in torch_attention.py.

Shapes: T rows of a step, N rows of keys, H heads, K kv heads, D head dim, W width of a value, E entries of a latent.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, SOFTCAP_FLOPS, Cost
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.kv_quantisation import NO_SCALES
from ridgeline.core.ops.number_formats import KVFormat, format_of
from ridgeline.core.ops.op import Launch, OpBackend, TypedOp, kernel_by_head_dim
from ridgeline.core.ops.rotary import Angles, Rope, rotate
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, weight
from ridgeline.core.ops.work import TOKENS, AttentionPattern, AttentionSum, RowAxis, Work

PositionBias = Callable[[Tensor], Tensor]
"""A function from distances (key position - query position), int64 [...], to a bias on each head's scores [H, ...]."""

ONE_SCALE = "kv_scale"
"""The name of a checkpoint tensor with a single scale for both the cached keys and the cached values of a layer."""
_SCALES = "k_scale", "v_scale"
"""The checkpoint names of the two scales for a layer's cached keys and values."""


class AttentionContext(Protocol):
    """The part of the KVContext interface that `Attention` calls."""

    def attend(self, op: "Attention", q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None) -> Tensor:
        """Store new keys and values for the op's layer, and attend each query to its sequence: [T, H, W].

        The context reads scale, softcap, sinks and the like from the op.
        """


class FusedRotaryKV(ABC):
    """The base class of KVContexts that rotate queries and keys and store keys and values in one kernel."""

    @abstractmethod
    def keep(self, op: "Attention", q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor, angles: Angles | None) -> Tensor:
        """Store a step's rotated keys and its values for one attention layer, and return the rotated queries [T, H, D].

        `attend` then receives no keys and values. Without angles nothing is rotated.
        """


class AttentionBackend(OpBackend):
    """The methods of a backend that attention calls, implemented in PyTorch.

    A KVContext stores and attends.
    """

    def rotate(
        self, op: "Attention", q_THD: Tensor, k_TKD: Tensor, angles: Angles, start: int
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by the angles of their positions, from entry `start` of each head on."""
        return op.rotated(q_THD, k_TKD, angles, start)


class Attention(TypedOp):
    """Attention, softmax(q k^T x scale) v over the keys of the mask (GQA: Ainslie et al., arXiv:2305.13245).

    One op covers rotating, storing and attending, so that a kernel may fuse them. If v is not stored (`spec.v_dim` is
    0), the value is the first `value_dim` entries of k: a latent (DeepSeek-V2, arXiv:2405.04434).

    Attributes:
        layer: The index of the op's cache among the model's KV caches and recurrent states.
        heads: The number of query heads of this rank.
        softcap: The bound to which scores are soft-capped (Gemma 2, arXiv:2408.00118); None for no cap.
        sinks_H: A learned score per head that takes part in the softmax but has no value (gpt-oss); None without sinks.
        bias: The bias on scores by the distance of two positions (T5); None for no bias.
        value_dim: The number of entries of a value.
        one_scale: Whether the checkpoint has one scale for both keys and values.
    """

    kind = "attention"
    backend: AttentionBackend = AttentionBackend()
    rotates_in = "rotate"
    """The name of the method that launches the rotation of queries and keys."""
    parts: tuple[str, ...] = (rotates_in, "attend")
    reads_context = True
    fuses_inputs = True
    ROTATE_FLOPS = 3
    """FLOPs of the rotary embedding per entry of a query or key."""

    def __init__(
        self,
        layer: int,
        heads: int,
        spec: KVSpec,
        *,
        rope: Rope | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        bias: PositionBias | None = None,
        value_dim: int | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """Create the attention op of one layer.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            heads: The number of query heads of this rank.
            spec: The format of the layer's KV cache, and its mask pattern.
            rope: The rotary embedding of queries and keys; None for none.
            scale: The factor on the scores; 1 / sqrt(D) by default.
            softcap: The bound of soft-capped scores; None for no cap.
            sinks: Whether each head has a learned attention sink.
            bias: The bias on scores by distance; None for no bias.
            value_dim: The number of entries of a latent that are the value.
            shard: This rank's share of the heads.
        """
        super().__init__()
        assert spec.v_dim or value_dim, "a latent spec needs the width of its values"
        self.layer, self.heads, self.spec, self.rope, self.shard = layer, heads, spec, rope, shard
        self.dtype, self.score_heads = spec.dtype, heads
        self.attention_pattern: AttentionPattern = spec.reach
        self.scale = 1 / math.sqrt(spec.k_dim) if scale is None else scale
        self.softcap, self.bias, self.value_dim = softcap, bias, spec.v_dim or value_dim or 0
        self.sinks_H = weight(heads, dtype=spec.dtype) if sinks else None
        stated = spec.stored is not None and spec.stored.scales_in_checkpoint
        self.k_scale, self.v_scale = (weight(1, dtype=torch.float32) if stated else None for _ in range(2))
        self.one_scale = False
        self._weight_bytes = self.stored_bytes()
        self._names = {name: kernel_by_head_dim(f"attention.{name}", spec.k_dim) for name in ("decode", "prefill")}
        self._names["few"] = f"{self._names['prefill']}.few"  # uncalibrated, it is priced as a prefill
        turn = kernel_by_head_dim("elementwise.rotate", spec.k_dim)  # interleaved pairs are another kernel class
        self._names["rotate"] = f"{turn}.neighbours" if rope is not None and rope.interleaved else turn
        # Bytes of one position's K and V, cached and unquantised. A price reads them several times per step.
        self._position, self._given = spec.slot_bytes, spec.given_bytes

    @property
    @override
    def cache_spec(self) -> KVSpec | None:
        return self.spec if self.spec.is_cached else None

    @override
    def with_kv_format(self, stored: KVFormat | None) -> "Attention":
        other = copy(self)
        other.spec = replace(self.spec, stored=stored)
        other._position = other.spec.slot_bytes
        return other

    @override
    def disable_kv_cache(self) -> None:
        self.spec = replace(self.spec, whole_sequences=True)

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """Detect whether the checkpoint has one scale for both keys and values of an attention layer."""
        self.one_scale = self.k_scale is not None and dtype_of(ONE_SCALE) is not None

    @override
    def tensors(self) -> tuple[str, ...]:
        """Return the checkpoint names of an attention layer's sinks and of its KV scales, one or two."""
        own = super().tensors()
        return (*(name for name in own if name not in _SCALES), ONE_SCALE) if self.one_scale else own

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the dtype to load attention sinks in, and None for KV scales, which are read as stored."""
        return super().dtype_of(name) if name == "sinks_H" else None

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Return the attention sinks of this rank's heads, or the scales of keys and values, which all ranks have.

        Raises:
            ValueError: If a scale is not one number above 0.
        """
        if name == "sinks_H":
            return {name: self.shard.slice(full, 0)}
        if full.numel() != 1 or not full.item() > 0:
            raise ValueError("must be a single scale above 0; the checkpoint is broken, fetch it again")
        return dict.fromkeys(_SCALES if name == ONE_SCALE else (name,), full.reshape(1).float())

    @cached_property
    def kv_scales(self) -> tuple[float, float]:
        """The checkpoint's scales of a layer's cached keys and values, or 1.0 each if it contains none.

        They are read from their tensors once, because every layer uses them in every step.
        """
        if self.k_scale is None or self.v_scale is None:
            return NO_SCALES
        return self.k_scale.item(), self.v_scale.item()

    @property
    def plain(self) -> bool:
        """Whether attention scores are only q k^T x scale (no cap, sinks or bias), as common kernels compute them."""
        return self.softcap is None and self.sinks_H is None and self.bias is None

    @override
    def forward(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKW: Tensor | None,
        kv: AttentionContext,
        angles: Angles | None = None,
    ) -> Tensor:
        """Return the attention of a step's queries: [rows, heads x W].

        Args:
            q_THD: The queries [rows, heads, D].
            k_TKD: The keys [rows, kv_heads, D]. They may belong to other rows, those of an encoder; None if an earlier
                step stored them.
            v_TKW: The values [rows, kv_heads, W]; None if they are stored already or are a part of k.
            kv: The KV context of the step.
            angles: The rotary angles of the rows, if the op has a rope.
        """
        assert (angles is not None) == (self.rope is not None)
        if "keep" in self.parts and k_TKD is not None and v_TKW is not None and isinstance(kv, FusedRotaryKV):
            return self.attend(self.keep(q_THD, k_TKD, v_TKW, kv, angles), None, None, kv)
        if angles is not None and k_TKD is not None:
            q_THD, k_TKD = self.rotate(q_THD, k_TKD, angles)
        return self.attend(q_THD, k_TKD, v_TKW, kv)

    def rotate(self, q_THD: Tensor, k_TKD: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by their positions' angles.

        Of a latent, only the entries after the value are rotated; the value has no position.
        """
        start = 0 if self.spec.v_dim else self.value_dim
        if q_THD.is_meta:
            return self.rotated(q_THD, k_TKD, angles, start)
        return self.backend.rotate(self, q_THD, k_TKD, angles, start)

    def rotated(self, q_THD: Tensor, k_TKD: Tensor, angles: Angles, start: int) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys in PyTorch, from entry `start` of each head on."""
        interleaved = self.rotates_neighbours
        turned_THD = rotate(q_THD, angles, start, interleaved=interleaved)
        return turned_THD, rotate(k_TKD, angles, start, interleaved=interleaved)

    @property
    def rotates_neighbours(self) -> bool:
        """Whether neighbouring entries of a head are rotated as pairs, rather than entries of its two halves."""
        return self.rope is not None and self.rope.interleaved

    def keep(self, q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor, kv: FusedRotaryKV, angles: Angles | None) -> Tensor:
        """Rotate queries and keys and store keys and values in one kernel; return the rotated queries."""
        return kv.keep(self, q_THD, k_TKD, v_TKW, angles)

    def attend(self, q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None, kv: AttentionContext) -> Tensor:
        """Store keys and values, if there are new ones, and return the attention: [rows, heads x W]."""
        return kv.attend(self, q_THD, k_TKD, v_TKW).flatten(1)

    def scored_queries_and_keys(self, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Return the queries [T, H, D] and keys [T, K, D] whose products are the scores of a call with these inputs."""
        q_THD, k_TKD, _, _, *angles = inputs
        return self.rotate(q_THD, k_TKD, angles[0]) if angles and angles[0] is not None else (q_THD, k_TKD)

    # -- cost ---------------------------------------------------------------------------------------------------------

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Return the cost of attention in a step.

        It is 2 x heads x (D + W) FLOPs per query-key pair (q.k and p.v), and those of the soft cap. Keys and values of
        the context are read once per step, and new ones are written if they are cached. Sinks and biases are read;
        queries and new keys and values enter, and results leave.
        """
        sums = work.attention[self.attention_pattern].total
        if not sums.queries and not sums.written:
            return NO_COST
        new = Cost(activation_bytes=sums.written * self._given if self.spec.is_cached else 0.0)
        return self.attend_cost(sums) + self.rotate_cost(sums, 0) + new

    @override
    def cost_of(self, rows: int) -> Cost:
        """Raise AssertionError: the cost depends on the sequence lengths, which a row count does not contain."""
        raise AssertionError("attention is priced by its query-key pairs and keys, not by rows")

    def attend_cost(self, sums: AttentionSum) -> Cost:
        """Return the cost of storing a step's keys and values and of attending to all visible ones."""
        stored, kept = format_of(self.spec.dtype), self.spec.is_cached
        keys, written = sums.keys * self._position, sums.written * self._position
        rows = sums.queries * self.heads * (self.spec.k_dim + self.value_dim) * stored.bytes
        flops = {stored.name: 2.0 * self.heads * (self.spec.k_dim + self.value_dim) * sums.pairs}
        if self.softcap is not None:
            flops["fp32"] = flops.get("fp32", 0.0) + SOFTCAP_FLOPS * self.heads * sums.pairs
        return Cost(
            flops=flops,
            weight_bytes=self._weight_bytes,
            kv_read_bytes=keys if kept else 0.0,
            kv_write_bytes=written if kept else 0.0,
            activation_bytes=rows if kept else rows + sums.keys * self._given,
        )

    def rotate_cost(self, sums: AttentionSum, streams: int) -> Cost:
        """Return the cost of rotating queries and keys by their positions.

        Args:
            sums: The attention sums of the step.
            streams: The number of times that queries and keys are read or written in all.
        """
        if self.rope is None:
            return NO_COST
        elements = (sums.queries * self.heads + sums.written * self.spec.heads) * self.spec.k_dim
        return Cost(
            {"fp32": float(self.ROTATE_FLOPS * elements)},
            activation_bytes=streams * elements * format_of(self.spec.dtype).bytes,
        )

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return the kernel launches of one attention layer in a step.

        They are one rotation, one call for all sequences with a single query, and one call for each other sequence.
        """
        attention = work.attention[self.attention_pattern]
        if not attention.total.queries and not attention.total.written:
            return ()
        classes = (
            ("decode", 1, attention.one),
            ("few", attention.few.sequences, attention.few),
            ("prefill", attention.many.sequences, attention.many),
        )
        turns = () if self.rope is None else (self.rotate_launch(attention.total),)
        return (*turns, *chain(*(self.attend_launches(*each) for each in classes if each[-1].sequences)))

    def attend_launches(self, name: str, calls: int, sums: AttentionSum) -> tuple[Launch, ...]:
        """Return the kernel launches that attend in one class of query lengths (decode, few or prefill)."""
        shared = self.heads // self.spec.heads
        cost = self.attend_cost(sums)
        return (Launch(self._names[name], self.number_format, calls, cost, "attend", query_heads_per_kv_head=shared),)

    def rotate_launch(self, total: AttentionSum) -> Launch:
        """Return the kernel launch that rotates queries and keys by their positions."""
        return Launch(self._names["rotate"], self.number_format, 1, self.rotate_cost(total, 2), self.rotates_in)

    @override
    def score_matrix_bytes(self, work: Work) -> float:
        """Return the bytes that attention moves if it writes its score matrix to memory.

        The kernels write q k^T, read it for the softmax, write that back, and read it for the product with v (Dao et
        al., arXiv:2205.14135, algorithm 0). Masked pairs are not counted.
        """
        pairs = work.attention[self.attention_pattern].total.pairs
        return 4 * self.heads * pairs * format_of(self.spec.dtype).bytes

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return the number and bytes of a layer's sinks and biases; KV scales are no parameters of the model."""
        scales = sum(scale is not None for scale in (self.k_scale, self.v_scale))
        own = list(self.parameters())
        return (StorageShare(None, sum(p.numel() for p in own) - scales, float(sum(p.nbytes for p in own))),)

    @override
    def signature(self) -> Hashable:
        return self.heads, self.spec, self.value_dim, self.rope is None, self.softcap is None, self._weight_bytes

    @override
    def extra_repr(self) -> str:
        reach = "" if self.attention_pattern.kind == "causal" else f", {self.attention_pattern}"
        return f"{self.heads} heads over {self.spec.heads} x {self.spec.k_dim}{reach}"
