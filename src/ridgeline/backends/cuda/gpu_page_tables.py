"""Page tables of requests on the GPU, for steps that are captured as CUDA graphs.

Each request has a seat (one row per KV group in a flat tensor), and a step sends only new entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ridgeline.backends.staging import staged
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.step_graphs import PageTables, RowItem

_FIRST_SEATS = 64


@dataclass(slots=True)
class _TableSlot:
    """The row that holds one request's page tables on the GPU, and what has been sent to it."""

    number: int
    """The index of the row that holds a request's page tables on the GPU."""
    tables: list[list[int]]
    """The page tables of one request, one per KV group, as in PageTables."""
    known: list[int]
    """The number of entries of each of a request's page tables that the GPU has received."""


class GpuPageTables:
    """The page tables of requests on a GPU: the flat int32 tensor `pages` has one row per KV group and request."""

    def __init__(self, groups: Sequence[KVGroup], widths: Sequence[int], device: torch.device) -> None:
        """Allocate the GPU's page tables.

        Args:
            groups: KV groups of the model.
            widths: Maximum number of entries of a table, for each group.
            device: The GPU.
        """
        self.groups, self.widths, self.device = groups, tuple(widths), device
        self._seats: dict[int, _TableSlot] = {}
        self._free: list[int] = []
        self.seats = 0
        self.grow(_FIRST_SEATS)

    def grow(self, seats: int) -> None:
        """Reallocate the GPU's page tables, empty, for this number of requests (`seats`).

        The tables move to new addresses, and their entries must be sent again.
        """
        self.seats, self._free = seats, list(reversed(range(seats)))
        self._seats.clear()
        self.starts = [seats * sum(self.widths[:index]) for index in range(len(self.widths))]
        self.pages = torch.zeros(seats * sum(self.widths), dtype=torch.int32, device=self.device)

    def forget(self, requests: Sequence[int]) -> None:
        """Free the rows of these requests in the GPU's page tables."""
        for request in requests:
            if (seat := self._seats.pop(request, None)) is not None:
                self._free.append(seat.number)

    def update(self, items: Sequence[RowItem], tables: PageTables) -> list[int]:
        """Send new page-table entries of a step's requests to the GPU, and return the table row of each item."""
        self._make_room(items)
        places, entries, numbers = list[int](), list[int](), list[int]()
        for item in items:
            seat = self._seat(item.request, tables.tables(item.request))
            numbers.append(seat.number)
            for index, table in enumerate(seat.tables):
                known, end = seat.known[index], len(table)
                if known < end:
                    row = self.starts[index] + seat.number * self.widths[index]
                    places += range(row + known, row + end)
                    entries += table[known:]
                    seat.known[index] = end
        if places:
            both = staged(np.array([places, entries], np.int64), self.device)
            self.pages.index_copy_(0, both[0], both[1].int())
        return numbers

    def _make_room(self, items: Sequence[RowItem]) -> None:
        """Provide table rows on the GPU for a step's requests: free those of other requests, or grow the tables."""
        wanted = {item.request for item in items}
        missing = len(wanted - self._seats.keys())
        if missing > len(self._free):  # tables of requests that do not run now are sent again later
            self.forget([request for request in self._seats if request not in wanted])
        if missing > len(self._free):
            self.grow(2 * max(self.seats, len(wanted)))

    def _seat(self, request: int, tables: list[list[int]]) -> _TableSlot:
        """Return the row of a request in the GPU's page tables, a free one if it has none."""
        seat = self._seats.get(request)
        if seat is None:
            seat = self._seats[request] = _TableSlot(self._free.pop(), tables, [0] * len(tables))
        elif seat.tables is not tables:  # the request was preempted and has restarted
            seat.tables, seat.known = tables, [0] * len(tables)
        return seat
