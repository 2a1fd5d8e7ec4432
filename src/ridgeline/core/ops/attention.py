"""Attention over segments, of every reach: the op and its cost. Pure: where K and V live is the caller's
(kv_context.py); what torch computes is in torch_attention.py.

Shapes: T rows of a step, N rows of keys, H heads, K kv heads, D head dim, W width of a value, E numbers of a latent.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, SOFTCAP_FLOPS, Cost
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.kv_quantisation import NO_SCALES
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op, OpBackend, by_head
from ridgeline.core.ops.rotary import Angles, Rope, rotate
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, weight
from ridgeline.core.ops.work import TOKENS, AttentionPattern, AttentionSum, RowAxis, Work

PositionBias = Callable[[Tensor], Tensor]
"""Distances (key position - query position) int64 [...] -> what is added to the scores of each head [H, ...]."""

ONE_SCALE = "kv_scale"
"""The tensor of a checkpoint that has one scale for a layer's keys and values together."""
_SCALES = "k_scale", "v_scale"


class AttentionContext(Protocol):
    """The part of a KVContext that `Attention` calls."""

    def attend(self, op: "Attention", q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None) -> Tensor:
        """Keep what is given of the step's K and V for the op's layer, and attend every query to what it reaches of its
        sequence so far -> [T, H, W]. For what the op says of itself (scale, sinks, ...) it is asked.
        """
        ...


class FusedRotaryKV(ABC):
    """A KVContext that turns queries and keys on the way, as one kernel does for all rows that it keeps."""

    @abstractmethod
    def keep(self, op: "Attention", q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor, angles: Angles | None) -> Tensor:
        """Keep the step's K and V for the op's layer, turned by the angles if there are any -> the queries, turned
        [T, H, D]; `attend` is then given no K and V.
        """


