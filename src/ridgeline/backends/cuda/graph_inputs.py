"""What a captured step reads, where it stays from step to step.

A step that does not fill its bucket has rows of nothing behind it: they are at no slot and see no key. Its numbers come
in one transfer.

Shapes: T rows of a bucket, O sequences with one row each, C sequences with several, R rows of logits, G groups of
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
_OF_ROWS, _OF_ONES, _OF_SEVERAL = 2, 2, 5  # what is said of each, before what each group of layers says


@dataclass(frozen=True, slots=True)
class Bucket:
    """The most that the steps of one graph have. rows: T. ones: O, 0 where each sequence has several rows. several: C,
    0 where each has one. logits: R. copied: rows of the copy from which prompts read keys and values, 0 where they read
    pages.
    """

    rows: int
    ones: int
    several: int
    logits: int
    copied: int = 0


class GraphInputs:
    """The inputs of a bucket's steps. kv: the KVContext of these."""

    def __init__(self, bucket: Bucket, pages: CudaPages, tables: GpuPageTables) -> None:
        from ridgeline.backends.cuda.triton import DecodeSequences, GpuStepSequences, PrefillSequences

        self.bucket, self._seats, groups = bucket, tables, len(tables.groups)
        # One more sequence with several rows: those of nothing.
        several = bucket.several + 1 if bucket.several else 0
        self._shapes = (
            (_OF_ROWS + groups, bucket.rows), (_OF_ONES + groups, bucket.ones), (_OF_SEVERAL + groups, several),
            (1, bucket.logits),
        )  # fmt: skip
        numbers = torch.zeros(sum(a * b for a, b in self._shapes), dtype=torch.int32, device=tables.device)
        self._told = PinnedBuffer(numbers)
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
        """What is said of rows, of sequences with one, of those with several, and of logits."""
        ends = [*accumulate(a * b for a, b in self._shapes)]
        return [numbers[end - a * b : end].reshape(a, b) for (a, b), end in zip(self._shapes, ends, strict=True)]

    def fill(self, items: Sequence[RowItem], tables: PageTables) -> None:
        """Put what a step of these items reads where it is read."""
        seats = self._seats.settle(items, tables)
        counts = [len(item.tokens) for item in items]
        *starts, end = accumulate(counts, initial=0)
        of_rows, of_ones, of_several, logits = self._parts(self._told.begin())
        self._fill_rows(of_rows, items, tables, end)
        ones = [i for i, count in enumerate(counts) if count == 1 and self.bucket.ones]
        several = [i for i, count in enumerate(counts) if count > 1 or not self.bucket.ones]
        of_ones[0] = 0
        # Rows of nothing are a sequence's with several, where there are such; else one each.
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
        self._told.send()

    def _fill_rows(self, of_rows: Ints, items: Sequence[RowItem], tables: PageTables, end: int) -> None:
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
            # Of each page as many positions as the step has in it: a new one begins with an item, and at its edge.
            begins_T = position_T % size == 0
            begins_T[[*accumulate((len(item.tokens) for item in items[:-1]), initial=0)]] = True
            page_T = np.array(pages)[np.cumsum(begins_T) - 1]
            of_rows[_OF_ROWS + index, :end] = page_T * size + position_T % size
