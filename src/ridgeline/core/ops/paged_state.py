"""The states of recurrent layers in pages, each of which holds the states of several layers for one sequence.

Shapes: as in recurrence.py and forward_batch.py.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables
from ridgeline.core.ops.kv_layout import KVLayout, StateSpec
from ridgeline.core.ops.recurrence import Recurrence


class StatePages:
    """The states of one recurrent layer in a buffer of pages that it shares with other layers.

    Attributes:
        group: The index of the layer's KV group.
        numbers: The view of the state in all pages: [pages, N].
    """

    def __init__(self, buffer: Tensor, spec: StateSpec, place: int, group: int) -> None:
        """Create the view of one recurrent layer's states in a buffer of pages.

        Args:
            buffer: The pages, uint8 [pages, bytes per page].
            spec: The size and dtype of the state.
            place: The index of the layer within its KV group.
            group: The index of the KV group.
        """
        self.group = group
        self.numbers = buffer.view(spec.dtype)[:, place * spec.numbers : (place + 1) * spec.numbers]


def state_pages(buffer: Tensor, layout: KVLayout) -> dict[int, StatePages]:
    """Return the pages of every recurrent layer, as views of a buffer uint8 [pages, at least layout.page_bytes]."""
    return {
        layer: StatePages(buffer, group.spec, place, index)
        for index, group in enumerate(layout.groups)
        if isinstance(group.spec, StateSpec)
        for place, layer in enumerate(group.layers)
    }


class StateGroup:
    """The sequences of a step for the recurrent layers of one KV group, which all use the same object.

    Sequences with one row advance together, the others one by one.
    """

    def __init__(self, batch: ForwardBatch, tables: GroupPageTables) -> None:
        spans = list(enumerate(pairwise(batch.tokens.starts)))
        ones = [(sequence, start) for sequence, (start, stop) in spans if stop - start == 1]
        self.ones = torch.tensor(ones, dtype=torch.int64, device=tables.slots_N.device).view(-1, 2) if ones else None
        self.others = [(sequence, slice(*span)) for sequence, span in spans if span[1] - span[0] > 1]
        self.pages_B = tables.slots_N

    def recur(self, op: Recurrence, states_PN: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Advance the states of a recurrent layer by the step's rows and return the outputs: [T, W].

        A sequence that starts has a page of zeros.

        Args:
            op: The recurrent op.
            states_PN: The layer's states, by page.
            inputs: The step's rows, [T, ...] each.
        """
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
