"""Standing ops: those of one space whose cost the context does not change, with what is known of them by their rows.

A step of prompts and decodes has ever new pairs of rows of its spaces, but not ever new rows of each.
"""

from collections.abc import Sequence

from ridgeline.core.ops.backend import Backend
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.work import Work
from ridgeline.price.bounded_cache import put
from ridgeline.price.device import Device
from ridgeline.price.op_time import op_seconds
from ridgeline.price.priced_op import PricedOp, PricedRow

_Rows = tuple[int, tuple[tuple[str, int], ...]]
"""Rows of the space and, where adapters are asked for, of all others: all that such an op depends on."""


class CachedOps:
    """The ops of a space, in their order."""

    def __init__(self, ops: Sequence[PricedOp], devices: int) -> None:
        """devices: over how many cards the model is divided."""
        self._ops, self._space, self._devices = tuple(ops), ops[0].space, devices
        self._costs: dict[_Rows, tuple[Cost, ...]] = {}
        self._launches: dict[tuple[_Rows, str], tuple[tuple[Launch, ...], ...]] = {}
        # The device is held so that no other one can come by its id.
        self._rows: dict[tuple[int, float, _Rows, _Rows, bool], tuple[Device, tuple[PricedRow, ...]]] = {}

    def costs(self, work: Work) -> tuple[Cost, ...]:
        """Of one call of each in a step."""
        rows = self._rows_of(work)
        found = self._costs.get(rows)
        if found is None:
            blind = _blind(work)
            found = put(self._costs, rows, tuple(priced.cost(blind) for priced in self._ops))
        return found

    def rows_on(
        self, device: Device, work: Work, ran: Work, working_set: float, backend: Backend, *, recorded: bool
    ) -> tuple[PricedRow, ...]:
        """Return cost and seconds of one call of each op. ran: what the kernels run, which may be more. working_set:
        bytes that the step goes over. backend: the one whose kernels run. recorded: whether the step is replayed.
        """
        key = (id(device), device.bandwidth_of(working_set), self._rows_of(work), self._rows_of(ran), recorded)
        found = self._rows.get(key)
        if found is None:

            def row(priced: PricedOp, cost: Cost, launches: tuple[Launch, ...]) -> PricedRow:
                time = op_seconds(cost, launches, device, working_set, self._devices, recorded=recorded)
                return PricedRow(priced, cost, time)

            rows = tuple(map(row, self._ops, self.costs(work), self._launches_of(ran, backend)))
            found = put(self._rows, key, (device, rows))
        return found[1]

    def _launches_of(self, work: Work, backend: Backend) -> tuple[tuple[Launch, ...], ...]:
        """The same on all devices, of which a plan compares dozens."""
        key = (self._rows_of(work), backend.name)
        found = self._launches.get(key)
        if found is None:
            blind = _blind(work)
            found = put(self._launches, key, tuple(priced.launches(blind, backend) for priced in self._ops))
        return found

    def _rows_of(self, work: Work) -> _Rows:
        return work.rows.get(self._space, 0), work.shape if work.adapted else ()


def _blind(work: Work) -> Work:
    """Without attention in it, an op that reads the context and does not say so fails here."""
    return Work(work.rows, work.sequences)
