"""Recording and replay of decode steps of few rows on the CPU: one recording per number of rows (call_recording.py).

A sequence has one row, and one more for each draft token that is verified. The kernels read from memory which rows
belong to which sequence, so all steps with the same number of rows share one recording.

Shapes: T rows, each with logits, V vocabulary.
"""

from collections.abc import Hashable, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.backends.cpu.call_recording import MAX_RECORDED_ROWS, CallRecording, RecordingArena, record
from ridgeline.backends.cpu.cpu_attention import CpuStepSequences
from ridgeline.backends.cpu.cpu_pages import CpuKV, CpuPages
from ridgeline.backends.cpu.recorded_steps import records
from ridgeline.backends.hooks import Hooks
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.step_graphs import PageTables, PlannedStep, StepGraph, StepGraphs, is_verify


class _Inputs:
    """The inputs of recorded decode steps with T rows, at fixed addresses; `kv` is their KVContext."""

    def __init__(self, count: int, pages: CpuPages) -> None:
        self.ids_T, self.positions_T = torch.zeros(2, count, dtype=torch.int64)
        self.rows_T, self.each = torch.arange(count), range(count + 1)
        self.slots = [torch.zeros(count, dtype=torch.int64) for _ in pages.groups]
        nothing = [0] * count
        self.sequences = [CpuStepSequences(self.each, nothing, nothing, [[]] * count) for _ in pages.groups]
        self.kv = CpuKV(pages, self.slots, dict(enumerate(self.sequences)))

    def fill(self, step: PlannedStep, tables: PageTables) -> None:
        """Write a step's token ids, positions, KV slots and sequences to the memory that its recording reads."""
        items = step.items
        starts: Sequence[int] = self.each
        if len(self.ids_T) == len(items):
            ids, positions = [item.tokens[0] for item in items], [item.start for item in items]
            lengths = [start + 1 for start in positions]
        else:
            ids = [token for item in items for token in item.tokens]
            lengths = [item.start + len(item.tokens) for item in items]
            positions = [p for item, end in zip(items, lengths, strict=True) for p in range(item.start, end)]
            starts = [*accumulate((len(item.tokens) for item in items), initial=0)]
        self.ids_T.numpy()[:] = ids
        self.positions_T.numpy()[:] = positions
        for index, (slots_T, sequences) in enumerate(zip(self.slots, self.sequences, strict=True)):
            slots, pages, first = tables.places(items, index)
            slots_T.numpy()[:] = slots
            sequences.change(starts, lengths, first, pages)


class CpuGraphs(StepGraphs):
    """The recorded decode steps of a model, including those that verify draft tokens.

    Steps of at most MAX_RECORDED_ROWS rows are recorded if the model computes only with our kernels and none of its
    modules has a hook. The weights must not move. A bucket is a number of rows.
    """

    by_call = True

    def __init__(self, model: Model, pages: CpuPages) -> None:
        self._model, self._pages = model, pages
        self._records = records(model)
        self._hooks = Hooks(model)
        self._memory = RecordingArena()
        self._inputs: dict[Hashable, _Inputs] = {}
        self._recordings: dict[Hashable, CallRecording] = {}

    @override
    def bucket(self, step: PlannedStep) -> int | None:
        rows = step.tokens
        few = self._records and rows <= MAX_RECORDED_ROWS
        return rows if few and all(map(is_verify, step.items)) and not self._hooks.there else None

    @override
    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor:
        inputs, known = self._filled(step, bucket, tables), self._recordings.get(bucket)
        return self._record(inputs, bucket) if known is None else known.replay()

    @override
    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> StepGraph | None:
        inputs = self._filled(step, bucket, tables)
        if bucket not in self._recordings:
            self._record(inputs, bucket)
        return self._recordings.get(bucket)

    def _filled(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> _Inputs:
        """Return the inputs of recorded steps with as many rows as this step, filled with its ids and positions."""
        self._pages.library.share_threads()
        inputs = self._inputs.get(bucket)
        if inputs is None:
            inputs = self._inputs[bucket] = _Inputs(step.tokens, self._pages)
        inputs.fill(step, tables)
        return inputs

    def _record(self, inputs: _Inputs, bucket: Hashable) -> Tensor:
        """Run a step with these inputs, store its recording if it can be replayed, and return its logits."""

        def run() -> Tensor:
            return self._model.head(self._model.hidden(inputs.ids_T, inputs.positions_T, inputs.kv, inputs.rows_T))

        logits_TV, recording = record(self._pages.library, self._memory, run)
        if recording is None:
            self._records = False
        else:
            self._recordings[bucket] = recording
        return logits_TV
