"""StepPlan: what one step runs. The scheduler's output, the batch's input, the price's input, the bug report."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.engine.kv.ledger import PageCopy
from ridgeline.ops.work import CAUSAL, Reach, Segment, Work


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One request's part of a step.

    Runs positions [start, start + len(tokens)). `pages` are the page-table entries that are new to the runner, group by
    group; `first` says that they are the whole table. `logits`: which of the positions need logits, counted from start.
    """

    request: int
    start: int
    tokens: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    first: bool
    logits: tuple[int, ...]

    @property
    def segment(self) -> Segment:
        """What attention sees of it."""
        return Segment(len(self.tokens), self.start + len(self.tokens))


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

    def work(self, reaches: Iterable[Reach] = (CAUSAL,)) -> Work:
        """What this step asks of a model whose layers have these reaches."""
        rows = sum(len(item.logits) for item in self.items)
        return Work.of([item.segment for item in self.items], reaches, rows)

    def to_json(self) -> str:
        """One line that says everything, for golden tests and bug reports."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))
