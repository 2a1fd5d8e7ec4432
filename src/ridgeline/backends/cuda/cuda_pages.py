"""Attention over paged KV memory with our GPU kernels, which find the pages through page tables on the GPU.

The kernels read each page in place, but keys and values of long prompts may be copied out of their pages first.

Shapes as in attention.py and forward_batch.py.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from ridgeline.backends.cuda.cuda_coverage import attends
from ridgeline.backends.kernel_support import AttentionScoring, KVCodes
from ridgeline.backends.staging import staged
from ridgeline.core.ops.attention import Attention, FusedRotaryKV
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_layout import KVGroup, KVSpec
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.paged_attention import KVPages, PartialKV
from ridgeline.core.ops.paged_state import StatePages
from ridgeline.core.ops.rotary import Angles

if TYPE_CHECKING:
    from ridgeline.backends.cuda.triton import GpuStepSequences, TritonPagedAttention

_Int = TypeVar("_Int", bound=np.integer)


class CudaPages(KVPages):
    """The KV pages of a model's layers in the form that the GPU kernels need."""

    def __init__(
        self,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        super().__init__(layers, groups, states)
        self._kernels: dict[Attention, TritonPagedAttention] = {}
        self._last: tuple[ForwardBatch, CudaKV] | None = None

    def kernel(self, op: Attention) -> "TritonPagedAttention":
        """Return the attention kernel of an op that our GPU kernels support."""
        if op not in self._kernels:
            from ridgeline.backends.cuda.triton import TritonPagedAttention

            pages = self.layers[op.layer]
            self._kernels[op] = TritonPagedAttention(
                op.heads, AttentionScoring.of(op), pages.k, pages.v, op.spec.dtype, KVCodes.of(op, pages)
            )
        return self._kernels[op]

    @property
    def device(self) -> torch.device:
        """The GPU that holds the KV pages."""
        return next(iter(self.layers.values())).k.device

    def widths(self, context: int) -> list[int]:
        """Return the maximum number of page-table entries of a sequence with `context` positions, for each KV group.

        This is at most the number of pages, unless the group frees pages that its window has passed.
        """
        count = len(next(iter(self.layers.values())).k) - 1  # without the zero page
        return [g.entries(context) if g.spec.frees_positions else min(g.entries(context), count) for g in self.groups]

    @override
    def context(self, batch: ForwardBatch) -> "CudaKV":
        """Return the KVContext of a step, whose sequences are sent to the GPU once per batch.

        A batch can run again, also in a graph, which reads the same memory.
        """
        if self._last is None or self._last[0] is not batch:
            seen = {
                index: _seen(batch, index, group.spec, group.page_size)
                for index, group in enumerate(self.groups)
                if isinstance(group.spec, KVSpec)
            }
            self._last = batch, CudaKV(self, [tables.slots_N for tables in batch.tables], seen, batch)
        return self._last[1]


class CudaKV(PartialKV, FusedRotaryKV):
    """A KVContext in which our GPU kernels attend over pages.

    Its sequences belong to a batch, or, in a replayed step, are tensors at fixed addresses whose contents change from
    step to step.
    """

    _pages: CudaPages

    def __init__(
        self,
        pages: CudaPages,
        slots: Sequence[Tensor],
        seen: Mapping[int, "GpuStepSequences"],
        batch: ForwardBatch | None = None,
    ) -> None:
        """Store the slots and sequences of a step for its attention layers.

        Args:
            pages: Pages of the model.
            slots: Slots of the new keys and values, int [N], for each KV group.
            seen: Sequences of the step as the layers of each group see them.
            batch: Batch of the step, or None for a replayed step.
        """
        super().__init__(pages, batch)
        self._slots, self._seen = slots, seen

    @override
    def keep(self, op: Attention, q_THD: Tensor, k_NKD: Tensor, v_NKW: Tensor, angles: Angles | None) -> Tensor:
        turns = q_THD if angles is not None else None  # unrotated queries can have other rows than keys
        turned_THD = self._pages.kernel(op).keep(turns, k_NKD, v_NKW, self._slots[self._group(op)], angles)
        return q_THD if turned_THD is None else turned_THD

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Store new keys and values, if any, and return the attention of the queries -> [T, H, W]."""
        if not attends(op):
            return self._in_torch().attend(op, q_THD, k_NKD, v_NKW)
        kernel, group = self._pages.kernel(op), self._group(op)
        if k_NKD is not None:
            assert v_NKW is not None, "values must be given with keys"
            kernel.keep(None, k_NKD, v_NKW, self._slots[group], None)
        return kernel.attend(self._seen[group], q_THD)

    def _group(self, op: Attention) -> int:
        return self._pages.layers[op.layer].group


def _seen(batch: ForwardBatch, group: int, spec: KVSpec, page_size: int) -> "GpuStepSequences":
    """Return the lengths and pages of a step's sequences for one KV group, sent to the GPU in one transfer.

    Sequences with one query are separate from those with several.
    """
    from ridgeline.backends.cuda.triton import DecodeSequences, GpuStepSequences, PrefillSequences

    tables, counts = batch.tables[group], batch.tokens.counts
    lengths = batch.lengths if spec.grows else batch.encoded
    begins = accumulate(map(len, tables.pages), initial=0)
    # Kernels look up pages by position from the sequence's start, so the offset skips pages before the first.
    offsets = [begin - first // page_size for begin, first in zip(begins, tables.first, strict=False)]
    rooms = np.where(np.array(counts) > 1, copied_rows(np.array(lengths)), 0)
    *first_rows, in_all = accumulate(rooms.tolist(), initial=0)
    rows = np.array([offsets, lengths, batch.tokens.starts[:-1], counts, first_rows], np.int32)
    # Order: sequences with one query, with several, and with none, whose keys are in no copy.
    rows[4, rows[3] == 0] = in_all
    rows = rows[:, np.argsort((rows[3] != 1) + (rows[3] == 0).astype(int), kind="stable")]
    ones = counts.count(1)
    before = np.cumsum(rows[3], dtype=np.int32) - rows[3] - np.int32(ones)
    pages = np.fromiter(chain.from_iterable(tables.pages), np.int32)
    numbers = staged(np.concatenate([rows.ravel(), before, pages]), tables.slots_N.device)
    table_6B, flat = numbers[: rows.size + len(before)].view(6, -1), numbers[rows.size + len(before) :]
    offset_C, length_C, row_C, count_C, begin_C, before_C = table_6B[:, ones:].unbind()
    queries = sum(counts) - ones
    return GpuStepSequences(
        flat,
        DecodeSequences(*table_6B[:3, :ones].unbind()) if ones else None,
        PrefillSequences(offset_C, length_C, row_C, count_C, before_C, begin_C, queries, max(counts), in_all)
        if queries
        else None,
    )


def copied_rows(lengths_C: NDArray[_Int]) -> NDArray[_Int]:
    """Return the number of rows that sequences of these lengths occupy in a copy of their keys and values."""
    from ridgeline.backends.cuda.triton import ROW_MULTIPLE

    return -(-lengths_C // ROW_MULTIPLE) * ROW_MULTIPLE
