"""The runner: one StepPlan, run on one device. Only what every model needs is here."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.engine.batch import BatchBuilder
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow, sample
from ridgeline.models.model import Model
from ridgeline.ops.kv import KVLayout
from ridgeline.ops.paged import PagedKV


class Runner:
    """A model with its KV memory."""

    def __init__(self, model: Model, layout: KVLayout, most_tokens: int) -> None:
        """`most_tokens`: positions that a plan may hold."""
        assert model.runs, "a model that is stored so is priced only"
        self.model = model
        self.store = KVStore(layout)
        self.builder = BatchBuilder(layout.groups, most_tokens)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the rows that the plan wants: fp32 [R, vocabulary]."""
        batch = self.builder.build(plan)
        self.store.blank(plan.blank)
        self.store.copy(plan.copies)
        kv = PagedKV(self.store.layers, self.store.layout.group_of_layer, batch.groups)
        logits: Tensor = self.model(batch.ids_T, batch.positions_T, kv, batch.rows_R)
        return logits

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        """Run a plan and sample a token for each of its logit rows, in order."""
        logits_RV = self.forward(plan)
        return sample(logits_RV, rows) if rows else []
