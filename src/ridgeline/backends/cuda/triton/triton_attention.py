"""Attention of one layer over its KV pages, with GPU kernels.

Shapes: T rows of a step, N new rows of K and V, H heads, K kv heads, D head dim, W width of a value, B sequences with
one query, C sequences with several.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from ridgeline.backends.cuda.cuda_coverage import COPY_BYTES
from ridgeline.backends.cuda.triton import dense_kv, paged_attention_kernels
from ridgeline.backends.cuda.triton.launch import early, is_hopper, product_dtype
from ridgeline.backends.cuda.triton.rotary_kv_write import keep_rows
from ridgeline.backends.kernel_support import AttentionScoring, KVCodes

MOST_SPLITS = 32
"""The maximum number of parts into which the keys of a sequence with one query are split."""
_PROGRAMS = 264  # two per multiprocessor of the largest GPUs: with fewer, sequences are split
_BLOCK_H = 8
_GATHERED = ("SIZE", "DIM", "WIDTH", "CODE", "DTYPE", "BLOCK_D", "BLOCK_W")
_DENSE_TILE = (64, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class DecodeSequences:
    """The sequences with one query in a step, as the layers of a KV group see them; all tensors are int32."""

    offset_B: Tensor
    """The index of position 0's page, for each decoding sequence, in the tensor of all page tables.

    It is before the sequence's table if that table begins at a later page, and can be negative.
    """
    length_B: Tensor
    """The number of keys that each decoding sequence sees; 0 for padding."""
    row_B: Tensor
    """The index of each decoding sequence's query among the step's rows; below 0 for padding without a row."""

    def __len__(self) -> int:
        return len(self.offset_B)


@dataclass(frozen=True, slots=True)
class PrefillSequences:
    """The sequences with several queries in a step, as the layers of a KV group see them.

    Sequences without queries come after all others.
    """

    offset_C: Tensor
    """The index of position 0's page, for each sequence, in the tensor of all page tables.

    It is before the sequence's table if that table begins at a later page, and can be negative.
    """
    length_C: Tensor
    """The number of keys that each sequence sees."""
    row_C: Tensor
    """The index of each sequence's first query among the step's rows."""
    count_C: Tensor
    """The number of queries of each sequence."""
    before_C: Tensor
    """The number of queries of all sequences before each one."""
    begin_C: Tensor
    """The first row of each sequence's keys in a dense copy of keys and values."""
    queries: int
    """An upper bound of the number of queries of all sequences."""
    most: int
    """An upper bound of the number of queries of the longest sequence."""
    rows: int
    """The number of rows per head in a dense copy of keys and values, if one is made; 0 forbids a copy."""

    def __len__(self) -> int:
        return len(self.offset_C)


@dataclass(frozen=True, slots=True)
class GpuStepSequences:
    """The lengths and page tables of a step's sequences for the layers of one KV group."""

    pages: Tensor
    """The page tables of the step's requests, or of all requests, in one flat int32 tensor."""
    one: DecodeSequences | None
    """The step's sequences with one query, if any."""
    several: PrefillSequences | None
    """The step's sequences with several queries, if any."""


