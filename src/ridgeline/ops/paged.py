"""Attention's adapter to paged KV memory (PagedAttention: Kwon et al., arXiv:2309.06180), in plain torch.

Shapes as in attention.py, and P pages, S positions a page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.ops.attention import Attention, attend_padded, attend_segment, visible
from ridgeline.ops.kv import KVLayout, KVSpec
from ridgeline.ops.work import Reach


class LayerPages:
    """One layer's keys and values in a buffer of pages that it shares with others.

    A page holds, for each layer in turn, its K [kv_heads, S, k_dim] and its V [kv_heads, S, v_dim]. `k` and `v` are
    views of all pages: [pages, kv_heads, S, dim].
    """

    def __init__(self, buffer: Tensor, spec: KVSpec, page_size: int, place: int) -> None:
        """buffer: uint8 [pages, bytes a page]. place: how many layers of this spec come before it in a page."""
        self.page_size, self.heads = page_size, spec.heads
        numbers = buffer.view(spec.dtype)
        keys, values = spec.heads * page_size * spec.k_dim, spec.heads * page_size * spec.v_dim
        start = place * (keys + values)
        self.k = numbers[:, start : start + keys].view(len(buffer), spec.heads, page_size, spec.k_dim)
        self.v = numbers[:, start + keys : start + keys + values].view(len(buffer), spec.heads, page_size, spec.v_dim)
        # The buffer as rows of so many numbers that K and V of one head in one page are whole rows.
        self._row = math.gcd(page_size * spec.k_dim, page_size * spec.v_dim, start, numbers.shape[1])
        self._rows = numbers.view(-1, self._row)
        self._k_rows_KN = self._rows_of(start, page_size * spec.k_dim)
        self._v_rows_KN = self._rows_of(start + keys, page_size * spec.v_dim)

    def _rows_of(self, start: int, numbers: int) -> Tensor:
        """The rows of every head's part in page 0: [kv_heads, rows]."""
        first, count = start // self._row, numbers // self._row
        return torch.arange(first, first + self.heads * count, device=self._rows.device).view(self.heads, count)

    def write(self, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        """Put row t of K and V into slot t, that is page x S + offset."""
        page_T, offset_T = slots_T // self.page_size, slots_T % self.page_size
        self.k[page_T, :, offset_T] = k_TKD
        self.v[page_T, :, offset_T] = v_TKD

    def gather(self, pages_BP: Tensor) -> tuple[Tensor, Tensor]:
        """Copy pages [B, P] of K and of V into a block each: [kv_heads, B, P x S, dim]."""
        row_BP = pages_BP * (self.k.stride(0) // self._row)
        return self._gather(row_BP, self._k_rows_KN, self.k), self._gather(row_BP, self._v_rows_KN, self.v)

    def _gather(self, row_BP: Tensor, rows_KN: Tensor, half: Tensor) -> Tensor:
        # Whole rows are copied: selecting along a transposed dimension would move single elements.
        row_KBPN = row_BP[None, :, :, None] + rows_KN[:, None, None, :]
        sequences, pages = row_BP.shape
        rows = self._rows.index_select(0, row_KBPN.flatten())
        return rows.view(self.heads, sequences, pages * self.page_size, half.shape[3])


def layer_pages(buffer: Tensor, layout: KVLayout) -> list[LayerPages]:
    """Every layer's view of a buffer of pages, uint8 [pages, at least layout.page_bytes]."""
    views = {
        layer: LayerPages(buffer, group.spec, group.page_size, place)
        for group in layout.groups
        for place, layer in enumerate(group.layers)
    }
    return [views[layer] for layer in sorted(views)]


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
    """A KVContext over pages: writes a step's K and V to their slots, reads each sequence through its table."""

    def __init__(
        self, layers: Sequence[LayerPages], group_of_layer: Sequence[int], groups: Sequence[PagedGroup]
    ) -> None:
        self.layers, self.group_of_layer, self.groups = layers, group_of_layer, groups
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}  # of each decode call; the layers of a group share it

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor | None, v_TKD: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        assert k_TKD is not None
        assert v_TKD is not None
        store, group = self.layers[op.layer], self.groups[self.group_of_layer[op.layer]]
        seen = self._seen
        store.write(group.slots_T, k_TKD, v_TKD)
        out_THD = q_THD.new_empty(q_THD.shape[0], q_THD.shape[1], v_TKD.shape[2])
        for decode in group.decodes:
            k_KBLD, v_KBLD = store.gather(decode.pages_BP)
            if id(decode) not in seen:
                seen[id(decode)] = decode.seen(store.page_size, op.reach)
            distance_BL, visible_BL = seen[id(decode)]
            out_THD[decode.rows_B] = attend_padded(op, q_THD[decode.rows_B], k_KBLD, v_KBLD, distance_BL, visible_BL)
        for s in group.segments:
            rows = slice(s.start, s.start + s.q_len)
            if s.pages_P is None:
                k_KLD, v_KLD = k_TKD[rows].transpose(0, 1), v_TKD[rows].transpose(0, 1)
            else:
                length = s.kv_len - s.first
                k_KLD, v_KLD = (block[:, 0, :length] for block in store.gather(s.pages_P[None]))
            out_THD[rows] = attend_segment(op, q_THD[rows], k_KLD, v_KLD, s.first)
        return out_THD
