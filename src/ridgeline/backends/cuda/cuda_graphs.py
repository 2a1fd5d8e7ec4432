"""CUDA graphs of steps: the backend captures one graph per bucket of sizes and replays it.

A step in which each sequence has one row runs as the next larger batch size. A draft token that is verified is one more
row of its sequence, at the next position: the kernels write the keys and values of all rows before any row attends to
them.

A step with prompts runs with the next larger number of rows, as long as Python needs more time to launch its ops than a
large GPU to run them (`most_captured_rows`). It is captured when its bucket occurs a second time, so that a prompt
length that occurs only once does not wait for a capture.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.backends.cuda.buckets import captured_shape, captures, most_captured_rows
from ridgeline.backends.cuda.cuda_pages import CudaPages, copied_rows
from ridgeline.backends.cuda.gpu_page_tables import GpuPageTables
from ridgeline.backends.cuda.graph_inputs import Bucket, GraphInputs
from ridgeline.backends.hooks import Hooks
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.step_graphs import PageTables, PlannedStep, RowItem, StepGraph, StepGraphs, is_verify


class CapturedGraph(StepGraph):
    """A CUDA graph that replays a step with the current contents of its input memory."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph, self.result = graph, result

    @override
    def replay(self) -> Tensor:
        """Replay a CUDA graph and return its result, without waiting on the host."""
        self._graph.replay()
        return self.result


class CudaGraphs(StepGraphs):
    """The steps of a model that are captured as CUDA graphs and replayed.

    Steps are captured if they need nothing from the host (`captures`), their size fits a bucket, they have no adapter,
    encoder or prompt log-probabilities, and no module of the model has a hook. The weights must not move.
    """

    def __init__(self, model: Model, pages: CudaPages) -> None:
        self._model, self._pages, self._hooks = model, pages, Hooks(model)
        captured = captures(model)
        self._tables = GpuPageTables(pages.groups, pages.widths(model.context), pages.device) if captured else None
        self._most_rows = most_captured_rows(model) if captured else 0
        self._inputs: dict[Bucket, GraphInputs] = {}
        self._known: dict[Bucket, CapturedGraph] = {}
        self._met: set[Bucket] = set()
        self._pool: Any = None  # the memory that all graphs share
        self._stream: torch.cuda.Stream | None = None  # one for all graphs: cuBLAS reserves memory per stream

    @override
    def bucket(self, step: PlannedStep) -> Bucket | None:
        plain = not any(item.encoder or item.encoded or item.adapter or item.scored for item in step.items)
        if self._tables is None or not plain or self._hooks.there:
            return None
        alone = all(map(is_verify, step.items))
        shape = captured_shape(step.tokens, step.logit_rows, len(step.items), self._most_rows, verifies=alone)
        if shape is None:
            return None
        if alone:
            return Bucket(shape.rows, shape.rows, 0, shape.rows)
        # A single sequence has several rows, or its step would be a decode step, so no sequence has one row.
        ones = shape.logits if len(step.items) > 1 else 0
        return Bucket(shape.rows, ones, shape.logits, shape.logits, _copied(step, shape.rows))

    @override
    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor | None:
        assert isinstance(bucket, Bucket)
        if bucket.several and bucket not in self._met:
            self._met.add(bucket)
            return None
        return self.graph(step, bucket, tables).replay()[: step.logit_rows]

    @override
    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> CapturedGraph:
        assert isinstance(bucket, Bucket)
        assert self._tables is not None, "a step with a bucket must have page tables on the GPU"
        self._met.add(bucket)
        self._tables.forget(step.forget)
        inputs = self._filled(bucket, step.items if bucket.several else row_by_row(step), tables)
        if bucket not in self._known:
            self._known[bucket] = self.captured(
                lambda: self._model.head(self._model.hidden(inputs.ids_T, inputs.positions_T, inputs.kv, inputs.rows_R))
            )
        return self._known[bucket]

    def _filled(self, bucket: Bucket, items: Sequence[RowItem], tables: PageTables) -> GraphInputs:
        """Return the input tensors of the CUDA graph for a step, filled with the step's inputs.

        All graphs are discarded if the page tables have moved.
        """
        assert self._tables is not None
        if bucket not in self._inputs:
            self._inputs[bucket] = GraphInputs(bucket, self._pages, self._tables)
        inputs, pages = self._inputs[bucket], self._tables.pages
        inputs.fill(items, tables)
        if self._tables.pages is not pages:  # the tables have grown and moved: graphs have the old addresses
            self._inputs.clear()
            self._known.clear()
            self._pool = None  # PyTorch does not capture into a pool whose last graph is gone
            return self._filled(bucket, items, tables)
        return inputs

    def captured(self, step: Callable[[], Tensor]) -> CapturedGraph:
        """Run a step once, so that compilation and allocation are not captured, and then capture it."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._pages.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._pages.device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(self._pages.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = step()
        return CapturedGraph(graph, torch.as_tensor(_CudaArray(result), device=self._pages.device))


class _CudaArray:
    """The address of a tensor in CUDA's array interface.

    A tensor made from it does not own the memory, so graphs that are captured later use the same memory: the logits of
    256 rows with a vocabulary of 152k are 156 MB, in each of dozens of graphs.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def _copied(step: PlannedStep, rows: int) -> int:
    """Return the number of rows of the copied keys and values that a step's prompts read, or 0 if they read pages.

    They read pages if all prompt chunks are short, or if the keys and values, including earlier positions, do not fit
    into twice the rows of the step.
    """
    from ridgeline.backends.cuda.triton import FEWEST_QUERIES

    counts = [len(item.tokens) for item in step.items]
    if max(counts) < FEWEST_QUERIES:
        return 0
    ends = [item.start + count for item, count in zip(step.items, counts, strict=True) if count > 1]
    return 2 * rows if copied_rows(np.array(ends)).sum() <= 2 * rows else 0


class _GraphRow(NamedTuple):
    """One token row of a step in the form of a step item (RowItem), as if it were a request of its own."""

    request: int
    start: int
    tokens: Sequence[int]
    logits: Sequence[int] = (0,)


def row_by_row(step: PlannedStep) -> Sequence[RowItem]:
    """Return a step's items (one per request), or if it has draft tokens, one item per token row."""
    if step.tokens == len(step.items):
        return step.items
    return [
        _GraphRow(item.request, start, (token,))
        for item in step.items
        for start, token in enumerate(item.tokens, item.start)
    ]
