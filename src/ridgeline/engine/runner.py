"""The runner, which executes a StepPlan on the model's device. It contains only what every model needs.

A step has two halves, with a call each: `forward` computes logits, and `sampler` tokens. Only these cross to the host:
the tokens, log-probabilities if requested, the experts that a mixture picked, and the hidden states of a model without
a head.

Shapes: R rows that a plan wants, S of them scored, D hidden, V vocabulary.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from ridgeline.backends import prepared
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.step_graphs import StepGraph, StepGraphs
from ridgeline.engine.batch_builder import BatchBuilder
from ridgeline.engine.kv.store import KVStore
from ridgeline.engine.ranks.other_ranks import OtherRanks
from ridgeline.engine.sampling import (
    HiddenStates,
    Outcome,
    PromptLogprob,
    RowFailure,
    Sampled,
    SampleRow,
    Scored,
    sampler_of,
)
from ridgeline.engine.step_plan import PlanItem, PromptScoring, StepPlan

HEAD_ROWS = 256
"""The number of prompt rows that the head scores at a time.

The logits of a whole prompt, 600 kB per token with a vocabulary of 152k, never exist together.
"""

Scores = Sequence[PromptLogprob | RowFailure]


class Runner:
    """A model with its KV memory, on the device of the model's weights, and a sampler."""

    def __init__(
        self,
        model: Model,
        layout: KVLayout,
        *,
        backend: Backend | None = None,
        others: OtherRanks | None = None,
        eager: bool = False,
    ) -> None:
        """Allocate the KV memory of a model.

        Args:
            model: The model, with weights.
            layout: The layout of the KV pages.
            backend: The backend to execute the model; by default the one that prepared it, or that prepares it now.
            others: The other ranks of the model.
            eager: Whether to execute every step op by op, without replaying captured steps.
        """
        assert model.runs, "a model with this storage format has a price but cannot run"
        if backend is None:
            backend = prepared(model)
        elif model.backend is REFERENCE:
            backend.prepare(model)
        self.model, self.backend, self.others = model, backend, others or OtherRanks()
        self.device = next(model.parameters()).device
        self.store = KVStore(layout, self.device)
        self.builder = BatchBuilder(layout.groups, self.device)
        self.pages = backend.pages(self.store.layers, layout.groups, self.store.states)
        # An all-reduce is not a kernel launch, so a captured step cannot contain it.
        eager = eager or self.others.several
        self.graphs = StepGraphs() if eager else backend.step_graphs(model, self.pages)
        self.sampler = sampler_of(backend, self.device)
        self._saves = self._rewound = False

    def prepare(self, plan: StepPlan) -> ForwardBatch:
        """Return a plan as a batch, and make KV memory ready for it. Plans must come in the order of their making."""
        with self.others.prepare(plan):
            self._apply_plan(plan)
            return self.builder.build(plan.items)

    def _apply_plan(self, plan: StepPlan) -> None:
        """Apply a plan's page tables, and blank and copy its KV pages; save states if `save_states` was called."""
        self.builder.apply_plan(plan)
        self.store.blank(plan.blank)
        self.store.copy(plan.copies)
        if self._saves and not self._rewound:
            pages = torch.tensor(self.builder.states(plan.items), device=self.store.buffer.device)
            self._saved = pages, self.store.buffer[pages]
        self._rewound = False

    def save_states(self) -> None:
        """Save the states of recurrent layers before each step from now on, so that `rewind` can restore them."""
        with self.others.save_states():
            self._saves = bool(self.store.states)

    def rewind(self) -> None:
        """Restore the states from before the last step, which is the next to run again."""
        with self.others.rewind():
            if self._saves:
                pages, numbers = self._saved
                self.store.buffer[pages] = numbers
                self._rewound = True

    @torch.inference_mode()
    def hidden(self, batch: ForwardBatch) -> Tensor:
        """Run a batch, write its keys and values, and return the last hidden states of its wanted rows.

        Returns:
            Hidden states [R, D], scored rows last.
        """
        with self.others.hidden():
            if self.model.adapters is not None:
                self.model.adapters.set_step(batch.adapters, batch.tokens.counts, batch.wanted_R.device)
            kv = self.pages.context(batch)
            encoder, tokens = batch.encoder, batch.tokens
            encoded_ED = self.model.encode(encoder.ids_N, encoder.positions_N, kv) if len(encoder) else None
            return self.model.hidden(tokens.ids_N, tokens.positions_N, kv, batch.wanted_R, encoded_ED)

    def head(self, x_RD: Tensor, first: int = 0) -> Tensor:
        """Compute logits of some of the rows that `hidden` returned last.

        Args:
            x_RD: The hidden states of these rows.
            first: The index of the first of them among all rows of `hidden`.

        Returns:
            Logits, fp32 [R, V].
        """
        with self.others.head(first, len(x_RD)):
            return self.model.head(x_RD)

    @torch.inference_mode()
    def run(self, batch: ForwardBatch) -> Tensor:
        """Run a batch and return the logits of its wanted rows: fp32 [R, V]."""
        return self.head(self.hidden(batch))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Tensor:
        """Run a plan and return the logits of the rows to sample from: fp32 [R - S, V]."""
        return self.head(self.hidden(self.prepare(plan))[: plan.logit_rows])

    @torch.inference_mode()
    def step_logits(self, plan: StepPlan) -> Tensor:
        """Return logits as `forward` does, by replaying a captured step if possible.

        Only this step's sampler may read them: the next step may overwrite them.
        """
        bucket = self._bucket(plan)
        if bucket is None:
            return self.forward(plan)
        logits_RV = self.graphs.logits(plan, bucket, self.builder)
        return self.run(self.builder.build(plan.items)) if logits_RV is None else logits_RV

    @torch.inference_mode()
    def graph(self, plan: StepPlan) -> StepGraph | None:
        """Return the captured step that `step_logits` replays for this plan, ready to run; None if it replays none."""
        bucket = self._bucket(plan)
        return None if bucket is None else self.graphs.graph(plan, bucket, self.builder)

    def _bucket(self, plan: StepPlan) -> Hashable | None:
        """Return the bucket of captured steps that a plan's step fits, and make everything ready for the replay.

        Returns None, with nothing done, if the step cannot be replayed.
        """
        bucket = self.graphs.bucket(plan)
        if bucket is not None:
            if self.model.adapters is not None:
                self.model.adapters.set_step((), (), torch.device("cpu"))
            self._apply_plan(plan)
        return bucket

    @torch.inference_mode()
    def states(self, plan: StepPlan) -> Sequence[Outcome]:
        """Run a plan and return the last hidden states of each item's wanted rows."""
        counts = [len(item.logits) for item in plan.items if item.logits]
        x_RD = self.hidden(self.prepare(plan)).float().cpu()
        return [HiddenStates(part.numpy()) for part in torch.split(x_RD, counts)]

    @torch.inference_mode()
    def score(self, x_SD: Tensor, scorings: Sequence[PromptScoring], first: int) -> Iterator[Scores]:
        """Return the log-probabilities of known prompt tokens, one list for each plan item that scores such tokens.

        Args:
            x_SD: The last hidden states of the rows to score.
            scorings: The tokens to score, in the order of the rows.
            first: The index of the first of these rows among all rows of `hidden`.
        """
        tokens = [token for scoring in scorings for token in scoring.tokens]
        alternatives = [scoring.alternatives for scoring in scorings for _ in scoring.tokens]
        scores: list[PromptLogprob | RowFailure] = []
        for start in range(0, len(tokens), HEAD_ROWS):
            block = slice(start, start + HEAD_ROWS)
            scores += self.sampler.score(self.head(x_SD[block], first + start), tokens[block], alternatives[block])
        of_all = iter(scores)
        return (list(islice(of_all, len(scoring.tokens))) for scoring in scorings)

    @torch.inference_mode()
    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Run a plan: score its prompt tokens, and sample a token for each of its logit rows.

        Args:
            plan: The plan to run.
            rows: The sampling inputs, one per logit row.

        Returns:
            The outcome of each item with logit or scored rows, in order: hidden states if the model has no head.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # Triton launches kernels on the current device of this thread
        if not self.model.has_head:
            return self.states(plan)
        scorings = [item.scored for item in plan.items if item.scored]
        scores: Iterator[Scores] = iter(())
        if scorings:
            x_RD = self.hidden(self.prepare(plan))
            scores = self.score(x_RD[plan.logit_rows :], scorings, plan.logit_rows)
            logits_RV = self.head(x_RD[: plan.logit_rows])
        else:
            logits_RV = self.step_logits(plan)
        sampled = iter(self.sampler.sample(logits_RV, rows))
        outcomes: list[Outcome] = []
        for item in plan.items:
            outcome = verified(item, list(islice(sampled, len(item.logits)))) if item.logits else None
            if item.scored:
                outcome = _with_scores(next(scores), outcome)
            if outcome is not None:
                outcomes.append(outcome)
        return outcomes


def verified(item: PlanItem, sampled: Sequence[Sampled | RowFailure]) -> Outcome:
    """Return a plan item's sampled tokens, up to the first that differs from the token guessed for its position.

    Rows after that have seen a wrong guess. A row that fails after others is not reported: the request runs it again,
    alone.
    """
    if len(sampled) == 1:
        return sampled[0]
    tokens: list[Sampled] = []
    for offset, one in zip(item.logits, sampled, strict=True):
        if isinstance(one, RowFailure):
            return tokens or one
        tokens.append(one)
        if tuple(item.tokens[offset + 1 : offset + 2]) != (one.token,):
            break
    return tokens


def _with_scores(scores: Scores, sampled: Outcome | None) -> Outcome:
    """Combine the prompt scores and the sampled tokens of a plan item; a failure of any row is its failure."""
    assert not isinstance(sampled, Scored | HiddenStates)
    good = tuple(score for score in scores if isinstance(score, PromptLogprob))
    failures = [score for score in scores if isinstance(score, RowFailure)]
    return failures[0] if failures else Scored(good, sampled)
