"""Attention over segments, of every reach. Pure: where K and V live is the caller's.

Shapes: T rows of a step, E rows of an encoder, B sequences, Q queries and L keys of one sequence, H heads, K kv heads,
G = H / K, D head dim, W width of a value.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import NO_COST, SOFTCAP_FLOPS, Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.kernels import NUMBERS, native
from ridgeline.ops.kernels.attention import rotate as rotate_natively
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.op import Kernel, Op, by_head
from ridgeline.ops.rotary import Angles, Rope, rotate
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.stored import Share, weight
from ridgeline.ops.work import ENCODER, FEW, TOKENS, AttentionSum, AttentionWork, Reach, Segment, Space, Work

if TYPE_CHECKING:
    from ridgeline.ops.latent import LatentAttention
    from ridgeline.ops.recurrence import Recurrence

PositionBias = Callable[[Tensor], Tensor]
"""Distances (key position - query position) int64 [...] -> what is added to the scores of each head [H, ...]."""


class KVContext(Protocol):
    """Where one forward keeps its keys and values: pages, or nowhere (`Uncached`)."""

    def attend(self, op: "Attention", q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None) -> Tensor:
        """Keep what is given of the step's K and V for the op's layer, and attend every query to what it reaches of its
        sequence so far -> [T, H, W]. For what the op says of itself (scale, sinks, ...) it is asked."""
        ...

    def attend_latent(self, op: "LatentAttention", q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """The same over latents, in the form that the op chooses for each class of the step's sequences."""
        ...

    def recur(self, op: "Recurrence", inputs: tuple[Tensor, ...]) -> Tensor:
        """Move the op's state of every sequence on by the step's rows of it, which `inputs` have [T, ...] -> [T, W]."""
        ...