class AttentionBackend(OpBackend):
    """The part of a backend that attention calls, in PyTorch. What it keeps and attends is the context's."""

    def rotate(
        self, op: "Attention", q_THD: Tensor, k_TKD: Tensor, angles: Angles, start: int
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by their positions' angles, from entry `start` of each head on."""
        return op.rotated(q_THD, k_TKD, angles, start)


class Attention(Op):
    """softmax(q k^T x scale) v over what the reach leaves (GQA: Ainslie et al., arXiv:2305.13245). One boundary:
    rotate, store and attend.

    softcap: scores are squashed to (-softcap, softcap) (Gemma 2, arXiv:2408.00118). sinks: a learned score a head that
    takes part in the softmax and has no value (gpt-oss). bias: of the distance of two positions (T5). Where v is not
    kept (`spec.v_dim` 0) it is the first `value_dim` entries of k: a latent (DeepSeek-V2, arXiv:2405.04434).
    """

    kind = "attention"
    backend: AttentionBackend = AttentionBackend()
    parts: tuple[str, ...] = ("rotate", "attend")
    reads_context = True
    ROTATE_FLOPS = 3  # of each entry

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
        """layer: its place among the model's layers that keep K and V. heads: of this rank. scale: 1 / sqrt(D) where
        none is given. shard: the part of the heads that they are.
        """
        super().__init__()
        assert spec.v_dim or value_dim, "a latent says how much of it is the value"
        self.layer, self.heads, self.spec, self.rope, self.shard = layer, heads, spec, rope, shard
        self.scale = 1 / math.sqrt(spec.k_dim) if scale is None else scale
        self.softcap, self.bias, self.value_dim = softcap, bias, spec.v_dim or value_dim or 0
        self.sinks_H = weight(heads, dtype=spec.dtype) if sinks else None
        stated = spec.stored is not None and spec.stored.stated
        self.k_scale, self.v_scale = (weight(1, dtype=torch.float32) if stated else None for _ in range(2))
        self.one_scale = False
        self._weight_bytes = self.stored_bytes()
        self._names = {name: by_head(f"attention.{name}", spec.k_dim) for name in ("decode", "prefill")}
        self._names["few"] = f"{self._names['prefill']}.few"  # where nobody has timed it, a prefill of such heads
        turn = by_head("elementwise.rotate", spec.k_dim)  # neighbours are turned another way than halves
        self._names["rotate"] = f"{turn}.neighbours" if rope is not None and rope.interleaved else turn
        # Of K and V of one position, as they are stored and as they come; a price asks for them several times a step.
        self._position, self._given = spec.slot_bytes, spec.given_bytes

    @property
    @override
    def reach(self) -> AttentionPattern:
        """As Op.reach: which keys a query sees."""
        return self.spec.reach

    @property
    @override
    def kept_spec(self) -> KVSpec | None:
        return self.spec if self.spec.kept else None

    @override
    def disable_kv_cache(self) -> None:
        self.spec = replace(self.spec, at_once=True)

    @override
    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """As Stored.match_checkpoint: whether keys and values share one scale."""
        self.one_scale = self.k_scale is not None and dtype_of(ONE_SCALE) is not None

    @override
    def tensors(self) -> tuple[str, ...]:
        """As Stored.tensors: a scale of the keys and one of the values, or ONE_SCALE of both (`one_scale`)."""
        own = super().tensors()
        return (*(name for name in own if name not in _SCALES), ONE_SCALE) if self.one_scale else own

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """As Stored.dtype_of; scales of keys and values are read as they are stored."""
        return super().dtype_of(name) if name == "sinks_H" else None

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take: the sinks of this rank's heads; scales of keys and values, which all ranks have. Raises
        ValueError for a scale that is not above 0.
        """
        if name == "sinks_H":
            return {name: self.shard.slice(full, 0)}
        if full.numel() != 1 or not full.item() > 0:
            raise ValueError("is to be one scale above 0 of a layer's keys or values; the checkpoint is broken")
        return dict.fromkeys(_SCALES if name == ONE_SCALE else (name,), full.reshape(1).float())

    @cached_property
    def kv_scales(self) -> tuple[float, float]:
        """The layer's scales of keys and of values, where a checkpoint states them; asked of their tensors once, since
        every step of every layer wants them.
        """
        if self.k_scale is None or self.v_scale is None:
            return NO_SCALES
        return self.k_scale.item(), self.v_scale.item()

    @property
    def plain(self) -> bool:
        """Whether its scores are q k^T x scale and nothing more, as kernels at hand compute them."""
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
        """q_THD [rows, heads, D], k_TKD [rows, kv_heads, D], v_TKW [rows, kv_heads, W] -> [rows, heads x W].

        k and v may be those of an encoder, of other rows, or None where they are kept from an earlier step; v None
        where it is part of k. angles: of the rows, where the op has a rope.
        """
        assert (angles is not None) == (self.rope is not None)
        if "keep" in self.parts and k_TKD is not None and v_TKW is not None and isinstance(kv, FusedRotaryKV):
            return self.attend(self.keep(q_THD, k_TKD, v_TKW, kv, angles), None, None, kv)
        if angles is not None and k_TKD is not None:
            q_THD, k_TKD = self.rotate(q_THD, k_TKD, angles)
        return self.attend(q_THD, k_TKD, v_TKW, kv)

    def rotate(self, q_THD: Tensor, k_TKD: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by their positions' angles; of a latent what follows the value, which has no
        position.
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
        """Whether neighbouring entries of a head are rotated together, rather than its two halves."""
        return self.rope is not None and self.rope.interleaved

    def keep(self, q_THD: Tensor, k_TKD: Tensor, v_TKW: Tensor, kv: FusedRotaryKV, angles: Angles | None) -> Tensor:
        """Rotate and store at once -> the queries, rotated."""
        return kv.keep(self, q_THD, k_TKD, v_TKW, angles)

    def attend(self, q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None, kv: AttentionContext) -> Tensor:
        """Store, and attend."""
        return kv.attend(self, q_THD, k_TKD, v_TKW).flatten(1)

    def meeting(self, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """The queries [T, H, D] and keys [T, K, D] whose products are the scores of a call with these inputs."""
        q_THD, k_TKD, _, _, *angles = inputs
        return self.rotate(q_THD, k_TKD, angles[0]) if angles and angles[0] is not None else (q_THD, k_TKD)

    # -- cost ---------------------------------------------------------------------------------------------------------

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """2 x heads x (D + W) FLOPs a pair (q.k and p.v), and those of its soft cap; K and V of the context read once a
        step, the new ones written where they are kept; sinks and biases; queries, new K and V in, results out.
        """
        sums = work.attention[self.reach].total
        if not sums.queries and not sums.written:
            return NO_COST
        new = Cost(activation_bytes=sums.written * self._given if self.spec.kept else 0.0)
        return self.attend_cost(sums) + self.rotate_cost(sums, 0) + new

    @override
    def cost_of(self, rows: int) -> Cost:
        """Rows do not say how long their sequences are."""
        raise AssertionError("attention is priced by its pairs and keys, not by rows")

    def attend_cost(self, sums: AttentionSum) -> Cost:
        """Of storing and attending."""
        stored, kept = format_of(self.spec.dtype), self.spec.kept
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
        """Of turning queries and keys, read and written `streams` times in all."""
        if self.rope is None:
            return NO_COST
        elements = (sums.queries * self.heads + sums.written * self.spec.heads) * self.spec.k_dim
        return Cost(
            {"fp32": float(self.ROTATE_FLOPS * elements)},
            activation_bytes=streams * elements * format_of(self.spec.dtype).bytes,
        )

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """As Op.launches: one that rotates; then one call for the sequences with a single query, and one for each of
        the others.
        """
        attention = work.attention[self.reach]
        if not attention.total.queries and not attention.total.written:
            return ()
        classes = (
            ("decode", 1, attention.one),
            ("few", attention.few.sequences, attention.few),
            ("prefill", attention.many.sequences, attention.many),
        )
        attends = tuple(
            Launch(
                self._names[name], self.number_format, calls, self.attend_cost(own), "attend",
                sharers=self.heads // self.spec.heads,
            )
            for name, calls, own in classes
            if own.sequences
        )  # fmt: skip
        return attends if self.rope is None else (self.rotate_launch(attention.total), *attends)

    def rotate_launch(self, total: AttentionSum) -> Launch:
        """Return the call that rotates queries and keys."""
        return Launch(self._names["rotate"], self.number_format, 1, self.rotate_cost(total, 2), "rotate")

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.spec.dtype).name

    @property
    @override
    def score_heads(self) -> int:
        return self.heads

    @override
    def score_matrix_bytes(self, work: Work) -> float:
        """As Op.score_matrix_bytes: q k^T written, read for the softmax, written back, read for the product with v (Dao
        et al., arXiv:2205.14135, algorithm 0). Masked pairs not counted.
        """
        pairs = work.attention[self.reach].total.pairs
        return 4 * self.heads * pairs * format_of(self.spec.dtype).bytes

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares, its bias included; scales are no parameters of the model."""
        scales = sum(scale is not None for scale in (self.k_scale, self.v_scale))
        own = list(self.parameters())
        return (StorageShare(None, sum(p.numel() for p in own) - scales, float(sum(p.nbytes for p in own))),)

    @override
    def signature(self) -> Hashable:
        return self.heads, self.spec, self.value_dim, self.rope is None, self.softcap is None, self._weight_bytes

    @override
    def extra_repr(self) -> str:
        reach = "" if self.reach.kind == "causal" else f", {self.reach}"
        return f"{self.heads} heads over {self.spec.heads} x {self.spec.k_dim}{reach}"
