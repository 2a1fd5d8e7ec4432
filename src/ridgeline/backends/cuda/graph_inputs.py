"""The input memory of CUDA graphs of steps, which stays at the same addresses from step to step.

Batches are padded to the bucket size; padding rows have no KV slot and attend to nothing. The host sends all numbers of
a step in one transfer, apart from new page-table entries (gpu_page_tables.py).

Shapes: T rows of a bucket, O sequences with one row each, C sequences with several rows, R rows of logits, G groups of
layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.backends.cuda.cuda_pages import CudaKV, CudaPages, copied_rows
from ridgeline.backends.cuda.gpu_page_tables import GpuPageTables
from ridgeline.backends.staging import PinnedBuffer
from ridgeline.core.ops.step_graphs import PageTables, RowItem

Ints = NDArray[np.int32]
_Numbers = TypeVar("_Numbers", Tensor, Ints)

_NOWHERE = -1
_OF_ROWS, _OF_ONES, _OF_SEVERAL = 2, 2, 5  # numbers of each, before those of each KV group


@dataclass(frozen=True, slots=True)
class Bucket:
    """The maximum sizes of the steps that run in one CUDA graph."""

    rows: int
    """The number of rows of a CUDA graph (T)."""
    ones: int
    """The number of sequences with one row in a CUDA graph (O), or 0 if every sequence has several rows."""
    several: int
    """The number of sequences with several rows in a CUDA graph (C), or 0 if every sequence has one row."""
    logits: int
    """The number of rows of logits of a CUDA graph (R)."""
    copied: int = 0
    """The number of rows of the copied keys and values that prompts read, or 0 if they read pages."""


class GraphInputs:
    """The input tensors of the CUDA graph for one size of steps; `kv` is their KVContext."""

    def __init__(self, bucket: Bucket, pages: CudaPages, tables: GpuPageTables) -> None:
        """Allocate the input tensors of a CUDA graph for one size of steps."""
        from ridgeline.backends.cuda.triton import DecodeSequences, GpuStepSequences, PrefillSequences

        self.bucket, self._seats, groups = bucket, tables, len(tables.groups)
        # One additional sequence with several rows holds the padding rows.
        several = bucket.several + 1 if bucket.several else 0
        self._shapes = (
            (_OF_ROWS + groups, bucket.rows), (_OF_ONES + groups, bucket.ones), (_OF_SEVERAL + groups, several),
            (1, bucket.logits),
        )  # fmt: skip
        numbers = torch.zeros(sum(a * b for a, b in self._shapes), dtype=torch.int32, device=tables.device)
        self._staging = PinnedBuffer(numbers)
        of_rows, of_ones, of_several, logits = self._parts(numbers)
        self.ids_T, self.positions_T, *slots = of_rows.unbind()
        self.rows_R = logits[0]
        lengths_O, rows_O, *offsets_O = of_ones.unbind()
        length_C, row_C, count_C, before_C, begin_C, *offsets_C = of_several.unbind()
        seen = [
            GpuStepSequences(
                tables.pages,
                DecodeSequences(offset_O, lengths_O, rows_O) if bucket.ones else None,
                PrefillSequences(
                    offset_C, length_C, row_C, count_C, before_C, begin_C, bucket.rows, bucket.rows, bucket.copied
                )
                if several
                else None,
            )
            for offset_O, offset_C in zip(offsets_O, offsets_C, strict=True)
        ]
        self.kv = CudaKV(pages, slots, dict(enumerate(seen)))

    def _parts(self, numbers: _Numbers) -> list[_Numbers]:
        """Return views of the input numbers of rows, one-row sequences, sequences with several rows, and logits."""
        ends = [*accumulate(a * b for a, b in self._shapes)]
        return [numbers[end - a * b : end].reshape(a, b) for (a, b), end in zip(self._shapes, ends, strict=True)]

    def fill(self, items: Sequence[RowItem], tables: PageTables) -> None:
        """Write a step's inputs, given its items (one per request or row), and send them to the GPU."""
        seats = self._seats.update(items, tables)
        counts = [len(item.tokens) for item in items]
        *starts, end = accumulate(counts, initial=0)
        of_rows, of_ones, of_several, logits = self._parts(self._staging.begin())
        self._fill_rows(of_rows, items, tables, end)
        ones = [i for i, count in enumerate(counts) if count == 1 and self.bucket.ones]
        several = [i for i, count in enumerate(counts) if count > 1 or not self.bucket.ones]
        of_ones[0] = 0
        # Padding rows belong to one sequence with several rows if the bucket has these, else each is a sequence.
        of_ones[1] = _NOWHERE if self.bucket.several else np.arange(self.bucket.ones)
        of_ones[:2, : len(ones)] = [[items[i].start + 1 for i in ones], [starts[i] for i in ones]]
        if self.bucket.several:
            rest = self.bucket.rows - end
            lengths = [*(items[i].start + counts[i] for i in several), 0]
            of_several[:3] = 0
            of_several[0, : len(lengths)] = lengths
            of_several[1, : len(lengths)] = [*(starts[i] for i in several), end]
            of_several[2, : len(lengths)] = [*(counts[i] for i in several), rest]
            of_several[3] = np.cumsum(of_several[2]) - of_several[2]
            rooms = copied_rows(of_several[0])
            of_several[4] = np.cumsum(rooms) - rooms
        for index, (start, width) in enumerate(zip(self._seats.starts, self._seats.widths, strict=True)):
            offsets = start + np.multiply(seats, width)
            of_ones[_OF_ONES + index, : len(ones)] = offsets[ones]
            of_several[_OF_SEVERAL + index, : len(several)] = offsets[several]
        wanted = [start + offset for item, start in zip(items, starts, strict=True) for offset in item.logits]
        logits[0] = 0
        logits[0, : len(wanted)] = wanted
        self._staging.send()

    def _fill_rows(self, of_rows: Ints, items: Sequence[RowItem], tables: PageTables, end: int) -> None:
        """Write the token ids, positions and KV slots of a step's rows to the buffer that is sent to the GPU."""
        of_rows[:_OF_ROWS], of_rows[_OF_ROWS:] = 0, _NOWHERE
        of_rows[0, :end] = [token for item in items for token in item.tokens]
        position_T = (
            np.array([item.start for item in items])
            if end == len(items)
            else np.concatenate([np.arange(item.start, item.start + len(item.tokens)) for item in items])
        )
        of_rows[1, :end] = position_T
        tables_of = [tables.tables(item.request) for item in items]
        for index, group in enumerate(self._seats.groups):
            size = group.page_size
            pages = [
                table[index][position // size]
                for item, table in zip(items, tables_of, strict=True)
                for position in range(item.start - item.start % size, item.start + len(item.tokens), size)
            ]
            # Repeat each page for the step's positions in it: a page begins with an item and at each page boundary.
            begins_T = position_T % size == 0
            begins_T[[*accumulate((len(item.tokens) for item in items[:-1]), initial=0)]] = True
            page_T = np.array(pages)[np.cumsum(begins_T) - 1]
            of_rows[_OF_ROWS + index, :end] = page_T * size + position_T % size
