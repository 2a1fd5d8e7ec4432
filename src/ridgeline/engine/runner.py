"""The runner: one StepPlan, run on the device where the model is. Only what every model needs is here.

A step's two halves are two calls: `forward` gives logits, `sample` the tokens. Nothing but those crosses to the host.
Shapes: R rows that a plan wants, D hidden, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.engine.batch import BatchBuilder
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.sampling import Outcome, SampleRow, sample
from ridgeline.models.model import Model
from ridgeline.ops.batch import Batch
from ridgeline.ops.kv import KVLayout
from ridgeline.ops.paged import PagedKV


class Runner:
    """A model with its KV memory, which lies where the model's weights do."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        assert model.runs, "a model that is stored so is priced only"
        device = next(model.parameters()).device
        self.model = model
        self.store = KVStore(layout, device)
        self.builder = BatchBuilder(layout.groups, device)

    def prepare(self, plan: StepPlan) -> Batch:
        """The plan as a batch, and KV memory ready for it. Plans must come in the order in which they were made."""
        batch = self.builder.build(plan)
        self.store.blank(plan.blank)
        self.store.copy(plan.copies)
        return batch

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> Tensor:
        """Last hidden states of the rows that are wanted [R, D]. Writes the batch's keys and values."""
        kv = PagedKV(self.store.layers, self.store.layout.groups, batch)
        encoder, tokens = batch.encoder, batch.tokens
        encoded_ED = self.model.encode(encoder.ids_N, encoder.positions_N, kv) if len(encoder) else None
        return self.model.hidden(tokens.ids_N, tokens.positions_N, kv, batch.wanted_R, encoded_ED)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Logits of the rows that are wanted: fp32 [R, V]."""
        return self.model.head(self.hidden(batch))

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the rows that the plan wants: fp32 [R, V]."""
        return self.run(self.prepare(plan))

    def sample(self, logits_RV: Tensor, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """A token for each row of logits."""
        return sample(logits_RV, rows) if rows else []

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Run a plan and sample a token for each of its logit rows, in order."""
        return self.sample(self.forward(plan), rows)
