"""The conversion of a StepPlan to the batch that a model takes: ids, positions and page tables.

Shapes: T rows of tokens, E rows of an encoder.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.backends.staging import staged
from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables, Rows
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.step_plan import PlanItem, StepPlan

PageTables = list[list[int]]
"""The page tables of a request, one per group of layers; a new list when the request starts or restarts."""


class BatchBuilder:
    """The runner's copy of all requests' page tables, from which it builds the batch of each plan."""

    def __init__(self, groups: Sequence[KVGroup], device: torch.device) -> None:
        self.groups, self.device = tuple(groups), device
        self._tables: dict[int, PageTables] = {}

    def build(self, items: Sequence[PlanItem]) -> ForwardBatch:
        """Return the forward batch of a step plan's items, after `apply_plan` has received their page tables."""
        tokens = self._rows(self._placed(items))
        starts = list(zip(items, tokens.starts, strict=False))
        wanted = [start + offset for item, start in starts for offset in item.logits]
        wanted += [start + offset for item, start in starts if item.scored for offset in item.scored.rows]
        return ForwardBatch(
            tokens,
            self._encoder_rows(items),
            self._tensor(wanted),
            [item.start + len(item.tokens) for item in items],
            [item.encoded for item in items],
            [self._group(items, index) for index in range(len(self.groups))],
            [item.adapter for item in items],
        )

    def apply_plan(self, plan: StepPlan) -> None:
        """Apply a plan's changes to the page tables. Plans must come in the order in which they were made."""
        for request in plan.forget:
            self._tables.pop(request, None)
        for item in plan.items:
            self._update_table(item)

    def tables(self, request: int) -> PageTables:
        """Return the page tables of a request, for reading only."""
        return self._tables[request]

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return staged(numbers, self.device, torch.int64)

    def _rows(self, parts: Iterable[tuple[int, Sequence[int]]]) -> Rows:
        """Make the token rows of a batch from sequences, each given by its first position and its ids."""
        ids: list[int] = []
        positions: list[int] = []
        starts = [0]
        for first, own in parts:
            ids += own
            positions += range(first, first + len(own))
            starts.append(len(ids))
        return Rows(self._tensor(ids), self._tensor(positions), starts)

    @staticmethod
    def _placed(items: Iterable[PlanItem]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the first position and the tokens of each plan item; image rows are renumbered over all items."""
        before = 0
        for item in items:
            tokens = item.tokens
            if before and isinstance(item.encoder, EncoderFeatures):
                tokens = [token if token >= 0 else token - before for token in tokens]
            yield item.start, tokens
            before += len(item.encoder)

    def _encoder_rows(self, items: Sequence[PlanItem]) -> Rows:
        """Return the rows that the encoders of a plan read: token ids or features, each input as its own sequence."""
        inputs = [item.encoder for item in items]
        features = [each.values for each in inputs if isinstance(each, EncoderFeatures)]
        rows = self._rows(
            (0, part)
            for each in inputs
            for part in (
                [range(each.positions_per_input)] * each.inputs if isinstance(each, EncoderFeatures) else [each]
            )
        )
        if not features:
            return rows
        return replace(rows, ids_N=torch.from_numpy(np.concatenate(features)).to(self.device))

    def _update_table(self, item: PlanItem) -> None:
        if item.first:
            self._tables[item.request] = [list(pages) for pages in item.pages]
        else:
            for table, pages in zip(self._tables[item.request], item.pages, strict=True):
                table.extend(pages)

    def states(self, items: Sequence[PlanItem]) -> list[int]:
        """Return the KV pages that hold the recurrent states of the requests of these plan items."""
        fixed = [index for index, group in enumerate(self.groups) if group.spec.is_state]
        return [page for item in items for index in fixed for page in self._tables[item.request][index]]

    def _group(self, items: Sequence[PlanItem], index: int) -> GroupPageTables:
        slots, seen, first = self.places(items, index)
        return GroupPageTables(self._tensor(slots), seen, first)

    def places(self, items: Sequence[PlanItem], index: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Return the KV slots that plan items write in one group of layers, and the KV pages that they see.

        Returns:
            The slots that the step writes, the pages that each item's rows see, and the first position of those pages.
        """
        group, size = self.groups[index], self.groups[index].page_size
        slots: list[int] = []
        seen: list[list[int]] = []
        first: list[int] = []
        for item in items:
            table = self._tables[item.request][index]
            end = item.start + len(item.tokens)
            for slot in group.spec.written(item.start, end, len(item.encoder)):
                slots.append(table[slot // size] * size + slot % size)
            page = group.first_page(item.start)
            seen.append(table[page : group.entries(end, item.encoded)])
            first.append(page * size)
        return slots, seen, first
