"""The plan of one step: the scheduler's output and the input of the batch builder, the cost model and bug reports."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import structs

from ridgeline.core.ops.work import CAUSAL, LOGITS, AttentionPattern, StepSegment, Work, adapter_axis
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.kv.kv_cache_manager import PageCopy


class PromptScoring(NamedTuple):
    """The rows of a plan item whose logits give the log-probabilities of known prompt tokens, and those tokens."""

    first: int
    """The first row that scores a prompt token, counted from the start of the plan item."""
    tokens: Sequence[int]
    """The prompt tokens to score, one per row: each token follows the position of its row."""
    alternatives: int
    """The number of likeliest tokens to report next to each scored token."""

    @property
    def rows(self) -> range:
        """The rows that score prompt tokens, counted from the start of the plan item."""
        return range(self.first, self.first + len(self.tokens))


class PlanItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of one request in a step, which runs positions [start, start + len(tokens)).

    It is a msgspec struct because a step makes one for each request, and no other class is as fast to make.
    """

    request: int
    """The id of the request."""
    start: int
    """The first position of the request that this step runs."""
    tokens: Sequence[int]
    """The token ids to run. Negative ones are rows of the step's image encoder output, -1 the first.

    In a simulation they may be the names of a NamedPrompt, which are negative, too.
    """
    pages: tuple[tuple[int, ...], ...]
    """The page-table entries that are new to the runner, group by group."""
    first: bool
    """Whether `pages` is the whole page table of the request."""
    logits: tuple[int, ...]
    """The positions that need logits to sample from, counted from `start`."""
    encoder: tuple[int, ...] | EncoderFeatures = ()
    """The token ids or features that the request's encoder reads in this step.

    Later steps find what they need of its output in KV memory.
    """
    encoded: int = 0
    """The number of encoder positions that the request attends to, in every step."""
    scored: PromptScoring | None = None
    """The positions whose logits only give the log-probabilities of known tokens; nothing is sampled there."""
    adapter: int = 0
    """The number of the LoRA adapter, counted from 1; 0 for none."""

    @property
    def segment(self) -> StepSegment:
        """The lengths of the item that determine the cost of its attention."""
        inputs = self.encoder.inputs if isinstance(self.encoder, EncoderFeatures) else 1
        end = self.start + len(self.tokens)
        return StepSegment(len(self.tokens), end, self.encoded, runs_encoder=bool(self.encoder), encoder_inputs=inputs)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step: forget tables, blank pages and copy pages, in this order, then run the items."""

    step: int
    """The number of the step."""
    items: tuple[PlanItem, ...]
    """The parts of the requests that run in the step."""
    copies: tuple[PageCopy, ...] = ()
    """The page copies to make before the items run."""
    blank: tuple[int, ...] = ()
    """The pages to fill with zeros before the items run."""
    forget: tuple[int, ...] = ()
    """The requests whose page tables the runner drops, by id."""

    @property
    def tokens(self) -> int:
        """The number of positions that the step runs."""
        return sum(len(item.tokens) for item in self.items)

    @property
    def logit_rows(self) -> int:
        """The number of rows from which tokens are sampled; rows that only score prompt tokens do not count."""
        return sum([len(item.logits) for item in self.items])

    def work(self, reaches: Iterable[AttentionPattern] = (CAUSAL,)) -> Work:
        """Return the work of this step for a model whose layers have these attention patterns."""
        ends = [item.start + 1 for item in self.items if len(item.tokens) == 1 and not item.encoded]
        work = Work.decode(ends, reaches)  # in one call, because a simulator prices thousands of steps
        if len(ends) < len(self.items):
            others = [item.segment for item in self.items if len(item.tokens) > 1 or item.encoded]
            work = Work.of(others, reaches) + work if ends else Work.of(others, reaches)
        rows = {**work.rows, LOGITS: self.logit_rows}
        for item in [item for item in self.items if item.adapter or item.scored is not None]:
            rows[LOGITS] += 0 if item.scored is None else len(item.scored.tokens)
            if item.adapter:
                axis = adapter_axis(item.adapter)
                rows[axis] = rows.get(axis, 0) + len(item.tokens)
        return Work(rows, work.sequences, work.attention)

    def rerun(self) -> "StepPlan":
        """Return a plan that repeats this step after it has run: without new page-table entries and page copies."""
        items = tuple(structs.replace(item, pages=((),) * len(item.pages), first=False) for item in self.items)
        return StepPlan(self.step, items)

    def to_json(self) -> str:
        """Return the whole plan as one line of JSON, for golden tests and bug reports; default values are left out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        known = {each.name: each.default for each in structs.fields(PlanItem)}
        fields["items"] = [
            {name: value for name, value in structs.asdict(item).items() if value != known[name]}
            | {"tokens": list(item.tokens)}
            | ({"scored": item.scored._asdict()} if item.scored else {})
            | ({"encoder": item.encoder.summary()} if isinstance(item.encoder, EncoderFeatures) else {})
            for item in self.items
        ]
        fields["copies"] = [dataclasses.asdict(copy) for copy in self.copies]
        return json.dumps(fields, separators=(",", ":"))
