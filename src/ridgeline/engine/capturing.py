"""Decode steps on a card: captured once as a CUDA graph for each bucket of batch sizes, then replayed.

What a step reads lies at fixed places: its numbers come in one transfer, and page tables stay on the card, where a
request has a seat; a step tells only of pages that are new. A batch that does not fill its bucket has rows of nothing
behind it: they are at no slot and see no key. A guess that a step verifies is a row beside its sequence's, one position
further on: keys and values of all rows are written before any is attended to.

Shapes: B sequences of a bucket, one position of each, G groups of layers, V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from ridgeline.engine.batch import BatchBuilder, PageTables
from ridgeline.engine.decoding import Hooks, verifies
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.kernels.recording import CAPTURED_BATCHES
from ridgeline.ops.kv import KVGroup, KVLayout
from ridgeline.ops.latent import LatentAttention
from ridgeline.ops.paged_card import CardPages, OnPages
from ridgeline.ops.recurrence import Recurrence
from ridgeline.ops.staging import Told, staged

if TYPE_CHECKING:
    from ridgeline.ops.kernels.triton import Seen

_FIRST_SEATS = 64


@dataclass(slots=True)
class _Seat:
    """Where the tables of a request are. tables: as the builder has them. known: entries of each that the card has."""

    number: int
    tables: PageTables
    known: list[int]


class SeatedTables:
    """The page tables of requests that decode, on the card: int32 `pages`, in which each group has a row a seat."""

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

    def settle(self, items: Sequence[PlanItem], builder: BatchBuilder) -> list[int]:
        """Tell the card what is new of the tables of these items' requests; the seat of each."""
        self._make_room(items)
        places, entries, numbers = list[int](), list[int](), list[int]()
        for item in items:
            seat = self._seat(item.request, builder.tables(item.request))
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

    def _make_room(self, items: Sequence[PlanItem]) -> None:
        wanted = {item.request for item in items}
        missing = len(wanted - self._seats.keys())
        if missing > len(self._free):  # those that do not decode now are told again when they do
            self.forget([request for request in self._seats if request not in wanted])
        if missing > len(self._free):
            self.grow(2 * max(self.seats, len(wanted)))

    def _seat(self, request: int, tables: PageTables) -> _Seat:
        seat = self._seats.get(request)
        if seat is None:
            seat = self._seats[request] = _Seat(self._free.pop(), tables, [0] * len(tables))
        elif seat.tables is not tables:  # it was preempted, and has begun again
            seat.tables, seat.known = tables, [0] * len(tables)
        return seat


