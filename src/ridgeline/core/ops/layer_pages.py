"""The views of one layer's keys and values in the pages of the KV cache, with their scales if they are quantised.

Shapes: as in attention.py and forward_batch.py, and P pages, S positions per page.
"""

import math

import torch
from torch import Tensor

from ridgeline.core.ops.kv_layout import KVLayout, KVSpec
from ridgeline.core.ops.kv_quantisation import NO_SCALES, quantise, widen


class HeadPages:
    """A view of one tensor per position and KV head in all pages, such as the keys of a layer.

    Attributes:
        view: The view [pages, kv_heads, S, dim].
    """

    def __init__(self, buffer: Tensor, dtype: torch.dtype, start: int, heads: int, page_size: int, dim: int) -> None:
        """Create the view of a layer's keys, values or scales in a buffer of KV pages.

        Args:
            buffer: The pages, uint8 [pages, bytes per page].
            dtype: The dtype of the numbers.
            start: The offset within a page, in bytes.
            heads: The number of KV heads.
            page_size: The positions per page.
            dim: The numbers per position and head.
        """
        numbers, start, own = buffer.view(dtype), start // dtype.itemsize, page_size * dim
        self.view = numbers[:, start : start + heads * own].view(len(buffer), heads, page_size, dim)
        # The row length divides the numbers of one head in one page, their offset, and a page.
        self._row = math.gcd(own, start, numbers.shape[1])
        self._rows = numbers.view(-1, self._row)
        first, count = start // self._row, own // self._row
        self._rows_KN = torch.arange(first, first + heads * count, device=buffer.device).view(heads, count)

    @property
    def nbytes(self) -> int:
        """The bytes that one page holds of a layer's keys, values or scales."""
        return self.view[0].nbytes

    def write(self, slots_N: Tensor, x_NKD: Tensor) -> None:
        """Write row n of a layer's keys, values or scales to slot slots_N[n], which is page x S + offset."""
        size = self.view.shape[2]
        self.view[slots_N // size, :, slots_N % size] = x_NKD

    def gather(self, pages_BP: Tensor) -> Tensor:
        """Copy a layer's keys, values or scales in pages [B, P] to one contiguous tensor: [kv_heads, B, P x S, dim]."""
        # This copies whole rows: index_select along a transposed dimension would move single elements.
        row_BP = pages_BP * (self.view.stride(0) // self._row)
        row_KBPN = row_BP[None, :, :, None] + self._rows_KN[:, None, None, :]
        rows = self._rows.index_select(0, row_KBPN.flatten())
        sequences, pages = row_BP.shape
        _, heads, size, dim = self.view.shape
        return rows.view(heads, sequences, pages * size, dim)


class LayerPages:
    """The keys and values of one layer in a buffer of pages that it shares with other layers.

    A page holds, for each layer in turn, its keys [kv_heads, S, k_dim] and its values [kv_heads, S, v_dim]. If these
    are codes with scales, the scales of all layers come first: for each layer those of its keys [kv_heads, S, 1], then
    those of its values.

    Attributes:
        k: The view of the keys in all pages.
        v: The view of the values in all pages.
        k_scales: The view of the scales of the keys; None if there are none.
        v_scales: The view of the scales of the values; None if there are none.
    """

    def __init__(
        self, buffer: Tensor, spec: KVSpec, page_size: int, place: int, group: int = 0, layers: int = 1
    ) -> None:
        """Create the views of one layer's keys and values in a buffer of KV pages.

        Args:
            buffer: The pages, uint8 [pages, bytes per page].
            spec: The format of the layer's KV cache.
            page_size: The positions per page.
            place: The index of the layer within its KV group.
            group: The index of the KV group.
            layers: The number of layers in the group.
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
        """Write row n of the keys, and of the values if there are any, to slot slots_N[n], which is page x S + offset.

        Args:
            slots_N: The slot of each row.
            k_NKD: The keys.
            v_NKW: The values; None for latents.
            scales: The layer's scales of keys and values (`Attention.kv_scales`).

        Returns:
            The keys and values as later reads will return them, after any quantisation.
        """
        k_scale, v_scale = scales
        k_NKD = self._write(slots_N, k_NKD, self._k, self._k_scales, k_scale)
        return k_NKD, None if v_NKW is None else self._write(slots_N, v_NKW, self._v, self._v_scales, v_scale)

    def _write(
        self, slots_N: Tensor, x_NKD: Tensor, to: HeadPages, scales_to: HeadPages | None, scale: float
    ) -> Tensor:
        """Write rows of keys, values or latents to pages, quantised if needed, and return them as later reads will."""
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
        """Copy the keys and the values of pages [B, P], in the model's dtype: [kv_heads, B, P x S, dim] each.

        Args:
            pages_BP: The pages of each sequence.
            scales: The layer's scales of keys and values (`Attention.kv_scales`).
        """
        k_scale, v_scale = scales
        k_KBLD = self._gather(pages_BP, self._k, self._k_scales, k_scale)
        return k_KBLD, self._gather(pages_BP, self._v, self._v_scales, v_scale)

    def _gather(self, pages_BP: Tensor, of: HeadPages, scales_of: HeadPages | None, scale: float) -> Tensor:
        """Copy the keys or the values of the given pages, dequantised if the layer's cache is quantised."""
        kept = of.gather(pages_BP)
        if not self.code:
            return kept
        return widen(kept, None if scales_of is None else scales_of.gather(pages_BP), scale, self.dtype)

    @property
    def parts(self) -> tuple[HeadPages, ...]:
        """The tensors of a layer in the KV cache: keys, values, and the scales of each if it has any."""
        return tuple(part for part in (self._k, self._v, self._k_scales, self._v_scales) if part is not None)


def layer_pages(buffer: Tensor, layout: KVLayout) -> dict[int, LayerPages]:
    """Return the pages of every attention layer, as views of a buffer uint8 [pages, at least layout.page_bytes]."""
    return {
        layer: LayerPages(buffer, group.spec, group.page_size, place, index, len(group.layers))
        for index, group in enumerate(layout.groups)
        if isinstance(group.spec, KVSpec)
        for place, layer in enumerate(group.layers)
    }
