"""Decode steps of few rows: recorded once for each number of them, then made again (ops/kernels/recording.py). A
sequence has one row, or one more for each guess that is verified: our kernels are told which rows are whose by numbers
in memory, so that steps of as many rows are one recording.

Shapes: T rows, a token sampled of each, V vocabulary.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.modules import module as every_module

from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.attention import Attention
from ridgeline.ops.kernels.attention import Sequences
from ridgeline.ops.kernels.recording import MAX_RECORDED_ROWS, Memory, Recording, record
from ridgeline.ops.kv import KVLayout
from ridgeline.ops.latent import LatentAttention
from ridgeline.ops.paged_native import NativePages
from ridgeline.ops.recurrence import Recurrence


class _Inputs:
    """What decode steps of T rows read, where it stays from step to step; and their KVContext."""

    def __init__(self, count: int, pages: NativePages) -> None:
        self.pages = pages
        self.ids_T, self.positions_T = torch.zeros(2, count, dtype=torch.int64)
        self.rows_T, self.each = torch.arange(count), range(count + 1)
        self.slots = [torch.zeros(count, dtype=torch.int64) for _ in pages.groups]
        nothing = [0] * count
        self.sequences = [Sequences(self.each, nothing, nothing, [[]] * count) for _ in pages.groups]

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor | None, v_TKW: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        group = self.pages.layers[op.layer].group
        return self.pages.kernel(op).attend(self.sequences[group], q_THD, k_TKD, v_TKW, self.slots[group])

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Torch computes part of it, which is not recorded."""
        raise AssertionError("steps over latents are not recorded")

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Torch computes all of it."""
        raise AssertionError("steps over states are not recorded")


class Hooks:
    """The hooks on a model's parts or on all modules, which would see nothing of a step that is made again."""

    def __init__(self, model: Model) -> None:
        # Where torch keeps hooks: the same dictionaries as they come and go, so that a step only looks for a full one.
        self._kept = [every_module._global_forward_pre_hooks, every_module._global_forward_hooks]
        for part in model.modules():
            self._kept += [part._forward_pre_hooks, part._forward_hooks]

    @property
    def there(self) -> bool:
        """Whether there are any now."""
        return any(self._kept)


class DecodingRunner(Runner):
    """A Runner whose decode steps are recorded, guesses in them too, where the model computes with our kernels alone
    and nobody watches its parts. `forward` is not: it is for whoever keeps logits. Weights must stay where they are."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout)
        self._records = self.native is not None and model.runs_natively
        self._hooks = Hooks(model)
        self._memory = Memory()
        self._inputs: dict[int, _Inputs] = {}
        self._recordings: dict[int, Recording] = {}

    @torch.inference_mode()
    def step_logits(self, plan: StepPlan) -> Tensor:
        """As Runner.step_logits."""
        if not self._recordable(plan):
            return self.forward(plan)
        inputs = self._fill(plan)
        known = self._recordings.get(plan.tokens)
        return self._record(inputs) if known is None else known.again()

    @torch.inference_mode()
    def recording(self, plan: StepPlan) -> Recording | None:
        """What `step_logits` makes again for such a plan, ready for this one; None where it is not recorded."""
        if not self._recordable(plan):
            return None
        inputs, count = self._fill(plan), plan.tokens
        if count not in self._recordings:
            self._record(inputs)
        return self._recordings.get(count)

    def _recordable(self, plan: StepPlan) -> bool:
        few = plan.tokens <= MAX_RECORDED_ROWS
        return self._records and few and all(map(verifies, plan.items)) and not self._hooks.there

    def _record(self, inputs: _Inputs) -> Tensor:
        """Run the step of these inputs; its logits."""
        assert self.native is not None, "what records has kernels"

        def step() -> Tensor:
            return self.model.head(self.model.hidden(inputs.ids_T, inputs.positions_T, inputs, inputs.rows_T))

        logits_TV, recording = record(self.native.library, self._memory, step)
        if recording is None:
            self._records = False
        else:
            self._recordings[len(inputs.ids_T)] = recording
        return logits_TV

    def _fill(self, plan: StepPlan) -> _Inputs:
        """Put what the step reads where it reads it, and prepare KV memory as `prepare` does."""
        assert self.native is not None
        self.share_threads()
        if self.model.adapters is not None:
            self.model.adapters.choose((), (), torch.device("cpu"))
        self.builder.hear(plan)
        self.ready(plan)
        items, count = plan.items, plan.tokens
        inputs = self._inputs.get(count)
        if inputs is None:
            inputs = self._inputs[count] = _Inputs(count, self.native)
        starts: Sequence[int] = inputs.each
        if count == len(items):
            ids, positions = [item.tokens[0] for item in items], [item.start for item in items]
            lengths = [start + 1 for start in positions]
        else:
            ids = [token for item in items for token in item.tokens]
            lengths = [item.start + len(item.tokens) for item in items]
            positions = [p for item, end in zip(items, lengths, strict=True) for p in range(item.start, end)]
            starts = [*accumulate((len(item.tokens) for item in items), initial=0)]
        inputs.ids_T.numpy()[:] = ids
        inputs.positions_T.numpy()[:] = positions
        for index, (slots_T, sequences) in enumerate(zip(inputs.slots, inputs.sequences, strict=True)):
            slots, pages, first = self.builder.places(items, index)
            slots_T.numpy()[:] = slots
            sequences.change(starts, lengths, first, pages)
        return inputs


def verifies(item: PlanItem) -> bool:
    """Whether an item runs positions of the model as it is of which each is sampled: one, and guesses at those after
    it. What an adapter adds is torch's work in part, and whose rows are whose changes from step to step."""
    return len(item.tokens) == len(item.logits) and not (item.encoder or item.encoded or item.adapter)
