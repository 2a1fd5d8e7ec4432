"""Multi-head latent attention (MLA: DeepSeek-V2, arXiv:2405.04434).

The KV cache holds one latent per position, shared by all heads. A stored matrix projects the latent to each head's key
and value.

There are two ways to attend, equal but for rounding. Expanded: the matrix projects the latents of all visible positions
to keys and values, and attention is ordinary multi-head attention. Absorbed: each query is multiplied by the key part
of the matrix, scores are products with the latents, which all heads share, and the value part of the matrix is applied
to the weighted sums. `LatentAttention.expands` chooses between them, both for running a step and for pricing it.

Shapes: T rows of a step, Q queries and L keys of one sequence, B sequences, H heads, N part of a head without
positions, R part with positions, D = N + R, C latent, E = C + R cached entries per position, W width of a value.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.cost_features import Feature, KernelThreshold
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.linear import product_kernel
from ridgeline.core.ops.matrix import Matrix, MatrixSpec, matrix_of
from ridgeline.core.ops.number_formats import WeightFormat, format_of
from ridgeline.core.ops.op import Launch, kernel_by_head_dim, stored_name
from ridgeline.core.ops.rotary import Angles, Rope, rotate
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.torch_attention import attend_padded, attend_segment
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import TOKENS, AttentionSum, AttentionWork, RowAxis, Work


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of multi-head latent attention."""

    latent: int
    """The entries of a position's latent, which all heads share."""
    nope: int
    """The number of entries of a head's query and key that are not rotated by position."""
    rotary: int
    """The number of entries of a head's query and key that are rotated by position."""
    value: int
    """The number of entries of a head's value."""

    @property
    def key(self) -> int:
        """The number of entries of a head's query and key, rotated or not."""
        return self.nope + self.rotary

    @property
    def kept(self) -> int:
        """The number of cached entries per position: its latent and the rotated part of the key."""
        return self.latent + self.rotary


