"""States of recurrent layers in pages: a page holds those of several layers, of one sequence.

Shapes as in recurrence.py and forward_batch.py.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables
from ridgeline.core.ops.kv_layout import KVLayout, StateSpec
from ridgeline.core.ops.recurrence import Recurrence


class StatePages:
    """One layer's states in a buffer of pages that it shares with others: `numbers` is a view of all pages [pages, N].
    group: the number of its KV group.
    """

    def __init__(self, buffer: Tensor, spec: StateSpec, place: int, group: int) -> None:
        """buffer: uint8 [pages, bytes a page]. place: how many layers of this spec come before it in a page."""
        self.group = group
        self.numbers = buffer.view(spec.dtype)[:, place * spec.numbers : (place + 1) * spec.numbers]


def state_pages(buffer: Tensor, layout: KVLayout) -> dict[int, StatePages]:
    """The view of every layer that keeps a state, of a buffer of pages, uint8 [pages, at least layout.page_bytes]."""
    return {
        layer: StatePages(buffer, group.spec, place, index)
        for index, group in enumerate(layout.groups)
        if isinstance(group.spec, StateSpec)
        for place, layer in enumerate(group.layers)
    }


class StateGroup:
    """A step as the recurrent layers of one KV group see it: made once, used by each of them.

    Sequences with one row are moved on at once, the others one after the other.
    """

    def __init__(self, batch: ForwardBatch, tables: GroupPageTables) -> None:
        spans = list(enumerate(pairwise(batch.tokens.starts)))
        ones = [(sequence, start) for sequence, (start, stop) in spans if stop - start == 1]
        self.ones = torch.tensor(ones, dtype=torch.int64, device=tables.slots_N.device).view(-1, 2) if ones else None
        self.others = [(sequence, slice(*span)) for sequence, span in spans if span[1] - span[0] > 1]
        self.pages_B = tables.slots_N

    def recur(self, op: Recurrence, states_PN: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """As KVContext.recur, of a layer's states by page. The page of a sequence that begins is one of zeros."""
        out_TW = inputs[0].new_empty(len(inputs[0]), op.width, dtype=op.dtype)
        if self.ones is not None:
            rows_B, pages_B = self.ones[:, 1], self.pages_B[self.ones[:, 0]]
            out_B1W, states_PN[pages_B] = op.advance(states_PN[pages_B], *(x[rows_B, None] for x in inputs))
            out_TW[rows_B] = out_B1W[:, 0]
        for sequence, rows in self.others:
            page_1 = self.pages_B[sequence : sequence + 1]
            out_1QW, states_PN[page_1] = op.advance(states_PN[page_1], *(x[None, rows] for x in inputs))
            out_TW[rows] = out_1QW[0]
        return out_TW
