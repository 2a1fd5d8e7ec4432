"""Cached costs of ops that do not read the context, by the number of rows (such as tokens) they run over.

A step that mixes prompts and decodes nearly always has a new combination of row counts, but the row count of each
single space repeats.
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
"""The row counts of a step on which the cost of context-free ops depends: of one kind of rows, or with LoRA of all."""


class CachedOps:
    """The ops over one kind of rows (such as tokens) whose cost does not depend on the context, with cached costs."""

    def __init__(self, ops: Sequence[PricedOp], devices: int) -> None:
        """Wrap ops that all run over the same kind of rows, such as tokens or logit rows.

        Args:
            ops: The ops, in the order of the results.
            devices: The number of devices that the model is split over.
        """
        self._ops, self._space, self._devices = tuple(ops), ops[0].space, devices
        self._costs: dict[_Rows, tuple[Cost, ...]] = {}
        self._launches: dict[tuple[_Rows, str], tuple[tuple[Launch, ...], ...]] = {}
        # The value references the device, so that no new object can reuse the id in the key.
        self._rows: dict[tuple[int, float, _Rows, _Rows, bool], tuple[Device, tuple[PricedRow, ...]]] = {}

    def costs(self, work: Work) -> tuple[Cost, ...]:
        """Return the cost of one call of each of these ops in a step."""
        rows = self._rows_of(work)
        found = self._costs.get(rows)
        if found is None:
            blind = _blind(work)
            found = put(self._costs, rows, tuple(priced.cost(blind) for priced in self._ops))
        return found

    def rows_on(
        self, device: Device, work: Work, ran: Work, working_set: float, backend: Backend, *, recorded: bool
    ) -> tuple[PricedRow, ...]:
        """Return the cost and the seconds of one call of each of these ops in a step on a device.

        Args:
            device: The device that runs the step.
            work: The step as requested.
            ran: The step as the kernels run it, which may include padding.
            working_set: The bytes of weights and KV that the step reads and writes.
            backend: The backend whose kernels run.
            recorded: Whether the step is replayed.
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
        """Return the kernel launches of each op in a step. All devices with the same backend share them."""
        key = (self._rows_of(work), backend.name)
        found = self._launches.get(key)
        if found is None:
            blind = _blind(work)
            found = put(self._launches, key, tuple(priced.launches(blind, backend) for priced in self._ops))
        return found

    def _rows_of(self, work: Work) -> _Rows:
        return work.rows.get(self._space, 0), work.shape if work.has_adapters else ()


def _blind(work: Work) -> Work:
    """Return the work without its attention, so that an op that reads the context without declaring it fails here."""
    return Work(work.rows, work.sequences)
