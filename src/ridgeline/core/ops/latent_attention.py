"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): what is kept of a position is one latent for all heads,
from which each head's key and value are a product with a stored matrix.

There are two ways to attend, equal but for rounding. Expanded: keys and values of all positions seen are made from
their latents, and attention is that of so many heads. Absorbed: each query takes the matrix in, scores are those with
latents, one for all heads, and the matrix of the values follows the sum. `LatentAttention.expands` says which of the
two, for whoever runs a step and for whoever prices it.

Shapes: T rows of a step, Q queries and L keys of one sequence, B sequences, H heads, N part of a head without
positions, R part with them, D = N + R, C latent, E = C + R what is kept of a position, W width of a value.
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
from ridgeline.core.ops.op import Launch, by_head, stored_name
from ridgeline.core.ops.rotary import Angles, Rope, rotate
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.torch_attention import attend_padded, attend_segment
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import TOKENS, AttentionSum, AttentionWork, RowAxis, Work


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """latent: numbers of a position that all heads share. plain, turned: entries of a head's query and key without
    positions, and with them. value: entries of a head's value.
    """

    latent: int
    plain: int
    turned: int
    value: int

    @property
    def key(self) -> int:
        """Entries of a head's query and key."""
        return self.plain + self.turned

    @property
    def kept(self) -> int:
        """Numbers that are kept of a position: its latent, and the part of the key with its position."""
        return self.latent + self.turned


