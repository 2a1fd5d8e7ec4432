"""What one layer keeps in pages: views of its keys and values, and of their scales where they are codes.

Shapes as in attention.py and forward_batch.py, and P pages, S positions a page.
"""

import math

import torch
from torch import Tensor

from ridgeline.core.ops.kv_layout import KVLayout, KVSpec
from ridgeline.core.ops.kv_quantisation import NO_SCALES, quantise, widen


class HeadPages:
    """Numbers that are kept of each position and KV head: `view` is one of all pages [pages, kv_heads, S, dim]."""

    def __init__(self, buffer: Tensor, dtype: torch.dtype, start: int, heads: int, page_size: int, dim: int) -> None:
        """buffer: uint8 [pages, bytes a page]. start: the byte of a page with which they begin."""
        numbers, start, own = buffer.view(dtype), start // dtype.itemsize, page_size * dim
        self.view = numbers[:, start : start + heads * own].view(len(buffer), heads, page_size, dim)
        # The buffer as rows of so many numbers that those of one head in one page are whole rows.
        self._row = math.gcd(own, start, numbers.shape[1])
        self._rows = numbers.view(-1, self._row)
        first, count = start // self._row, own // self._row
        self._rows_KN = torch.arange(first, first + heads * count, device=buffer.device).view(heads, count)

    @property
    def nbytes(self) -> int:
        """Bytes that they take in a page."""
        return self.view[0].nbytes

    def write(self, slots_N: Tensor, x_NKD: Tensor) -> None:
        """Put row n into slot n, that is page x S + offset."""
        size = self.view.shape[2]
        self.view[slots_N // size, :, slots_N % size] = x_NKD

    def gather(self, pages_BP: Tensor) -> Tensor:
        """Copy pages [B, P] into one block: [kv_heads, B, P x S, dim]."""
        # Whole rows are copied: selecting along a transposed dimension would move single elements.
        row_BP = pages_BP * (self.view.stride(0) // self._row)
        row_KBPN = row_BP[None, :, :, None] + self._rows_KN[:, None, None, :]
        rows = self._rows.index_select(0, row_KBPN.flatten())
        sequences, pages = row_BP.shape
        _, heads, size, dim = self.view.shape
        return rows.view(heads, sequences, pages * size, dim)


class LayerPages:
    """One layer's keys and values in a buffer of pages that it shares with others.

    A page holds, for each layer in turn, its K [kv_heads, S, k_dim] and its V [kv_heads, S, v_dim]. Where these are
    codes that have scales, those of all its layers come before them: for each its K's [kv_heads, S, 1] and its V's. `k`
    and `v` are views of all pages, `k_scales` and `v_scales` those of the scales, None where there are none.
    """

    def __init__(
        self, buffer: Tensor, spec: KVSpec, page_size: int, place: int, group: int = 0, layers: int = 1
    ) -> None:
        """buffer: uint8 [pages, bytes a page]. place: how many layers of this spec come before it in a page. group: the
        number of its KV group. layers: how many a page has.
        """
        self.page_size, self.heads, self.group, self.dtype = page_size, spec.heads, group, spec.dtype
        self.code = spec.code
        kept = torch.uint8 if self.code else spec.dtype
        slots, codes = spec.heads * page_size, spec.heads * page_size * (spec.k_dim + spec.v_dim) * kept.itemsize
        scales = slots * spec.scales * torch.bfloat16.itemsize if self.code else 0
        start = layers * scales + place * codes
        self._k = HeadPages(buffer, kept, start, spec.heads, page_size, spec.k_dim)
        self._v = HeadPages(buffer, kept, start + self._k.nbytes, spec.heads, page_size, spec.v_dim)
        self._k_scales = self._v_scales = None
        if scales:
            start = place * scales
            self._k_scales = HeadPages(buffer, torch.bfloat16, start, spec.heads, page_size, 1)
            start += self._k_scales.nbytes
            if spec.v_dim:
                self._v_scales = HeadPages(buffer, torch.bfloat16, start, spec.heads, page_size, 1)
        self.k, self.v = self._k.view, self._v.view
        self.k_scales = None if self._k_scales is None else self._k_scales.view
        self.v_scales = None if self._v_scales is None else self._v_scales.view

    def write(
        self, slots_N: Tensor, k_NKD: Tensor, v_NKW: Tensor | None, scales: tuple[float, float] = NO_SCALES
    ) -> tuple[Tensor, Tensor | None]:
        """Put row n of K, and of V where it is kept, into slot n, that is page x S + offset. scales: the layer's, as
        `Attention.kv_scales`. What was given is returned as it will be read.
        """
        k_scale, v_scale = scales
        k_NKD = self._write(slots_N, k_NKD, self._k, self._k_scales, k_scale)
        return k_NKD, None if v_NKW is None else self._write(slots_N, v_NKW, self._v, self._v_scales, v_scale)

    def _write(
        self, slots_N: Tensor, x_NKD: Tensor, to: HeadPages, scales_to: HeadPages | None, scale: float
    ) -> Tensor:
        if not self.code:
            to.write(slots_N, x_NKD)
            return x_NKD
        codes_NKD, scales_NK1 = quantise(x_NKD, self.code, scale)
        to.write(slots_N, codes_NKD)
        if scales_NK1 is not None:
            assert scales_to is not None
            scales_to.write(slots_N, scales_NK1)
        return widen(codes_NKD, scales_NK1, scale, self.dtype)

    def gather(self, pages_BP: Tensor, scales: tuple[float, float] = NO_SCALES) -> tuple[Tensor, Tensor]:
        """Copy pages [B, P] of K and of V into a block each, in the model's dtype: [kv_heads, B, P x S, dim]. scales:
        as `write`.
        """
        k_scale, v_scale = scales
        k_KBLD = self._gather(pages_BP, self._k, self._k_scales, k_scale)
        return k_KBLD, self._gather(pages_BP, self._v, self._v_scales, v_scale)

    def _gather(self, pages_BP: Tensor, of: HeadPages, scales_of: HeadPages | None, scale: float) -> Tensor:
        kept = of.gather(pages_BP)
        if not self.code:
            return kept
        return widen(kept, None if scales_of is None else scales_of.gather(pages_BP), scale, self.dtype)

    @property
    def parts(self) -> tuple[HeadPages, ...]:
        """All that is kept, as it is stored: K, V, and the scales of either where they have some."""
        return tuple(part for part in (self._k, self._v, self._k_scales, self._v_scales) if part is not None)


def layer_pages(buffer: Tensor, layout: KVLayout) -> dict[int, LayerPages]:
    """The view of every layer that keeps K and V, of a buffer of pages, uint8 [pages, at least layout.page_bytes]."""
    return {
        layer: LayerPages(buffer, group.spec, group.page_size, place, index, len(group.layers))
        for index, group in enumerate(layout.groups)
        if isinstance(group.spec, KVSpec)
        for place, layer in enumerate(group.layers)
    }
