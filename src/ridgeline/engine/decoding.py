"""Decode steps of few sequences: recorded once for each number of them, then made again (ops/kernels/recording.py).

Shapes: B sequences, one position of each, V vocabulary.
"""

from typing import Final

import torch
from torch import Tensor

from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.attention import Attention
from ridgeline.ops.kernels.attention import Sequences
from ridgeline.ops.kernels.recording import Memory, Recording, record
from ridgeline.ops.kv import KVLayout, KVSpec
from ridgeline.ops.paged_native import NativePages, native_takes

MOST: Final = 16
"""Sequences of a step that is recorded. In a larger one what Python takes is lost in what the kernels take, and a
recording keeps the memory of every op."""


class _Inputs:
    """What decode steps of B sequences read, where it stays from step to step; and their KVContext."""

    def __init__(self, count: int, pages: NativePages) -> None:
        self.pages = pages
        self.ids_B, self.positions_B = torch.zeros(2, count, dtype=torch.int64)
        self.rows_B, self.starts = torch.arange(count), range(count + 1)
        self.slots = [torch.zeros(count, dtype=torch.int64) for _ in pages.groups]
        nothing = [0] * count
        self.sequences = [Sequences(self.starts, nothing, nothing, [[]] * count) for _ in pages.groups]

    def attend(self, op: Attention, q_BHD: Tensor, k_BKD: Tensor | None, v_BKW: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        group = self.pages.layers[op.layer].group
        return self.pages.kernel(op).attend(self.sequences[group], q_BHD, k_BKD, v_BKW, self.slots[group])


class DecodingRunner(Runner):
    """A Runner whose decode steps are recorded, where the model computes with our kernels alone and nobody watches its
    parts. `forward` is not: it is for whoever keeps logits. Weights must stay where they are."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout)
        ops = [op for _, op in model.ops() if isinstance(op, Attention)]
        kept = all(isinstance(group.spec, KVSpec) and group.spec.grows for group in layout.groups)
        self._records = self.native is not None and kept and all(map(native_takes, ops))
        self._parts = tuple(model.modules())
        self._memory = Memory()
        self._inputs: dict[int, _Inputs] = {}
        self._recordings: dict[int, Recording] = {}

    @torch.inference_mode()
    def step_logits(self, plan: StepPlan) -> Tensor:
        """As Runner.step_logits."""
        count = len(plan.items)
        if not self._records or count > MOST or not all(map(_decodes, plan.items)) or self._watched:
            return self.forward(plan)
        assert self.native is not None, "what records has kernels"
        self.share_threads()
        inputs = self._fill(plan)
        if count in self._recordings:
            return self._recordings[count].again()

        def step() -> Tensor:
            return self.model.head(self.model.hidden(inputs.ids_B, inputs.positions_B, inputs, inputs.rows_B))

        logits_BV, recording = record(self.native.library, self._memory, step)
        if recording is None:
            self._records = False
        else:
            self._recordings[count] = recording
        return logits_BV

    @property
    def _watched(self) -> bool:
        """Whether somebody has put hooks on the model's parts, who would see nothing of a recording."""
        return any(module._forward_pre_hooks or module._forward_hooks for module in self._parts)

    def _fill(self, plan: StepPlan) -> _Inputs:
        """Put what the step reads where it reads it, and prepare KV memory as `prepare` does."""
        assert self.native is not None
        self.builder.hear(plan)
        self.ready(plan)
        items = plan.items
        inputs = self._inputs.get(len(items))
        if inputs is None:
            inputs = self._inputs[len(items)] = _Inputs(len(items), self.native)
        inputs.ids_B.numpy()[:] = [item.tokens[0] for item in items]
        starts = [item.start for item in items]
        inputs.positions_B.numpy()[:] = starts
        lengths = [start + 1 for start in starts]
        for index, (slots_B, sequences) in enumerate(zip(inputs.slots, inputs.sequences, strict=True)):
            slots, pages, first = self.builder.places(items, index)
            slots_B.numpy()[:] = slots
            sequences.change(inputs.starts, lengths, first, pages)
        return inputs


def _decodes(item: PlanItem) -> bool:
    """Whether an item runs one position, and a token is sampled of it."""
    return len(item.tokens) == 1 and item.logits == (0,) and not item.encoder and not item.encoded