class LatentContext(Protocol):
    """The part of a KVContext that `LatentAttention` calls."""

    def attend_latent(self, op: "LatentAttention", q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """As AttentionContext.attend, over latents [T, 1, E], in the form that the op chooses for each class of the
        step's sequences -> [T, H, W].
        """
        ...


class LatentAttention(Attention):
    """Rotate, store and attend, over latents, with the matrix that turns them into keys and values."""

    unnamed = True
    parts: tuple[str, ...] = ("rotate_latent", "attend_latent")

    def __init__(
        self, layer: int, heads: int, sizes: LatentSizes, kv_b: MatrixSpec, spec: KVSpec, *, rope: Rope, scale: float
    ) -> None:
        """heads: of this rank; latents are of all heads, and whole on each rank. kv_b: from a latent to the plain part
        of each head's key, and its value, head by head. spec: one head of `sizes.kept` numbers.
        """
        assert (spec.heads, spec.k_dim, spec.v_dim) == (1, sizes.kept, 0)
        super().__init__(layer, heads, spec, rope=rope, scale=scale, value_dim=sizes.latent)
        self.sizes, self.kv_b_proj = sizes, matrix_of(kv_b)
        assert self.kv_b_proj.outputs == heads * (sizes.plain + sizes.value)
        self._weight_bytes = self.kv_b_proj.stored_bytes()
        self._names["expanded"] = by_head("attention.prefill", sizes.key)
        product, wider = sizes.latent * (sizes.plain + sizes.value), sizes.kept + sizes.latent - sizes.key - sizes.value
        self._expands = KernelThreshold(queries=-product, keys=product, pairs=-wider)

    @override
    def places(self) -> Mapping[str, WeightSlot]:
        return {"kv_b_proj": self.kv_b_proj.spec.place("matrix", "kv_b_proj")}

    @override
    def store(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.kv_b_proj = matrix_of(self.kv_b_proj.spec, stored["kv_b_proj"])
        self._weight_bytes = self.kv_b_proj.stored_bytes()

    def expands(self, sums: AttentionSum) -> bool:
        """The rule: whether sequences of these sums, those of a class of query length, are attended to expanded. It
        takes the form of fewer FLOPs. Expanding has the product with the matrix over every key, and not over queries
        alone; absorbing has scores and sums as wide as a latent, and not as a head. Where a step is bound by bytes, in
        decode, the same form has the fewer of them too: it reads latents, and makes no keys and values.
        """
        return self._expands.holds(sums)

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        """As Op.features: the form that it takes, and where its products are of a single row."""
        return self._expands, KernelThreshold(queries=1, most=1), KernelThreshold(keys=1, most=1)

    def expanded(self, attention: AttentionWork) -> tuple[bool, bool, bool]:
        """The rule for each class of a step: one query, a few, many."""
        return self.expands(attention.one), self.expands(attention.few), self.expands(attention.many)

    # -- what it computes ---------------------------------------------------------------------------------------------

    @override
    def forward(  # type: ignore[override]
        self, q_THD: Tensor, latent_TC: Tensor, turned_TR: Tensor, kv: LatentContext, angles: Angles
    ) -> Tensor:
        """q_THD [rows, heads, D], latent_TC [rows, C] and turned_TR [rows, R], the part of the keys with positions, not
        turned yet -> [rows, heads x W].
        """
        return self.attend_latent(*self.rotate_latent(q_THD, latent_TC, turned_TR, angles), kv)

    def rotate_latent(
        self, q_THD: Tensor, latent_TC: Tensor, turned_TR: Tensor, angles: Angles
    ) -> tuple[Tensor, Tensor]:
        """Queries with their last R entries turned, and what is kept of each position: [T, 1, C + R]."""
        turned_T1R = rotate(turned_TR[:, None], angles, interleaved=self._interleaved)
        q_THD = rotate(q_THD, angles, self.sizes.plain, interleaved=self._interleaved)
        return q_THD, torch.cat([latent_TC[:, None], turned_T1R], dim=-1)

    @property
    def _interleaved(self) -> bool:
        assert self.rope is not None
        return self.rope.interleaved

    def attend_latent(self, q_THD: Tensor, kept_T1E: Tensor, kv: LatentContext) -> Tensor:
        """Store, and attend."""
        return kv.attend_latent(self, q_THD, kept_T1E).flatten(1)

    @override
    def meeting(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """As Attention.meeting: queries that have absorbed the matrix, and latents."""
        q_THD, latent_TC, turned_TR, _, angles = inputs
        assert isinstance(angles, tuple)
        q_THD, kept_T1E = self.rotate_latent(q_THD, latent_TC, turned_TR, angles)
        return self.absorb(q_THD), kept_T1E

    def over_segment(self, q_QHD: Tensor, kept_1LE: Tensor, first: int, *, expanded: bool) -> Tensor:
        """As attend_segment, of kept_1LE [1, L, C + R] -> [Q, H, W]."""
        if expanded:
            return attend_segment(self, q_QHD, *self.expand(kept_1LE[0]), first)
        out_QHC = attend_segment(self, self.absorb(q_QHD), kept_1LE, kept_1LE[..., : self.sizes.latent], first)
        return self.release(out_QHC)

    def over_padded(
        self, q_BHD: Tensor, kept_1BLE: Tensor, distance_BL: Tensor, visible_BL: Tensor, *, expanded: bool
    ) -> Tensor:
        """As attend_padded, of kept_1BLE [1, B, L, C + R] -> [B, H, W]."""
        if expanded:
            return attend_padded(self, q_BHD, *self.expand(kept_1BLE[0]), distance_BL, visible_BL)
        latents = kept_1BLE[..., : self.sizes.latent]
        return self.release(attend_padded(self, self.absorb(q_BHD), kept_1BLE, latents, distance_BL, visible_BL))

    def expand(self, kept_xE: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of positions [..., C + R] -> keys [H, ..., D] and values [H, ..., W]."""
        sizes, shape = self.sizes, kept_xE.shape[:-1]
        latent_xC, turned_xR = torch.split(kept_xE, [sizes.latent, sizes.turned], dim=-1)
        both_xHN = self.kv_b_proj.product(latent_xC.reshape(-1, sizes.latent)).view(*shape, self.heads, -1)
        plain_xHN, v_xHW = torch.split(both_xHN, [sizes.plain, sizes.value], dim=-1)
        turned_xHR = turned_xR[..., None, :].expand(*shape, self.heads, sizes.turned)
        return torch.cat([plain_xHN, turned_xHR], dim=-1).movedim(-2, 0), v_xHW.movedim(-2, 0)

    def absorb(self, q_THD: Tensor) -> Tensor:
        """Queries as they meet latents: [T, H, C + R]."""
        plain_THN, turned_THR = torch.split(q_THD, [self.sizes.plain, self.sizes.turned], dim=-1)
        to_key_HNC, _ = self._by_head()
        met_HTC = plain_THN.transpose(0, 1) @ to_key_HNC
        return torch.cat([met_HTC.transpose(0, 1), turned_THR], dim=-1)

    def release(self, out_THC: Tensor) -> Tensor:
        """Sums of latents -> sums of values [T, H, W]."""
        _, to_value_HWC = self._by_head()
        return (out_THC.transpose(0, 1) @ to_value_HWC.transpose(1, 2)).transpose(0, 1)

    def _by_head(self) -> tuple[Tensor, Tensor]:
        """The matrix of each head's key [H, N, C] and of its value [H, W, C]."""
        by_head = self.kv_b_proj.values().view(self.heads, -1, self.sizes.latent)
        return by_head[:, : self.sizes.plain], by_head[:, self.sizes.plain :]

    # -- cost ---------------------------------------------------------------------------------------------------------

    @override
    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        """Of each class in the form that the rule takes: products with the matrix over queries or keys, 2 x heads FLOPs
        a pair and entry of scores and sums; latents of the context read once, the new ones written; the matrix once.
        """
        attention = work.attention[self.reach]
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
        """Of scores and sums, keys read and written as latents; queries in and results out."""
        sizes, stored = self.sizes, format_of(self.spec.dtype)
        entries = sizes.key + sizes.value if self.expands(sums) else sizes.kept + sizes.latent
        return Cost(
            flops={stored.name: 2.0 * self.heads * entries * sums.pairs},
            kv_read_bytes=sums.keys * self._position,
            kv_write_bytes=sums.written * self._position,
            activation_bytes=sums.queries * self.heads * (sizes.key + sizes.value) * stored.bytes,
        )

    def _products_cost(self, sums: AttentionSum) -> Cost:
        """Of the products with the matrix; what lies between them and attention needs no memory."""
        expands = self.expands(sums)
        rows, own = sums.keys if expands else sums.queries, self.kv_b_proj
        # What has been absorbed is a product of the model's dtype, to which a narrower matrix is widened.
        number_format = own.number_format if expands else format_of(self.spec.dtype).name
        return Cost({number_format: 2.0 * rows * own.inputs * own.outputs})

    @override
    def rotate_cost(self, sums: AttentionSum, streams: int) -> Cost:
        elements = (sums.queries * self.heads + sums.written) * self.sizes.turned
        moved = streams * elements * format_of(self.spec.dtype).bytes
        return Cost({"fp32": float(self.ROTATE_FLOPS * elements)}, activation_bytes=moved)

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """As Op.launches: one that rotates; for each class of query length the products with the matrix, which leave in
        memory what attention takes, and attention.
        """
        attention = work.attention[self.reach]
        if not attention.total.queries and not attention.total.written:
            return ()
        turned = self.rotate_cost(attention.total, 2)
        launches = [Launch(self._names["rotate"], self.number_format, 1, turned, "rotate_latent")]
        classes = (("decode", 1, attention.one), ("few", attention.few.sequences, attention.few),
                   ("prefill", attention.many.sequences, attention.many))  # fmt: skip
        for name, calls, sums in classes:
            if sums.sequences:
                launches += self._class_launches(name, calls, sums)
        return tuple(launches)

    def _class_launches(self, name: str, calls: int, sums: AttentionSum) -> tuple[Launch, Launch]:
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
                   self.attend_cost(sums), "attend_latent", sharers=1 if expands else self.heads),
        )  # fmt: skip

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        matrix = self._modules.get("kv_b_proj")  # which is not there yet when Attention asks as it is made
        return matrix.shares() if isinstance(matrix, Matrix) else ()

    @override
    def signature(self) -> Hashable:
        return self.heads, self.spec, self.sizes, self.kv_b_proj.spec, self.kv_b_proj.stored

    @override
    def extra_repr(self) -> str:
        return f"{self.heads} heads over a latent of {self.sizes.latent} + {self.sizes.turned}"


def latent_scale(key: int, factor: float, magnitude: float) -> float:
    """1 / sqrt(key), with the temperature that YaRN asks for: (0.1 magnitude ln factor + 1)^2 times as much
    (DeepSeek-V2's reference code).
    """
    temperature = 0.1 * magnitude * math.log(factor) + 1.0 if factor > 1 else 1.0
    return temperature * temperature / math.sqrt(key)
