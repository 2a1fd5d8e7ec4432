"""Attention's adapter to paged KV memory (PagedAttention: Kwon et al., arXiv:2309.06180), in plain torch.

Shapes as in attention.py, and P pages, S positions a page. A layer's store is [2, pages, kv_heads, S, D].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.ops.attention import Attention, attend_padded, attend_segment, visible
from ridgeline.ops.work import Reach


@dataclass(frozen=True, slots=True)
class PagedDecode:
    """Sequences with one new position each and page tables padded to one length (with a page of zeros).

    rows_B: their rows in the step. pages_BP: the pages that hold what they see, from position `first_B` on.
    lengths_B: positions each has, the new one included.
    """

    rows_B: Tensor
    pages_BP: Tensor
    first_B: Tensor
    lengths_B: Tensor

    def seen(self, page_size: int, reach: Reach) -> tuple[Tensor, Tensor]:
        """How far each gathered position is from the query (int64), and whether it sees it (bool), each [B, P x S]."""
        count = self.pages_BP.shape[1] * page_size
        position_BL = self.first_B[:, None] + torch.arange(count, device=self.first_B.device)
        query_B1 = self.lengths_B[:, None] - 1
        return position_BL - query_B1, visible(reach, query_B1, position_BL)


@dataclass(frozen=True, slots=True)
class PagedSegment:
    """A sequence with several new positions: rows [start, start + q_len), keys in `pages_P` from position `first` on.

    `pages_P` is None where all it sees is new: then nothing needs to be gathered.
    """

    start: int
    q_len: int
    kv_len: int
    first: int
    pages_P: Tensor | None


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """A step as the layers of one KV group see it. slots_T: where row t's K and V go, page x S + offset."""

    slots_T: Tensor
    decodes: Sequence[PagedDecode]
    segments: Sequence[PagedSegment]


class PagedKV:
    """A KVContext over page stores: writes a step's K and V to their slots, reads each sequence through its table."""

    def __init__(self, stores: Sequence[Tensor], group_of_layer: Sequence[int], groups: Sequence[PagedGroup]) -> None:
        self.stores, self.group_of_layer, self.groups = stores, group_of_layer, groups

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor | None, v_TKD: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        assert k_TKD is not None
        assert v_TKD is not None
        store, group = self.stores[op.layer], self.groups[self.group_of_layer[op.layer]]
        write_slots(store, group.slots_T, k_TKD, v_TKD)
        out_THD = q_THD.new_empty(q_THD.shape[0], q_THD.shape[1], v_TKD.shape[2])
        for decode in group.decodes:
            k_KBLD, v_KBLD = (gather_pages(half, decode.pages_BP) for half in store)
            distance_BL, visible_BL = decode.seen(store.shape[3], op.reach)
            out_THD[decode.rows_B] = attend_padded(op, q_THD[decode.rows_B], k_KBLD, v_KBLD, distance_BL, visible_BL)
        for s in group.segments:
            rows = slice(s.start, s.start + s.q_len)
            if s.pages_P is None:
                k_KLD, v_KLD = k_TKD[rows].transpose(0, 1), v_TKD[rows].transpose(0, 1)
            else:
                length = s.kv_len - s.first
                k_KLD, v_KLD = (gather_pages(half, s.pages_P[None])[:, 0, :length] for half in store)
            out_THD[rows] = attend_segment(op, q_THD[rows], k_KLD, v_KLD, s.first)
        return out_THD


def write_slots(store: Tensor, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
    """Put row t of K and V into slot t of a layer's store [2, pages, kv_heads, S, D]."""
    size = store.shape[3]
    page_T, offset_T = slots_T // size, slots_T % size
    store[0][page_T, :, offset_T] = k_TKD
    store[1][page_T, :, offset_T] = v_TKD


def gather_pages(half: Tensor, pages_BP: Tensor) -> Tensor:
    """Copy pages [B, P] of K or V [pages, kv_heads, S, D] into one block [kv_heads, B, P x S, D]."""
    total, kv_heads, size, dim = half.shape
    sequences, pages = pages_BP.shape
    head_K = torch.arange(kv_heads, device=pages_BP.device)
    # Whole rows of S x D are copied: selecting along a transposed dimension would move single elements.
    row_KBP = pages_BP * kv_heads + head_K[:, None, None]
    rows = half.view(total * kv_heads, size * dim).index_select(0, row_KBP.flatten())
    return rows.view(kv_heads, sequences, pages * size, dim)
