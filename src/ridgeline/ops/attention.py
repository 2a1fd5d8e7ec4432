"""Grouped-query attention over segments, causal or with a sliding window. Pure: where K and V live is the caller's.

Shapes: T rows of a step, B sequences, Q queries and L keys of one sequence, H heads, K kv heads, G = H / K, D head dim.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.op import Kernel, Op, by_head
from ridgeline.ops.work import Segment, Work


class KVContext(Protocol):
    """Where one forward keeps its keys and values: pages, or nowhere (`Uncached`)."""

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None) -> Tensor:
        """Store the step's K and V for `layer`, and attend every query to what its sequence has so far."""
        ...


class Attention(Op):
    """softmax(q k^T / sqrt(D)) v over the positions that the mask leaves (GQA: Ainslie et al., arXiv:2305.13245)."""

    kind = "attention"
    reads_context = True

    def __init__(self, layer: int, heads: int, spec: KVSpec) -> None:
        super().__init__()
        self.layer, self.heads, self.spec = layer, heads, spec
        self._decode, self._prefill = by_head("attention.decode", spec.k_dim), by_head("attention.prefill", spec.k_dim)

    def forward(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, kv: KVContext) -> Tensor:
        """q_THD [rows, heads, D], k_TKD and v_TKD [rows, kv_heads, D] -> [rows, heads x D]."""
        return kv.attend(self.layer, q_THD, k_TKD, v_TKD, self.spec.window).flatten(1)

    def cost(self, work: Work) -> Cost:
        """4 x heads x D FLOPs a pair (q.k and p.v); K and V of the context read once a step, the new ones written."""
        asked = work.attention[self.spec.window]
        return self._cost(work.tokens, asked.pairs, asked.kv_read)

    def _cost(self, tokens: int, pairs: int, kv_read: int) -> Cost:
        number = format_of(self.spec.dtype)
        position = self.spec.bytes_per_token
        return Cost(
            flops={number.name: 2.0 * self.heads * (self.spec.k_dim + self.spec.v_dim) * pairs},
            kv_read_bytes=kv_read * position,
            kv_write_bytes=tokens * position,
            activation_bytes=tokens * self.heads * (self.spec.k_dim + self.spec.v_dim) * number.bytes,
        )

    def kernels(self, work: Work) -> tuple[Kernel, ...]:
        """As Op.kernels: one call for the sequences that run a single position, one for each of the others."""
        asked = work.attention[self.spec.window]
        if work.tokens == work.sequences:
            return (Kernel(self._decode, self.number, 1, self.cost(work)),)
        others = work.sequences - work.alone
        tokens, pairs, kv_read = work.tokens - work.alone, asked.pairs - asked.alone, asked.kv_read - asked.alone
        several = Kernel(self._prefill, self.number, others, self._cost(tokens, pairs, kv_read))
        if not work.alone:
            return (several,)
        return (Kernel(self._decode, self.number, 1, self._cost(work.alone, asked.alone, asked.alone)), several)

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.spec.dtype).name

    def score_matrix_bytes(self, work: Work) -> float:
        """What a kernel that keeps its score matrix in memory moves beside `cost`: q k^T written, read for the softmax,
        written back, read for the product with v (Dao et al., arXiv:2205.14135, algorithm 0). Masked pairs not counted.
        """
        return 4 * self.heads * work.attention[self.spec.window].pairs * format_of(self.spec.dtype).bytes

    def signature(self) -> Hashable:
        return self.heads, self.spec

    def extra_repr(self) -> str:
        window = "" if self.spec.window is None else f", window {self.spec.window}"
        return f"{self.heads} heads over {self.spec.heads} x {self.spec.k_dim}{window}"


def attend_causal(q_QHD: Tensor, k_KLD: Tensor, v_KLD: Tensor, window: int | None) -> Tensor:
    """One sequence: its last Q positions over all L, each seeing itself and what came before (within the window).

    q_QHD [Q, heads, D], k_KLD and v_KLD [kv_heads, L, D] with L >= Q -> [Q, heads, D].
    """
    queries, keys = q_QHD.shape[0], k_KLD.shape[1]
    mask = None
    if keys > queries or (window is not None and keys > window):
        mask = causal_mask(queries, keys, window, q_QHD.device)
    out_1HQD = functional.scaled_dot_product_attention(
        q_QHD.transpose(0, 1)[None],
        k_KLD[None],
        v_KLD[None],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q_QHD.shape[1] != k_KLD.shape[0],
    )
    return out_1HQD[0].transpose(0, 1)


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """True where the last `queries` of `keys` positions may look: bool [queries, keys]."""
    key = torch.arange(keys, device=device)
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def attend_padded(q_BHD: Tensor, k_KBLD: Tensor, v_KBLD: Tensor, visible_BL: Tensor) -> Tensor:
    """One query each of B sequences, over keys padded to one length.

    q_BHD [B, heads, D], k_KBLD and v_KBLD [kv_heads, B, L, D], visible_BL bool [B, L] -> [B, heads, D].
    What is not visible must be finite: its weight is exactly 0, and 0 x NaN would not be.
    """
    sequences, heads, dim = q_BHD.shape
    kv_heads = k_KBLD.shape[0]
    q_KBGD = q_BHD.view(sequences, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    scores_KBGL = (q_KBGD @ k_KBLD.transpose(-1, -2)).float() / math.sqrt(dim)
    scores_KBGL.masked_fill_(~visible_BL[None, :, None, :], float("-inf"))
    out_KBGD = scores_KBGL.softmax(dim=-1).to(v_KBLD.dtype) @ v_KBLD
    return out_KBGD.transpose(0, 1).reshape(sequences, heads, v_KBLD.shape[-1])


class Uncached:
    """A KVContext that keeps nothing: every segment is a whole sequence, which attends to itself."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        if any(s.q_len != s.kv_len for s in segments):
            raise ValueError("without a cache every position of a sequence must run; give segments with q_len = kv_len")
        self.lengths = [s.q_len for s in segments]

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None) -> Tensor:
        """As KVContext.attend; nothing is stored."""
        parts = zip(*(torch.split(x, self.lengths) for x in (q_THD, k_TKD, v_TKD)), strict=True)
        return torch.cat([attend_causal(q, k.transpose(0, 1), v.transpose(0, 1), window) for q, k, v in parts])
