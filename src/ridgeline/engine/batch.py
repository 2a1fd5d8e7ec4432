"""The batch: a StepPlan becomes tensors. Buffers are allocated once; what a step does not fill is not read.

Shapes: T rows of the step, R rows that need logits, B sequences of one attention call, P pages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.engine.kv.pool import NULL_PAGE
from ridgeline.engine.plan import PlanItem, StepPlan
from ridgeline.ops.kv import KVGroup
from ridgeline.ops.paged import PagedDecode, PagedGroup, PagedSegment


@dataclass(frozen=True, slots=True)
class Batch:
    """What a forward takes: ids_T and positions_T int64, rows_R the rows that need logits, and each KV group's view."""

    ids_T: Tensor
    positions_T: Tensor
    rows_R: Tensor
    groups: tuple[PagedGroup, ...]


class BatchBuilder:
    """Keeps every request's page tables as the plans tell them, and turns each plan into a Batch."""

    def __init__(self, groups: Sequence[KVGroup], most_tokens: int) -> None:
        self.groups = tuple(groups)
        self._ids = torch.empty(most_tokens, dtype=torch.int64)
        self._positions = torch.empty(most_tokens, dtype=torch.int64)
        self._slots = [torch.empty(most_tokens, dtype=torch.int64) for _ in self.groups]
        self._tables: dict[int, list[list[int]]] = {}

    def build(self, plan: StepPlan) -> Batch:
        """The batch of a plan. Plans must come in the order in which they were made."""
        for request in plan.forget:
            self._tables.pop(request, None)
        for item in plan.items:
            self._update_table(item)
        count = plan.tokens
        rows: list[int] = []
        start = 0
        for item in plan.items:
            stop = start + len(item.tokens)
            self._ids[start:stop] = torch.tensor(item.tokens)
            torch.arange(item.start, item.start + len(item.tokens), out=self._positions[start:stop])
            rows += [start + offset for offset in item.logits]
            start = stop
        groups = tuple(self._group(plan, group) for group in range(len(self.groups)))
        return Batch(self._ids[:count], self._positions[:count], torch.tensor(rows, dtype=torch.int64), groups)

    def _update_table(self, item: PlanItem) -> None:
        if item.first:
            self._tables[item.request] = [list(pages) for pages in item.pages]
        else:
            for table, pages in zip(self._tables[item.request], item.pages, strict=True):
                table.extend(pages)

    def _group(self, plan: StepPlan, group: int) -> PagedGroup:
        decodes: list[tuple[int, PlanItem]] = []
        segments: list[PagedSegment] = []
        slots: list[int] = []
        row = 0
        for item in plan.items:
            slots += self._item_slots(item, group)
            if len(item.tokens) == 1:
                decodes.append((row, item))
            else:
                segments.append(self._segment(item, row, group))
            row += len(item.tokens)
        slots_T = self._slots[group][: len(slots)]
        slots_T.copy_(torch.tensor(slots))
        calls = [self._decode(bucket, group) for bucket in self._buckets(decodes, self.groups[group])]
        return PagedGroup(slots_T, calls, segments)

    def _item_slots(self, item: PlanItem, group: int) -> list[int]:
        table, size = self._tables[item.request][group], self.groups[group].page_size
        positions = range(item.start, item.start + len(item.tokens))
        return [table[position // size] * size + position % size for position in positions]

    def _seen(self, item: PlanItem, index: int) -> tuple[int, list[int]]:
        """The first position of the pages that the item's first query sees, and those pages."""
        group = self.groups[index]
        first, last = group.first_page(item.start), group.entries(item.segment.kv_len)
        return first * group.page_size, self._tables[item.request][index][first:last]

    def _segment(self, item: PlanItem, row: int, group: int) -> PagedSegment:
        kv_len = item.segment.kv_len
        if item.start == 0:
            return PagedSegment(row, len(item.tokens), kv_len, 0, None)
        first, pages = self._seen(item, group)
        return PagedSegment(row, len(item.tokens), kv_len, first, torch.tensor(pages))

    def _buckets(self, decodes: list[tuple[int, PlanItem]], group: KVGroup) -> Iterator[list[tuple[int, PlanItem]]]:
        """Decoding requests of about the same length: what pads the shorter ones is at most half of a call."""
        buckets: dict[int, list[tuple[int, PlanItem]]] = {}
        for row, item in decodes:
            seen = item.segment.kv_len - group.spec.first_seen(item.start)
            buckets.setdefault((seen // group.page_size).bit_length(), []).append((row, item))
        yield from buckets.values()

    def _decode(self, bucket: list[tuple[int, PlanItem]], group: int) -> PagedDecode:
        seen = [self._seen(item, group) for _, item in bucket]
        width = max(len(pages) for _, pages in seen)
        return PagedDecode(
            torch.tensor([row for row, _ in bucket]),
            torch.tensor([pages + [NULL_PAGE] * (width - len(pages)) for _, pages in seen]),
            torch.tensor([first for first, _ in seen]),
            torch.tensor([item.segment.kv_len for _, item in bucket]),
        )
