"""StepPlan: what one step runs. The scheduler's output, the batch's input, the price's input, the bug report."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import structs

from ridgeline.core.ops.work import CAUSAL, LOGITS, AttentionPattern, RowAxis, StepSegment, Work, adapter_axis
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.kv.kv_cache_manager import PageCopy


class PromptScoring(NamedTuple):
    """Rows of an item whose logits say how likely the next token of the prompt was, with those tokens.

    first: the first of the rows, counted from the item's start; there is one for each of `tokens`. alternatives: how
    many of the likeliest tokens are wanted beside each.
    """

    first: int
    tokens: Sequence[int]
    alternatives: int

    @property
    def rows(self) -> range:
        """The rows, counted from the item's start."""
        return range(self.first, self.first + len(self.tokens))


class PlanItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request's part of a step. A struct, because a step makes one for each request: no class is made faster.

    It runs positions [start, start + len(tokens)). `pages` are the page-table entries that are new to the runner, group
    by group; `first` says that they are the whole table. `tokens` below 0 are rows of what the encoder gives in this
    step for the request's images, -1 the first. `logits`: which of the positions need logits, counted from start.
    `encoder`: ids or features that the encoder reads in this step; later steps find what they need of its output in KV
    memory. `encoded`: how many positions of the encoder the request looks at, in every step. `scored`: positions whose
    logits are wanted for what they say of tokens that are known; nothing is sampled there. `adapter`: the
    number of the one that is asked, counted from 1; 0 for none.
    """

    request: int
    start: int
    tokens: Sequence[int]
    pages: tuple[tuple[int, ...], ...]
    first: bool
    logits: tuple[int, ...]
    encoder: tuple[int, ...] | EncoderFeatures = ()
    encoded: int = 0
    scored: PromptScoring | None = None
    adapter: int = 0

    @property
    def segment(self) -> StepSegment:
        """What attention sees of it."""
        inputs = self.encoder.inputs if isinstance(self.encoder, EncoderFeatures) else 1
        end = self.start + len(self.tokens)
        return StepSegment(len(self.tokens), end, self.encoded, encodes=bool(self.encoder), inputs=inputs)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: first `forget` tables, blank pages, copy pages, in this order; then run the items."""

    step: int
    items: tuple[PlanItem, ...]
    copies: tuple[PageCopy, ...] = ()
    blank: tuple[int, ...] = ()
    forget: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Positions that run."""
        return sum(len(item.tokens) for item in self.items)

    @property
    def logit_rows(self) -> int:
        """Rows that tokens are sampled from; those that are scored are not among them."""
        return sum([len(item.logits) for item in self.items])

    def work(self, reaches: Iterable[AttentionPattern] = (CAUSAL,)) -> Work:
        """What this step asks of a model whose layers have these reaches."""
        ends = [item.start + 1 for item in self.items if len(item.tokens) == 1 and not item.encoded]
        work = Work.decode(ends, reaches)  # of all at once: a simulator prices thousands of steps
        if len(ends) < len(self.items):
            others = [item.segment for item in self.items if len(item.tokens) > 1 or item.encoded]
            work = Work.of(others, reaches) + work if ends else Work.of(others, reaches)
        scored, adapted = 0, Counter[RowAxis]()
        for item in [item for item in self.items if item.adapter or item.scored is not None]:
            scored += 0 if item.scored is None else len(item.scored.tokens)
            if item.adapter:
                adapted[adapter_axis(item.adapter)] += len(item.tokens)
        rows = {**work.rows, LOGITS: self.logit_rows + scored, **adapted}
        return Work(rows, work.sequences, work.attention)

    def again(self) -> "StepPlan":
        """The same step once it has run, to be run once more: its pages are known, its copies are made."""
        items = tuple(structs.replace(item, pages=((),) * len(item.pages), first=False) for item in self.items)
        return StepPlan(self.step, items)

    def to_json(self) -> str:
        """One line that says everything, for golden tests and bug reports; what an item does not have is left out."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        known = {each.name: each.default for each in structs.fields(PlanItem)}
        fields["items"] = [
            {name: value for name, value in structs.asdict(item).items() if value != known[name]}
            | {"tokens": list(item.tokens)}
            | ({"scored": item.scored._asdict()} if item.scored else {})
            | ({"encoder": item.encoder.told()} if isinstance(item.encoder, EncoderFeatures) else {})
            for item in self.items
        ]
        fields["copies"] = [dataclasses.asdict(copy) for copy in self.copies]
        return json.dumps(fields, separators=(",", ":"))