class DecodeInputs(OnPages):
    """What decode steps of a bucket read, where it stays from step to step; and their KVContext."""

    def __init__(self, count: int, pages: CardPages, tables: SeatedTables) -> None:
        from ridgeline.ops.kernels.triton import One, Seen

        super().__init__(pages)
        device, groups = tables.device, len(tables.groups)
        self.tables = tables
        self.numbers = torch.zeros(3 + 2 * groups, count, dtype=torch.int32, device=device)
        self._told = Told(self.numbers)
        self.ids_B, self.positions_B, lengths_B = self.numbers[:3].unbind()
        self._slots, offsets = self.numbers[3 : 3 + groups].unbind(), self.numbers[3 + groups :].unbind()
        self.rows_B = torch.arange(count, device=device)
        rows_B = self.rows_B.int()
        self._seen = [Seen(tables.pages, One(offset_B, lengths_B, rows_B), None) for offset_B in offsets]

    def fill(self, items: Sequence[PlanItem], builder: BatchBuilder) -> None:
        """Put what a step of these items reads where it is read."""
        seats, count = self.tables.settle(items, builder), len(items)
        groups, starts = self.tables.groups, [item.start for item in items]
        numbers = self._told.begin()
        numbers[:3] = 0
        numbers[0, :count] = [item.tokens[0] for item in items]
        numbers[1, :count] = starts
        numbers[2, :count] = np.add(starts, 1)
        slots, offsets = numbers[3 : 3 + len(groups)], numbers[3 + len(groups) :]
        slots[:], offsets[:] = -1, 0
        tables = [builder.tables(item.request) for item in items]
        for index, group in enumerate(groups):
            size = group.page_size
            slots[index, :count] = [
                own[index][start // size] * size + start % size for own, start in zip(tables, starts, strict=True)
            ]
            offsets[index, :count] = self.tables.starts[index] + np.multiply(seats, self.tables.widths[index])
        self._told.send()

    def seen(self, group: int) -> "Seen":
        """As OnPages.seen."""
        return self._seen[group]

    def slots(self, group: int) -> Tensor:
        """As OnPages.slots."""
        return self._slots[group]

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Torch computes it, over tables that the host knows."""
        raise AssertionError("steps over latents are not captured")

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """As attend_latent."""
        raise AssertionError("steps over states are not captured")


class Capture:
    """A step that a card makes again, over what is now where its numbers were. result: what it gives."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph, self.result = graph, result

    def again(self) -> Tensor:
        """Make it again. The host does not wait."""
        self._graph.replay()
        return self.result


class CapturingRunner(Runner):
    """A Runner on a card whose decode steps are captured, where a step asks nothing of the host (`Model.captures`) and
    nobody watches the model's parts. `forward` is not. Weights must stay where they are."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout)
        self._captures = self.cards is not None and model.captures
        self._hooks = Hooks(model)
        # A sequence has no more entries than there are pages, unless it lets some go.
        widths = [
            group.entries(model.context) if group.spec.passes else min(group.entries(model.context), layout.pages)
            for group in layout.groups
        ]
        self._tables = SeatedTables(layout.groups, widths, self.device) if self._captures else None
        self._inputs: dict[int, DecodeInputs] = {}
        self._known: dict[int, Capture] = {}
        self._pool: Any = None  # the memory that all graphs share

    @torch.inference_mode()
    def step_logits(self, plan: StepPlan) -> Tensor:
        """As Runner.step_logits."""
        capture = self.capture(plan)
        return self.forward(plan) if capture is None else capture.again()[: plan.tokens]

    @torch.inference_mode()
    def capture(self, plan: StepPlan) -> Capture | None:
        """What `step_logits` makes again for such a plan, ready for this one; None where it is not captured."""
        if self._tables is None or not self._capturable(plan):
            return None
        if self.model.adapters is not None:
            self.model.adapters.choose((), (), torch.device("cpu"))
        self.builder.hear(plan)
        self._tables.forget(plan.forget)
        self.ready(plan)
        bucket = CAPTURED_BATCHES[bisect_left(CAPTURED_BATCHES, plan.tokens)]
        inputs = self._filled(bucket, row_by_row(plan))
        if bucket not in self._known:
            self._known[bucket] = self.captured(
                lambda: self.model.head(self.model.hidden(inputs.ids_B, inputs.positions_B, inputs, inputs.rows_B))
            )
        return self._known[bucket]

    def _capturable(self, plan: StepPlan) -> bool:
        few = plan.tokens <= CAPTURED_BATCHES[-1]
        return few and all(map(verifies, plan.items)) and not self._hooks.there

    def _filled(self, bucket: int, items: Sequence[PlanItem]) -> DecodeInputs:
        assert self._tables is not None
        assert self.cards is not None
        if bucket not in self._inputs:
            self._inputs[bucket] = DecodeInputs(bucket, self.cards, self._tables)
        inputs, pages = self._inputs[bucket], self._tables.pages
        inputs.fill(items, self.builder)
        if self._tables.pages is not pages:  # there are more seats now, elsewhere: graphs know the old ones
            self._inputs.clear()
            self._known.clear()
            self._pool = None  # torch refuses captures into memory whose last graph is gone
            return self._filled(bucket, items)
        return inputs

    def captured(self, step: Callable[[], Tensor]) -> Capture:
        """A step as a graph. It runs once before, because what is compiled or reserved at first is not captured."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = step()
        return Capture(graph, result)


def row_by_row(plan: StepPlan) -> Sequence[PlanItem]:
    """The items of a plan with one for each row, where there are guesses among them."""
    if plan.tokens == len(plan.items):
        return plan.items
    return [
        structs.replace(item, start=start, tokens=(token,), logits=(0,))
        for item in plan.items
        for start, token in enumerate(item.tokens, item.start)
    ]