class TritonPagedAttention:
    """The attention of one layer over its KV pages."""

    def __init__(
        self,
        heads: int,
        scoring: AttentionScoring,
        k_PKSD: Tensor,
        v_PKSW: Tensor,
        dtype: torch.dtype,
        codes: KVCodes | None,
    ) -> None:
        """Describe an attention layer and its KV pages to the GPU kernels.

        Args:
            heads: Number of query heads.
            scoring: Attention parameters.
            k_PKSD: Keys of all pages.
            v_PKSW: Values of all pages.
            dtype: Dtype of queries and results.
            codes: Quantisation of the keys and values, or None.
        """
        _, kv_heads, size, dim = k_PKSD.shape
        width = v_PKSW.shape[3]
        assert k_PKSD.stride()[1:] == (size * dim, dim, 1), "the keys of a head in a page must be contiguous"
        assert v_PKSW.stride()[1:] == (size * width, width, 1), "the values of a head in a page must be contiguous"
        self.heads, self.kv_heads, self.sharers, self.dim, self.width = heads, kv_heads, heads // kv_heads, dim, width
        self.scoring, self.k, self.v, self.dtype, self.size = scoring, k_PKSD, v_PKSW, dtype, size
        self.code = "" if codes is None else codes.kind
        self.scales = (1.0, 1.0) if codes is None else (codes.k_scale, codes.v_scale)
        held = (None, None) if codes is None else (codes.k_scales_PKS1, codes.v_scales_PKS1)
        self.k_scales, self.v_scales = (k_PKSD if own is None else own for own in held)

    @cached_property
    def _pages(self) -> tuple[Any, ...]:
        return (
            self.k, self.v, self.k.stride(0), self.v.stride(0), self.k_scales, self.v_scales, self.k_scales.stride(0)
        )  # fmt: skip

    def keep(
        self,
        q_THD: Tensor | None,
        k_NKD: Tensor,
        v_NKW: Tensor,
        slots_N: Tensor,
        angles: tuple[Tensor, ...] | None,
    ) -> Tensor | None:
        """Rotate queries and keys, and write keys and values to their KV slots.

        Args:
            q_THD: Queries, or None if they are not rotated.
            k_NKD: New keys.
            v_NKW: New values.
            slots_N: Slots, int64 or int32 (page x S + offset). Rows with a slot below 0 are not stored.
            angles: Cosines and sines of the rotary embedding, or None for no rotation.

        Returns:
            The rotated queries, or None if none were given.
        """
        assert q_THD is None or len(q_THD) == len(k_NKD), "queries that are rotated with keys must have the same rows"
        k_NKD, v_NKW = _rows(k_NKD), _rows(v_NKW)
        queries = k_NKD if q_THD is None else _rows(q_THD)
        cos, sin = (k_NKD, k_NKD) if angles is None else angles[:2]
        turned_THD = None if q_THD is None else torch.empty(queries.shape, dtype=q_THD.dtype, device=q_THD.device)
        q_blocks = 0 if q_THD is None else triton.cdiv(self.heads, _BLOCK_H)
        kv_blocks = triton.cdiv(self.kv_heads, _BLOCK_H)
        if len(k_NKD):
            keep_rows[(len(k_NKD), q_blocks + 2 * kv_blocks)](
                queries, *queries.stride()[:2], k_NKD, *k_NKD.stride()[:2], v_NKW, *v_NKW.stride()[:2], cos, sin,
                0 if angles is None else cos.shape[-1], queries if turned_THD is None else turned_THD, slots_N,
                *self._pages, *self.scales, self.heads, self.kv_heads, self.dim, self.width, q_blocks, kv_blocks,
                TURNS=angles is not None, CODE=self.code, SIZE=self.size, BLOCK_H=_BLOCK_H,
                BLOCK_D=triton.next_power_of_2(max(self.dim, self.width)), num_warps=4, **self._early,
            )  # fmt: skip
        return turned_THD

    def attend(self, seen: GpuStepSequences, q_THD: Tensor) -> Tensor:
        """Return the attention of every query over the pages of its sequence -> [T, H, W]."""
        q_THD = _rows(q_THD)
        out_THW = q_THD.new_empty(len(q_THD), self.heads, self.width)
        if seen.one is not None:
            self._decode(seen.pages, seen.one, q_THD, out_THW)
        if seen.several is not None:
            self._prefill(seen.pages, seen.several, q_THD, out_THW)
        return out_THW

    def splits(self, sequences: int) -> int:
        """Return the number of parts (a power of two) into which the keys of each sequence with one query are split."""
        wanted = _PROGRAMS // (sequences * self.kv_heads)
        return min(MOST_SPLITS, 1 << wanted.bit_length() - 1) if wanted > 1 else 1

    def _decode(self, pages: Tensor, one: DecodeSequences, q_THD: Tensor, out_THW: Tensor) -> None:
        """Compute the attention of sequences with one query."""
        splits, count = self.splits(len(one)), len(one)
        parts = sums = out_THW
        if splits > 1:
            parts = out_THW.new_empty(count * self.heads * splits * self.width, dtype=torch.float32)
            sums = out_THW.new_empty(count * self.heads * splits * 2, dtype=torch.float32)
        paged_attention_kernels.decode[(count, self.kv_heads, splits)](
            q_THD, *q_THD.stride()[:2], out_THW, parts, sums, pages, one.offset_B, one.length_B, one.row_B,
            *self._pages, *self._scored, SPLITS=splits, BLOCK_M=max(16, triton.next_power_of_2(self.sharers)),
            BLOCK_N=64, **self._constants, **self._early, num_warps=4, num_stages=3,
        )  # fmt: skip
        if splits > 1:
            paged_attention_kernels.combine_splits[(count, self.heads)](
                out_THW, parts, sums, one.row_B, self._sinks, self.heads, HAS_SINKS=self.scoring.sinks_H is not None,
                SPLITS=splits, WIDTH=self.width, BLOCK_W=self._constants["BLOCK_W"], num_warps=2, **self._early,
            )  # fmt: skip

    def _prefill(self, pages: Tensor, several: PrefillSequences, q_THD: Tensor, out_THW: Tensor) -> None:
        """Compute the attention of sequences with several queries."""
        copied = self._copies(several)
        block_m, block_n, warps, stages = self._tile(several)
        tiles = several.queries // (block_m // self.sharers) + len(several)
        kept = self._pages
        if copied:
            kept = (*(dense_kv.tiled(own, block_n) for own in self._gathered(pages, several)), *kept[2:])
        paged_attention_kernels.prefill[(tiles, self.kv_heads)](
            q_THD, *q_THD.stride()[:2], out_THW, pages, several.offset_C, several.length_C, several.row_C,
            several.count_C, several.before_C, several.begin_C, len(several), several.rows, *kept, *self._scored,
            BLOCK_M=block_m, BLOCK_N=block_n, **self._constants, DENSE=copied, **self._early, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip

    def _copies(self, several: PrefillSequences) -> bool:
        """Return whether keys and values are copied out of their pages before the attention of prompts.

        This needs bf16, head sizes of 64 or 128, a Hopper GPU or later, a long prompt chunk, attention without windows
        or chunks, and a copy of at most COPY_BYTES.
        """
        takes = self.dtype == torch.bfloat16 and {self.dim, self.width} <= {64, 128} and is_hopper(self.k.device)
        nbytes = several.rows * self.kv_heads * (self.dim + self.width) * self.dtype.itemsize
        looked_at = self.scoring.reach in ("causal", "cross") and several.most >= dense_kv.FEWEST_QUERIES
        return takes and looked_at and 0 < nbytes <= COPY_BYTES

    def _gathered(self, pages: Tensor, several: PrefillSequences) -> tuple[Tensor, Tensor]:
        """Return dense copies, without pages, of the keys [K x rows, D] and the values [K x rows, W]."""
        rows = self.kv_heads * several.rows
        k_RD = torch.empty(rows, self.dim, dtype=self.dtype, device=self.k.device)
        v_RW = torch.empty(rows, self.width, dtype=self.dtype, device=self.k.device)
        constants = {name: self._constants[name] for name in _GATHERED}
        dense_kv.gather[(several.rows // dense_kv.ROW_MULTIPLE, self.kv_heads)](
            k_RD, v_RW, several.rows, pages, several.offset_C, several.length_C, several.begin_C, len(several),
            *self._pages, *self.scales, BLOCK_N=dense_kv.ROW_MULTIPLE, **constants, **self._early, num_warps=8,
        )  # fmt: skip
        return k_RD, v_RW

    def _tile(self, several: PrefillSequences) -> tuple[int, int, int, int]:
        """Return a prefill tile's rows and keys, and the kernel's warps and pipeline stages.

        Tiles are smaller for fp32 and for heads of more than 128 numbers.
        """
        if self._copies(several):
            return _DENSE_TILE
        least = triton.next_power_of_2(max(16, self.sharers))
        rows = triton.next_power_of_2(several.most * self.sharers)
        wide = self.dtype == torch.float32 or max(self.dim, self.width) > 128
        if wide:
            return max(least, min(32, rows)), 32, 4, 2
        return (128, 64, 8, 3) if max(least, rows) >= 128 else (max(least, min(64, rows)), 64, 4, 3)

    @cached_property
    def _sinks(self) -> Tensor:
        return self.k if self.scoring.sinks_H is None else self.scoring.sinks_H

    @cached_property
    def _early(self) -> dict[str, Any]:
        return early(self.k.device)

    @cached_property
    def _scored(self) -> tuple[Any, ...]:
        return self._sinks, self.scoring.scale, self.scoring.softcap or 0.0, *self.scales, self.heads, self.scoring.size

    @cached_property
    def _constants(self) -> dict[str, Any]:
        scoring = self.scoring
        return {
            "REACH": scoring.reach, "CAPPED": scoring.softcap is not None, "HAS_SINKS": scoring.sinks_H is not None,
            "SHARERS": self.sharers, "SIZE": self.size, "DIM": self.dim, "WIDTH": self.width, "CODE": self.code,
            "DTYPE": product_dtype(self.dtype), "BLOCK_D": max(16, triton.next_power_of_2(self.dim)),
            "BLOCK_W": max(16, triton.next_power_of_2(self.width)),
        }  # fmt: skip


def _rows(x_THD: Tensor) -> Tensor:
    """Return a tensor whose heads are each contiguous, with any strides between heads and rows."""
    return x_THD if x_THD.stride(2) == 1 else x_THD.contiguous()