class Attention(Op):
    """softmax(q k^T x scale) v over what the reach leaves (GQA: Ainslie et al., arXiv:2305.13245). One boundary:
    rotate, store and attend.

    softcap: scores are squashed to (-softcap, softcap) (Gemma 2, arXiv:2408.00118). sinks: a learned score a head that
    takes part in the softmax and has no value (gpt-oss). bias: of the distance of two positions (T5). Where v is not
    kept (`spec.v_dim` 0) it is the first `value_dim` entries of k: a latent (DeepSeek-V2, arXiv:2405.04434).
    """

    kind = "attention"
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
        none is given. shard: the part of the heads that they are."""
        super().__init__()
        assert spec.v_dim or value_dim, "a latent says how much of it is the value"
        self.layer, self.heads, self.spec, self.rope, self.shard = layer, heads, spec, rope, shard
        self.scale = 1 / math.sqrt(spec.k_dim) if scale is None else scale
        self.softcap, self.bias, self.value_dim = softcap, bias, spec.v_dim or value_dim or 0
        self.sinks_H = weight(heads, dtype=spec.dtype) if sinks else None
        self._weight_bytes = self.stored_bytes()
        self._names = {name: by_head(f"attention.{name}", spec.k_dim) for name in ("decode", "prefill")}
        self._names["few"] = f"{self._names['prefill']}.few"  # where nobody has timed it, a prefill of such heads
        self._names["paged"] = by_head("attention.paged", spec.k_dim)
        self._names["rotate"] = by_head("elementwise.rotate", spec.k_dim)
        self._position = spec.slot_bytes  # of K and V of one position; a price asks for it several times a step

    @property
    def reach(self) -> Reach:
        """Which keys a query sees."""
        return self.spec.reach

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take: the sinks of this rank's heads."""
        return {name: self.shard.slice(full, 0)}

    @property
    def plain(self) -> bool:
        """Whether its scores are q k^T x scale and nothing more, as kernels at hand compute them."""
        return self.softcap is None and self.sinks_H is None and self.bias is None

    @property
    def ours(self) -> bool:
        """As Op.ours: it keeps its keys and values, in a format that our kernels read, turns no neighbours, and adds no
        bias of positions to its scores."""
        turns = self.rope is None or not self.rope.interleaved
        return turns and self.spec.kept and self.bias is None and self.spec.dtype in NUMBERS

    def forward(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKW: Tensor | None,
        kv: KVContext,
        angles: Angles | None = None,
    ) -> Tensor:
        """q_THD [rows, heads, D], k_TKD [rows, kv_heads, D], v_TKW [rows, kv_heads, W] -> [rows, heads x W].

        k and v may be those of an encoder, of other rows, or None where they are kept from an earlier step; v None
        where it is part of k. angles: of the rows, where the op has a rope.
        """
        assert (angles is not None) == (self.rope is not None)
        if angles is not None and k_TKD is not None:
            q_THD, k_TKD = self.rotate(q_THD, k_TKD, angles)
        return self.attend(q_THD, k_TKD, v_TKW, kv)

    def rotate(self, q_THD: Tensor, k_TKD: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by their positions' angles; of a latent what follows the value, which has no
        position."""
        start = 0 if self.spec.v_dim else self.value_dim
        interleaved = self.rope is not None and self.rope.interleaved
        if not interleaved and (kernels := native(q_THD)):
            q_THD, k_TKD = rotate_natively(kernels, (q_THD, k_TKD), angles, start)
            return q_THD, k_TKD
        q_THD = rotate(q_THD, angles, start, interleaved=interleaved)
        return q_THD, rotate(k_TKD, angles, start, interleaved=interleaved)

    def attend(self, q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None, kv: KVContext) -> Tensor:
        """Store, and attend."""
        return kv.attend(self, q_THD, k_TKD, v_TKW).flatten(1)

    def meeting(self, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """The queries [T, H, D] and keys [T, K, D] whose products are the scores of a call with these inputs."""
        q_THD, k_TKD, _, _, *angles = inputs
        return self.rotate(q_THD, k_TKD, angles[0]) if angles and angles[0] is not None else (q_THD, k_TKD)

    # -- cost ---------------------------------------------------------------------------------------------------------

    def cost(self, work: Work, space: Space = TOKENS) -> Cost:
        """2 x heads x (D + W) FLOPs a pair (q.k and p.v), and those of its soft cap; K and V of the context read once a
        step, the new ones written where they are kept; sinks and biases; queries, new K and V in, results out."""
        sums = work.attention[self.reach].total
        if not sums.queries and not sums.written:
            return NO_COST
        new = Cost(activation_bytes=sums.written * self._position if self.spec.kept else 0.0)
        return self._attend_cost(sums) + self._rotate_cost(sums, 0) + new

    def cost_of(self, rows: int) -> Cost:
        """Rows do not say how long their sequences are."""
        raise AssertionError("attention is priced by its pairs and keys, not by rows")

    def _attend_cost(self, sums: AttentionSum) -> Cost:
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
            activation_bytes=rows if kept else rows + keys,
        )

    def _rotate_cost(self, sums: AttentionSum, streams: int) -> Cost:
        """Of turning queries and keys, read and written `streams` times in all."""
        if self.rope is None:
            return NO_COST
        elements = (sums.queries * self.heads + sums.written * self.spec.heads) * self.spec.k_dim
        return Cost(
            {"fp32": float(self.ROTATE_FLOPS * elements)},
            activation_bytes=streams * elements * format_of(self.spec.dtype).bytes,
        )

    def kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.kernels: one that rotates; then one call for the sequences with a single query, and one for each of the
        others."""
        attention = work.attention[self.reach]
        if not attention.total.queries and not attention.total.written:
            return ()
        classes = (
            ("decode", 1, attention.one),
            ("few", attention.few.sequences, attention.few),
            ("prefill", attention.many.sequences, attention.many),
        )
        kernels = tuple(
            Kernel(
                self._names[name], self.number_format, calls, self._attend_cost(own), "attend",
                sharers=self.heads // self.spec.heads,
            )
            for name, calls, own in classes
            if own.sequences
        )  # fmt: skip
        return kernels if self.rope is None else (self._rotate_kernel(attention.total), *kernels)

    def own_kernels(self, work: Work, space: Space = TOKENS) -> tuple[Kernel, ...]:
        """As Op.own_kernels: one that rotates; then one for all queries, which reads each page once, whoever asks."""
        total = work.attention[self.reach].total
        if not self.ours or not (total.queries or total.written):
            return self.kernels(work, space)
        attends = Kernel(self._names["paged"], self.number_format, 1, self._attend_cost(total), "attend")
        return (attends,) if self.rope is None else (self._rotate_kernel(total), attends)

    def _rotate_kernel(self, total: AttentionSum) -> Kernel:
        return Kernel(self._names["rotate"], self.number_format, 1, self._rotate_cost(total, 2), "rotate")

    @property
    def number_format(self) -> str:
        """As Op.number_format."""
        return format_of(self.spec.dtype).name

    def score_matrix_bytes(self, work: Work) -> float:
        """What a kernel that keeps its score matrix in memory moves beside `cost`: q k^T written, read for the softmax,
        written back, read for the product with v (Dao et al., arXiv:2205.14135, algorithm 0). Masked pairs not counted.
        """
        pairs = work.attention[self.reach].total.pairs
        return 4 * self.heads * pairs * format_of(self.spec.dtype).bytes

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares, its bias included."""
        own = list(self.parameters())
        return (Share(None, sum(p.numel() for p in own), float(sum(p.nbytes for p in own))),)

    def signature(self) -> Hashable:
        return self.heads, self.spec, self.value_dim, self.rope is None, self.softcap is None, self._weight_bytes

    def extra_repr(self) -> str:
        reach = "" if self.reach.kind == "causal" else f", {self.reach}"
        return f"{self.heads} heads over {self.spec.heads} x {self.spec.k_dim}{reach}"


# -- one sequence, or one query each of several -----------------------------------------------------------------------


def attend_segment(op: Attention, q_QHD: Tensor, k_KLD: Tensor, v_KLW: Tensor, first: int = 0) -> Tensor:
    """One sequence: its queries over L of its keys. Queries are its last Q positions, or in cross-attention and for
    full reach any; `first`: the position of the first key.

    q_QHD [Q, heads, D], k_KLD [kv_heads, L, D], v_KLW [kv_heads, L, W] -> [Q, heads, W].
    """
    queries, keys = q_QHD.shape[0], k_KLD.shape[1]
    mask_QL, causal = None, op.reach.kind in ("causal", "window", "chunked") and queries == keys and first == 0
    if op.reach.kind in ("causal", "window", "chunked") and not (causal and not _binds(op.reach, keys)):
        mask_QL, causal = reach_mask(op.reach, queries, first + keys, first, q_QHD.device), False
    elif op.reach.kind == "local" and keys > op.reach.size + 1:
        mask_QL = reach_mask(op.reach, queries, keys, 0, q_QHD.device)
    if op.plain:
        out_1HQW = functional.scaled_dot_product_attention(
            q_QHD.transpose(0, 1)[None],
            k_KLD[None],
            v_KLW[None],
            attn_mask=mask_QL,
            is_causal=causal,
            scale=op.scale,
            enable_gqa=q_QHD.shape[1] != k_KLD.shape[0],
        )
        return out_1HQW[0].transpose(0, 1)
    if causal:
        mask_QL = reach_mask(op.reach, queries, keys, 0, q_QHD.device)
    groups = q_QHD.shape[1] // k_KLD.shape[0]
    k_HLD, v_HLW = k_KLD.repeat_interleave(groups, 0), v_KLW.repeat_interleave(groups, 0)
    scores_HQL = (q_QHD.transpose(0, 1) @ k_HLD.transpose(-1, -2)).float() * op.scale
    position_Q = torch.arange(first + keys - queries, first + keys, device=q_QHD.device)
    distance_QL = torch.arange(first, first + keys, device=q_QHD.device) - position_Q[:, None]
    visible_QL = torch.ones_like(distance_QL, dtype=torch.bool) if mask_QL is None else mask_QL
    weights_HQL = attention_weights(op, scores_HQL, distance_QL, visible_QL)
    return (weights_HQL.to(v_HLW.dtype) @ v_HLW).transpose(0, 1)


def attend_padded(
    op: Attention, q_BHD: Tensor, k_KBLD: Tensor, v_KBLW: Tensor, distance_BL: Tensor, visible_BL: Tensor
) -> Tensor:
    """One query each of B sequences, over keys padded to one length.

    q_BHD [B, heads, D], k_KBLD [kv_heads, B, L, D], v_KBLW [kv_heads, B, L, W], distance_BL int64 (key - query) and
    visible_BL bool [B, L] -> [B, heads, W]. What is not visible must be finite: its weight is exactly 0, and 0 x NaN
    would not be.
    """
    sequences, heads, dim = q_BHD.shape
    kv_heads = k_KBLD.shape[0]
    q_KBGD = q_BHD.view(sequences, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    scores_KBGL = (q_KBGD @ k_KBLD.transpose(-1, -2)).float() * op.scale
    if op.plain:
        weights_KBGL = scores_KBGL.masked_fill_(~visible_BL[None, :, None, :], float("-inf")).softmax(dim=-1)
    else:
        scores_HBL = scores_KBGL.transpose(1, 2).flatten(0, 1)
        weights_HBL = attention_weights(op, scores_HBL, distance_BL, visible_BL)
        weights_KBGL = weights_HBL.view(kv_heads, -1, *weights_HBL.shape[1:]).transpose(1, 2)
    out_KBGW = weights_KBGL.to(v_KBLW.dtype) @ v_KBLW
    return out_KBGW.transpose(0, 1).reshape(sequences, heads, v_KBLW.shape[-1])


def attention_weights(op: Attention, scores_HxL: Tensor, distance_xL: Tensor, visible_xL: Tensor) -> Tensor:
    """Scaled scores fp32 [heads, ..., L] -> softmax weights, by all that the op says of itself."""
    if op.softcap is not None:
        scores_HxL = (scores_HxL / op.softcap).tanh() * op.softcap
    if op.bias is not None:
        scores_HxL = scores_HxL + op.bias(distance_xL).float()
    scores_HxL = scores_HxL.masked_fill(~visible_xL, float("-inf"))
    if op.sinks_H is None:
        return scores_HxL.softmax(dim=-1)
    sink_Hx1 = op.sinks_H.float().view(-1, *[1] * (scores_HxL.dim() - 1)).expand(*scores_HxL.shape[:-1], 1)
    return torch.cat([scores_HxL, sink_Hx1], dim=-1).softmax(dim=-1)[..., :-1]


def _binds(reach: Reach, keys: int) -> bool:
    """Whether a window or chunk hides anything of a sequence of so many positions."""
    return reach.size != 0 and keys > reach.size


def reach_mask(reach: Reach, queries: int, end: int, first: int, device: torch.device) -> Tensor:
    """True where the last `queries` of `end` positions may look, over keys from position `first`: bool [Q, L]."""
    key_L = torch.arange(first, end, device=device)
    query_Q1 = torch.arange(end - queries, end, device=device)[:, None]
    return visible(reach, query_Q1, key_L)


def visible(reach: Reach, query: Tensor, key: Tensor) -> Tensor:
    """Whether the query at a position sees the key at another, of its own sequence; shapes broadcast."""
    match reach.kind:
        case "window":
            return (key <= query) & (key > query - reach.size)
        case "chunked":
            return (key <= query) & (key // reach.size == query // reach.size)
        case "causal":
            return key <= query
        case "local":
            return (key - query).abs() <= reach.size
        case _:
            return torch.ones_like(key <= query)


def attend_each(
    op: Attention,
    q_THD: Tensor,
    k_NKD: Tensor,
    v_NKW: Tensor | None,
    queries: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    """Whole sequences, one after the other in the rows: each one's `queries` over its `keys`. Nothing is kept.

    q_THD [T, heads, D], k_NKD [N, kv_heads, D], v_NKW [N, kv_heads, W] or None for a latent -> [T, heads, W].
    """
    if q_THD.is_meta:
        return q_THD.new_empty(*q_THD.shape[:2], op.value_dim)
    parts = zip(
        torch.split(q_THD, list(queries)),
        torch.split(k_NKD, list(keys)),
        torch.split(value_of(op, k_NKD, v_NKW), list(keys)),
        strict=True,
    )
    return torch.cat([attend_segment(op, q, k.transpose(0, 1), v.transpose(0, 1)) for q, k, v in parts])


def value_of(op: Attention, k_xD: Tensor, v_xW: Tensor | None) -> Tensor:
    """The values [..., W], which of a latent are the first entries of its key."""
    if op.spec.v_dim:
        assert v_xW is not None
        return v_xW
    return k_xD[..., : op.value_dim]


class Uncached:
    """A KVContext that keeps nothing: every segment is a whole sequence, which attends to itself."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        if any(s.q_len != s.kv_len for s in segments):
            raise ValueError("without a cache every position of a sequence must run; give segments with q_len = kv_len")
        self.segments = segments
        own, encoded = [s.q_len for s in segments], [s.encoded for s in segments]
        self.lengths: dict[Space, list[int]] = {TOKENS: own, ENCODER: encoded}

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """As KVContext.attend; nothing is stored."""
        assert k_NKD is not None, "nothing is kept from an earlier step"
        queries = self.lengths[op.reach.space]
        return attend_each(
            op, q_THD, k_NKD, v_NKW, queries, self.lengths[ENCODER] if op.reach.kind == "cross" else queries
        )

    def attend_latent(self, op: "LatentAttention", q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """As KVContext.attend_latent."""
        if q_THD.is_meta:
            return q_THD.new_empty(*q_THD.shape[:2], op.sizes.value)
        one, few, many = op.expanded(AttentionWork.of(s.attention(op.reach) for s in self.segments))
        lengths = self.lengths[op.reach.space]
        return torch.cat(
            [
                op.over_segment(q, kept.transpose(0, 1), 0, expanded=one if n == 1 else few if n <= FEW else many)
                for n, q, kept in zip(lengths, torch.split(q_THD, lengths), torch.split(kept_T1E, lengths), strict=True)
            ]
        )

    def recur(self, op: "Recurrence", inputs: tuple[Tensor, ...]) -> Tensor:
        """As KVContext.recur, from states of zeros, which are let go."""
        zeros_1N = inputs[0].new_zeros(1, op.spec.numbers, dtype=op.spec.dtype)
        each = zip(*(torch.split(x, self.lengths[TOKENS]) for x in inputs), strict=True)
        return torch.cat([op.advance(zeros_1N, *(x[None] for x in own))[0][0] for own in each])
