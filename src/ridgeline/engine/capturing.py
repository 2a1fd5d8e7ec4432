"""Steps on a card: captured once as a CUDA graph for each bucket of sizes, then replayed.

A step whose sequences have one row each runs as the next larger batch. A guess that it verifies is a row beside its
sequence's, one position further on: keys and values of all rows are written before any is attended to.

A step with prompts runs as the next larger number of rows, as long as Python takes longer to ask for its ops than a
large card to run them (`Model.captured_rows`). It is captured when its bucket comes again: a prompt of a length that
comes once does not wait for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from ridgeline.engine.decoding import Hooks, verifies
from ridgeline.engine.runner import Runner
from ridgeline.engine.seated_tables import SeatedTables
from ridgeline.engine.step_inputs import Bucket, StepInputs
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.kernels.recording import captured_shape
from ridgeline.ops.kv import KVLayout
from ridgeline.ops.paged_card import rooms_of


class Capture:
    """A step that a card makes again, over what is now where its numbers were. result: what it gives, in memory that
    the next one made may use."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph, self.result = graph, result

    def again(self) -> Tensor:
        """Make it again. The host does not wait."""
        self._graph.replay()
        return self.result


class CapturingRunner(Runner):
    """A Runner on a card whose steps are captured, where they ask nothing of the host (`Model.captures`) and nobody
    watches the model's parts. `forward` is not. Weights must stay where they are."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout)
        self._hooks = Hooks(model)
        # A sequence has no more entries than there are pages, unless it lets some go.
        widths = [
            group.entries(model.context) if group.spec.passes else min(group.entries(model.context), layout.pages)
            for group in layout.groups
        ]
        captures = self.cards is not None and model.captures
        self._tables = SeatedTables(layout.groups, widths, self.device) if captures else None
        self._most_rows = model.captured_rows if captures else 0
        self._inputs: dict[Bucket, StepInputs] = {}
        self._known: dict[Bucket, Capture] = {}
        self._met: set[Bucket] = set()
        self._pool: Any = None  # the memory that all graphs share
        self._stream: torch.cuda.Stream | None = None  # one for all: cuBLAS keeps memory for each that it meets

    @torch.inference_mode()
    def step_logits(self, plan: StepPlan) -> Tensor:
        """As Runner.step_logits."""
        bucket = self._bucket_of(plan)
        if bucket is None:
            return self.forward(plan)
        if bucket.several and bucket not in self._met:
            self._met.add(bucket)
            return self.forward(plan)
        return self.capture_of(plan, bucket).again()[: plan.logit_rows]

    @torch.inference_mode()
    def capture(self, plan: StepPlan) -> Capture | None:
        """What `step_logits` makes again for such a plan, ready for this one; None where it is not captured."""
        bucket = self._bucket_of(plan)
        return None if bucket is None else self.capture_of(plan, bucket)

    def capture_of(self, plan: StepPlan, bucket: Bucket) -> Capture:
        """The one of a plan's bucket, ready for it."""
        assert self._tables is not None, "steps that have a bucket have tables on the card"
        self._met.add(bucket)
        if self.model.adapters is not None:
            self.model.adapters.choose((), (), torch.device("cpu"))
        self.builder.hear(plan)
        self._tables.forget(plan.forget)
        self.ready(plan)
        inputs = self._filled(bucket, plan.items if bucket.several else row_by_row(plan))
        if bucket not in self._known:
            self._known[bucket] = self.captured(
                lambda: self.model.head(self.model.hidden(inputs.ids_T, inputs.positions_T, inputs, inputs.rows_R))
            )
        return self._known[bucket]

    def _bucket_of(self, plan: StepPlan) -> Bucket | None:
        """None where such a step is not captured."""
        plain = not any(item.encoder or item.encoded or item.adapter or item.scored for item in plan.items)
        if self._tables is None or not plain or self._hooks.there:
            return None
        alone = all(map(verifies, plan.items))
        shape = captured_shape(plan.tokens, plan.logit_rows, len(plan.items), self._most_rows, verifies=alone)
        if shape is None:
            return None
        if alone:
            return Bucket(shape.rows, shape.rows, 0, shape.rows)
        # A single sequence has several rows, or its step would be a decode step; all that it needs is one place.
        ones = shape.logits if len(plan.items) > 1 else 0
        return Bucket(shape.rows, ones, shape.logits, shape.logits, _copied(plan, shape.rows))

    def _filled(self, bucket: Bucket, items: Sequence[PlanItem]) -> StepInputs:
        assert self._tables is not None
        assert self.cards is not None
        if bucket not in self._inputs:
            self._inputs[bucket] = StepInputs(bucket, self.cards, self._tables)
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
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = step()
        return Capture(graph, torch.as_tensor(_Place(result), device=self.device))


class _Place:
    """Where a tensor is. One made of this does not hold its memory, which graphs captured later then use too: the
    logits of 256 rows of a vocabulary of 152k are 156 MB, of each of dozens of graphs."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def _copied(plan: StepPlan, rows: int) -> int:
    """Rows of the copy that a plan's prompts read from, where they are long enough for one; twice as many as of the
    step have room for what came before them. 0 where they read pages."""
    from ridgeline.ops.kernels.triton import FEWEST_QUERIES

    counts = [len(item.tokens) for item in plan.items]
    if max(counts) < FEWEST_QUERIES:
        return 0
    ends = [item.start + count for item, count in zip(plan.items, counts, strict=True) if count > 1]
    return 2 * rows if rooms_of(np.array(ends)).sum() <= 2 * rows else 0


def row_by_row(plan: StepPlan) -> Sequence[PlanItem]:
    """The items of a plan with one for each row, where there are guesses among them."""
    if plan.tokens == len(plan.items):
        return plan.items
    return [
        structs.replace(item, start=start, tokens=(token,), logits=(0,))
        for item in plan.items
        for start, token in enumerate(item.tokens, item.start)
    ]