class LatentContext(Protocol):
    """The part of the KVContext interface that `LatentAttention` calls."""

    def attend_latent(self, op: "LatentAttention", q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Store the step's latents [T, 1, E], and attend each query to its sequence: [T, H, W].

        The op chooses the form, expanded or absorbed, for each class of query lengths in the step.
        """


class LatentAttention(Attention):
    """The attention of one layer over cached latents, with the matrix that projects them to keys and values."""

    unnamed = True
    rotates_in = "rotate_latent"
    parts: tuple[str, ...] = (rotates_in, "attend_latent")

    def __init__(
        self, layer: int, heads: int, sizes: LatentSizes, kv_b: MatrixSpec, spec: KVSpec, *, rope: Rope | None,
        scale: float,
    ) -> None:  # fmt: skip
        """Create the latent attention of one layer.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            heads: The number of heads of this rank; latents belong to all heads and are whole on each rank.
            sizes: The sizes of latents, keys and values.
            kv_b: The matrix from a latent to each head's key without positions and its value, head by head.
            spec: The format of the KV cache: one head of `sizes.kept` entries, without values.
            rope: The rotary embedding of queries and keys; None if they are rotated before the op, or not at all.
            scale: The factor on the scores.
        """
        assert (spec.heads, spec.k_dim, spec.v_dim) == (1, sizes.kept, 0)
        super().__init__(layer, heads, spec, rope=rope, scale=scale, value_dim=sizes.latent)
        self.sizes, self.kv_b_proj = sizes, matrix_of(kv_b)
        assert self.kv_b_proj.outputs == heads * (sizes.nope + sizes.value)
        self._weight_bytes = self.kv_b_proj.stored_bytes()
        self._names["expanded"] = kernel_by_head_dim("attention.prefill", sizes.key)
        product, wider = sizes.latent * (sizes.nope + sizes.value), sizes.kept + sizes.latent - sizes.key - sizes.value
        self._expands = KernelThreshold(queries=-product, keys=product, pairs=-wider)

    @override
    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {"kv_b_proj": self.kv_b_proj.spec.place("matrix", "kv_b_proj")}

    @override
    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.kv_b_proj = matrix_of(self.kv_b_proj.spec, stored["kv_b_proj"])
        self._weight_bytes = self.kv_b_proj.stored_bytes()

    def expands(self, sums: AttentionSum) -> bool:
        """Return whether it takes fewer FLOPs to expand latents to keys and values before attention than not.

        The decision is for sequences with these `sums`, which cover one class of query lengths. The expanded form
        multiplies every key by the matrix, not only the queries. The absorbed form has scores and sums as wide as a
        latent, not as wide as a head. In decode, where bytes are the limit, the same choice also moves the fewest
        bytes: it reads latents and creates no keys and values.
        """
        return self._expands.holds(sums)

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        """The thresholds at which the cost formula of latent attention changes.

        They are those at which latents are expanded to keys and values, and at which the products with the projection
        matrix have a single row, of a query or of a key.
        """
        return self._expands, KernelThreshold(queries=1, limit=1), KernelThreshold(keys=1, limit=1)

    def expanded(self, attention: AttentionWork) -> tuple[bool, bool, bool]:
        """Return whether latents are expanded to keys and values, per class of query lengths (one, few, many)."""
        return self.expands(attention.one), self.expands(attention.few), self.expands(attention.many)

    # -- what it computes ---------------------------------------------------------------------------------------------

    @override
    def forward(  # type: ignore[override]
        self, q_THD: Tensor, latent_TC: Tensor, turned_TR: Tensor, kv: LatentContext, angles: Angles | None
    ) -> Tensor:
        """Return the attention of a step's queries: [rows, heads x W].

        Args:
            q_THD: The queries [rows, heads, D].
            latent_TC: The latents [rows, C].
            turned_TR: The part of the keys with positions [rows, R], not yet rotated if the op has a rope.
            kv: The KV context of the step.
            angles: The rotary angles of the rows, if the op has a rope.
        """
        return self.attend_latent(*self.rotate_latent(q_THD, latent_TC, turned_TR, angles), kv)

    def rotate_latent(
        self, q_THD: Tensor, latent_TC: Tensor, turned_TR: Tensor, angles: Angles | None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries with their last R entries rotated, and the entries to cache: [T, 1, C + R].

        Without a rope nothing is rotated.
        """
        assert (angles is None) == (self.rope is None)
        turned_T1R = turned_TR[:, None]
        if angles is not None:
            turned_T1R = rotate(turned_T1R, angles, interleaved=self.rotates_neighbours)
            q_THD = rotate(q_THD, angles, self.sizes.nope, interleaved=self.rotates_neighbours)
        return q_THD, torch.cat([latent_TC[:, None], turned_T1R], dim=-1)

    def attend_latent(self, q_THD: Tensor, kept_T1E: Tensor, kv: LatentContext) -> Tensor:
        """Store the step's latents in the KV cache and attend to the visible ones: [rows, heads x W]."""
        return kv.attend_latent(self, q_THD, kept_T1E).flatten(1)

    @override
    def scored_queries_and_keys(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the absorbed queries and the latents whose products are the scores of a call with these inputs."""
        q_THD, latent_TC, turned_TR, _, angles = inputs
        assert angles is None or isinstance(angles, tuple)
        q_THD, kept_T1E = self.rotate_latent(q_THD, latent_TC, turned_TR, angles)
        return self.absorb(q_THD), kept_T1E

    def over_segment(self, q_QHD: Tensor, kept_1LE: Tensor, first: int, *, expanded: bool) -> Tensor:
        """Attend the queries of one sequence to its latents: [Q, H, W].

        Args:
            q_QHD: The queries.
            kept_1LE: The cached entries of its positions [1, L, C + R].
            first: The position of the first of them.
            expanded: Whether to use the expanded form.
        """
        if expanded:
            return attend_segment(self, q_QHD, *self.expand(kept_1LE[0]), first)
        out_QHC = attend_segment(self, self.absorb(q_QHD), kept_1LE, kept_1LE[..., : self.sizes.latent], first)
        return self.project_values(out_QHC)

    def over_padded(
        self, q_BHD: Tensor, kept_1BLE: Tensor, distance_BL: Tensor, visible_BL: Tensor, *, expanded: bool
    ) -> Tensor:
        """Attend one query each of B sequences to latents padded to one length: [B, H, W].

        Args:
            q_BHD: The queries.
            kept_1BLE: The cached entries [1, B, L, C + R].
            distance_BL: The key position minus the query position.
            visible_BL: Whether the query sees the key.
            expanded: Whether to use the expanded form.
        """
        if expanded:
            return attend_padded(self, q_BHD, *self.expand(kept_1BLE[0]), distance_BL, visible_BL)
        latents = kept_1BLE[..., : self.sizes.latent]
        return self.project_values(attend_padded(self, self.absorb(q_BHD), kept_1BLE, latents, distance_BL, visible_BL))

    def expand(self, kept_xE: Tensor) -> tuple[Tensor, Tensor]:
        """Project the cached entries of positions [..., C + R] to keys [H, ..., D] and values [H, ..., W]."""
        sizes, shape = self.sizes, kept_xE.shape[:-1]
        latent_xC, turned_xR = torch.split(kept_xE, [sizes.latent, sizes.rotary], dim=-1)
        both_xHN = self.kv_b_proj.product(latent_xC.reshape(-1, sizes.latent)).view(*shape, self.heads, -1)
        plain_xHN, v_xHW = torch.split(both_xHN, [sizes.nope, sizes.value], dim=-1)
        turned_xHR = turned_xR[..., None, :].expand(*shape, self.heads, sizes.rotary)
        return torch.cat([plain_xHN, turned_xHR], dim=-1).movedim(-2, 0), v_xHW.movedim(-2, 0)

    def absorb(self, q_THD: Tensor) -> Tensor:
        """Return queries multiplied by the projection's key part, for products with latents: [T, H, C + R]."""
        plain_THN, turned_THR = torch.split(q_THD, [self.sizes.nope, self.sizes.rotary], dim=-1)
        to_key_HNC, _ = self._by_head()
        met_HTC = plain_THN.transpose(0, 1) @ to_key_HNC
        return torch.cat([met_HTC.transpose(0, 1), turned_THR], dim=-1)

    def project_values(self, out_THC: Tensor) -> Tensor:
        """Project weighted sums of latents to weighted sums of values: [T, H, W]."""
        _, to_value_HWC = self._by_head()
        return (out_THC.transpose(0, 1) @ to_value_HWC.transpose(1, 2)).transpose(0, 1)

    def _by_head(self) -> tuple[Tensor, Tensor]:
        """Return the parts of the latents' projection matrix for each head's key [H, N, C] and value [H, W, C]."""
        by_head = self.kv_b_proj.dequantised().view(self.heads, -1, self.sizes.latent)
        return by_head[:, : self.sizes.nope], by_head[:, self.sizes.nope :]

    # -- cost ---------------------------------------------------------------------------------------------------------

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Return the cost of latent attention in a step.

        Each class of query lengths has the form that `expands` chooses. The cost comprises products with the matrix
        over queries or keys; 2 x heads FLOPs per query-key pair for each entry of scores and sums; the latents of the
        context, read once; the new latents, written; and the matrix, read once.
        """
        attention = work.attention[self.attention_pattern]
        total = attention.total
        if not total.queries and not total.written:
            return NO_COST
        kept = Cost(weight_bytes=self._weight_bytes, activation_bytes=total.written * self._given)
        cost = self.rotate_cost(total, 0) + kept
        for sums in (attention.one, attention.few, attention.many):
            if sums.sequences:
                cost = cost + self._products_cost(sums) + self.attend_cost(sums)
        return cost

    @override
    def attend_cost(self, sums: AttentionSum) -> Cost:
        """Return the cost of latent attention's scores and weighted sums, without its projections.

        Latents are read and written, queries enter, and results leave.
        """
        sizes, stored = self.sizes, format_of(self.spec.dtype)
        entries = sizes.key + sizes.value if self.expands(sums) else sizes.kept + sizes.latent
        return Cost(
            flops={stored.name: 2.0 * self.heads * entries * sums.pairs},
            kv_read_bytes=sums.keys * self._position,
            kv_write_bytes=sums.written * self._position,
            activation_bytes=sums.queries * self.heads * (sizes.key + sizes.value) * stored.bytes,
        )

    def _products_cost(self, sums: AttentionSum) -> Cost:
        """Return the FLOPs of products with the latents' projection matrix, whose results could stay out of memory."""
        expands = self.expands(sums)
        rows, own = sums.keys if expands else sums.queries, self.kv_b_proj
        # The absorbed products run in the model's dtype, to which a narrower matrix is dequantised.
        number_format = own.number_format if expands else format_of(self.spec.dtype).name
        return Cost({number_format: 2.0 * rows * own.inputs * own.outputs})

    @override
    def rotate_cost(self, sums: AttentionSum, streams: int) -> Cost:
        if self.rope is None:
            return NO_COST
        elements = (sums.queries * self.heads + sums.written) * self.sizes.rotary
        moved = streams * elements * format_of(self.spec.dtype).bytes
        return Cost({"fp32": float(self.ROTATE_FLOPS * elements)}, activation_bytes=moved)

    @override
    def attend_launches(self, name: str, calls: int, sums: AttentionSum) -> tuple[Launch, Launch]:
        """Return the launches of the products and of attention in one class of query lengths.

        The products with the matrix write their results to memory, from which attention reads them.
        """
        expands, sizes = self.expands(sums), self.sizes
        rows = sums.keys if expands else sums.queries
        between = self.heads * (sizes.key + sizes.value if expands else sizes.kept + sizes.latent)
        made = Cost(
            weight_bytes=self._weight_bytes, activation_bytes=2.0 * rows * between * format_of(self.spec.dtype).bytes
        )
        products = self._products_cost(sums) + made
        stored, number_format = stored_name(self.kv_b_proj.stored), next(iter(products.flops))
        return (
            Launch(product_kernel("linear", rows, self.kv_b_proj), number_format, 2 * calls, products, "attend_latent",
                   stored),
            Launch(self._names["expanded" if expands and name == "prefill" else name], self.number_format, calls,
                   self.attend_cost(sums), "attend_latent", query_heads_per_kv_head=1 if expands else self.heads),
        )  # fmt: skip

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        matrix = self._modules.get("kv_b_proj")  # missing while Attention.__init__ runs
        return matrix.storage_shares() if isinstance(matrix, Matrix) else ()

    @override
    def signature(self) -> Hashable:
        return self.heads, self.spec, self.sizes, self.rope is None, self.kv_b_proj.spec, self.kv_b_proj.stored

    @override
    def extra_repr(self) -> str:
        return f"{self.heads} heads over a latent of {self.sizes.latent} + {self.sizes.rotary}"


def latent_scale(key: int, factor: float, magnitude: float) -> float:
    """Return the factor on latent-attention scores, 1 / sqrt(key) times the temperature of YaRN.

    The temperature is (0.1 magnitude ln factor + 1)^2 (DeepSeek-V2's reference code).
    """
    temperature = 0.1 * magnitude * math.log(factor) + 1.0 if factor > 1 else 1.0
    return temperature * temperature / math.sqrt(key)
