"""The page tables of requests whose steps are captured, on the GPU: a request has a seat, and a step sends only pages
that are new.
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
class _Seat:
    """The place of a request's tables. tables: one a group, as PageTables has them. known: entries of each that the GPU
    has.
    """

    number: int
    tables: list[list[int]]
    known: list[int]


class GpuPageTables:
    """The page tables on a GPU: int32 `pages`, in which each group has a row a seat."""

    def __init__(self, groups: Sequence[KVGroup], widths: Sequence[int], device: torch.device) -> None:
        """widths: the most entries that a table of each group has."""
        self.groups, self.widths, self.device = groups, tuple(widths), device
        self._seats: dict[int, _Seat] = {}
        self._free: list[int] = []
        self.seats = 0
        self.grow(_FIRST_SEATS)

    def grow(self, seats: int) -> None:
        """Have so many seats, empty: what was known of tables is told again, and they lie elsewhere from now on."""
        self.seats, self._free = seats, list(reversed(range(seats)))
        self._seats.clear()
        self.starts = [seats * sum(self.widths[:index]) for index in range(len(self.widths))]
        self.pages = torch.zeros(seats * sum(self.widths), dtype=torch.int32, device=self.device)

    def forget(self, requests: Sequence[int]) -> None:
        """Give up the seats of these requests."""
        for request in requests:
            if (seat := self._seats.pop(request, None)) is not None:
                self._free.append(seat.number)

    def settle(self, items: Sequence[RowItem], tables: PageTables) -> list[int]:
        """Send the GPU what is new of the tables of these items' requests. Return the seat of each."""
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
        wanted = {item.request for item in items}
        missing = len(wanted - self._seats.keys())
        if missing > len(self._free):  # those that do not run now are told again when they do
            self.forget([request for request in self._seats if request not in wanted])
        if missing > len(self._free):
            self.grow(2 * max(self.seats, len(wanted)))

    def _seat(self, request: int, tables: list[list[int]]) -> _Seat:
        seat = self._seats.get(request)
        if seat is None:
            seat = self._seats[request] = _Seat(self._free.pop(), tables, [0] * len(tables))
        elif seat.tables is not tables:  # it was preempted, and has begun again
            seat.tables, seat.known = tables, [0] * len(tables)
        return seat
