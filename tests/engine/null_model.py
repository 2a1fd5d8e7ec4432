"""A model that computes nothing: its "KV" is a running hash, kept in pages as a real model's would be.

What position p stores depends on its token and on what it reads, through the page table, at p - 1 and at the farthest
position that its layer sees. A page that is wrong, stale, missing or written by two requests therefore changes every
token after it.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from ridgeline.core.ops.kv_layout import KVGroup, KVLayout, KVSpec, StateSpec
from ridgeline.core.ops.work import AttentionPattern, sliding_window
from ridgeline.engine.engine import Engine
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import verified
from ridgeline.engine.sampling import Outcome, RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import PlanItem, StepPlan

VOCABULARY = 1000
_MASK = (1 << 61) - 1
GREEDY = SamplingParams(temperature=0.0)


def mix(left: int, right: int) -> int:
    """A number that depends on both."""
    return ((left * 1_000_003) ^ (right * 0x9E3779B97F4A7C15)) + 12_345 & _MASK


def farthest(window: int | None, position: int) -> int:
    """The farthest position that the null model reads back to: the window's edge, or half-way in full attention."""
    return position // 2 if window is None else max(0, position - window + 1)


def expected_tokens(prompt: Sequence[int], count: int, windows: Sequence[int | None] = (None,)) -> list[int]:
    """What the null model samples after `prompt`, without pages, steps or neighbours."""
    states: list[list[int]] = [[] for _ in windows]
    tokens = list(prompt)
    for position in range(len(prompt) + count - 1):
        value = tokens[position]
        for own, window in zip(states, windows, strict=True):
            if position:
                value = mix(mix(value, own[position - 1]), own[farthest(window, position)] if position > 1 else 0)
        for own in states:
            own.append(value)
        if position + 1 == len(tokens):
            tokens.append(value % VOCABULARY)
    return tokens[len(prompt) :]


class WrongPlan(BaseException):
    """A plan that cannot be right. No Exception: the engine would take that for a step that failed, and try again."""


class NullExecutor:
    """An Executor over lists of numbers. It reads what its plans say and nothing else."""

    def __init__(self, windows: Sequence[int | None], pages: int, page_size: int) -> None:
        self.windows, self.page_size = tuple(windows), page_size
        self.states: list[int | None] = [None] * ((pages + 1) * page_size)  # slot by slot, for all groups
        self.tables: dict[int, list[list[int]]] = {}
        self.ends: dict[int, int] = {}  # how far each request's pages are filled
        self.computed = 0
        self.lost = 0  # positions of tables that were given anew

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        try:
            self.check(plan, rows)
            return self._execute(plan)
        except AssertionError as error:
            raise WrongPlan(str(error)) from error

    def check(self, plan: StepPlan, rows: Sequence[SampleRow]) -> None:
        """Assert what holds for every plan."""
        assert plan.items
        owners = [item for item in plan.items for _ in item.logits]
        for item, row in zip(owners, rows, strict=True):
            assert row.position == item.start + len(item.tokens), "a row is told a wrong position"

    def _execute(self, plan: StepPlan) -> Sequence[Outcome]:
        for request in plan.forget:
            self.tables.pop(request, None)
        for item in plan.items:
            self._update_table(item)
        size = self.page_size
        own = self.states
        for page in plan.blank:
            own[page * size : (page + 1) * size] = [0] * size
        for copy in plan.copies:
            own[copy.target * size : (copy.target + 1) * size] = own[copy.source * size : (copy.source + 1) * size]
        return [Sampled(self._run(item, offset)) for item in plan.items for offset in self._offsets(item)]

    def _update_table(self, item: PlanItem) -> None:
        if item.first:
            self.lost += self.ends.get(item.request, 0)
            self.tables[item.request] = [list(pages) for pages in item.pages]
        else:
            assert item.start == self.ends[item.request], "positions are left out or computed again"
            for table, pages in zip(self.tables[item.request], item.pages, strict=True):
                table.extend(pages)
        self.ends[item.request] = item.start + len(item.tokens)
        self.computed += len(item.tokens)

    def _offsets(self, item: PlanItem) -> Sequence[int]:
        """Computes the item's positions; returns those that sample."""
        size, tables, own = self.page_size, self.tables[item.request], self.states
        for position, token in enumerate(item.tokens, item.start):
            value = token
            for table, window in zip(tables, self.windows, strict=True):
                if position:
                    back, far = position - 1, farthest(window, position)
                    before = own[table[back // size] * size + back % size]
                    edge = own[table[far // size] * size + far % size] if position > 1 else 0
                    assert before is not None, f"position {position} reads nothing at {back}"
                    assert edge is not None, f"position {position} reads nothing at {far}"
                    value = mix(mix(value, before), edge)
            for table in tables:
                page = table[position // size]
                assert page, f"position {position} is written to the page of zeros"
                own[page * size + position % size] = value
        return item.logits

    def _run(self, item: PlanItem, offset: int) -> int:
        position = item.start + offset
        page = self.tables[item.request][0][position // self.page_size]
        value = self.states[page * self.page_size + position % self.page_size]
        assert value is not None
        return value % VOCABULARY

    def poison(self, ledger: KVCacheManager) -> None:
        """Make what free pages hold unreadable."""
        size = self.page_size
        for page in ledger.pool.free_pages:
            self.states[page * size : (page + 1) * size] = [None] * size


class VerifyingExecutor(NullExecutor):
    """A null model that verifies guesses at next tokens, as the runner does."""

    def check(self, plan: StepPlan, rows: Sequence[SampleRow]) -> None:
        assert plan.items
        positions = [item.start + offset + 1 for item in plan.items for offset in item.logits]
        assert [row.position for row in rows] == positions, "a row is told a wrong position"

    def _execute(self, plan: StepPlan) -> Sequence[Outcome]:
        sampled = iter(super()._execute(plan))
        outcomes: list[Outcome] = []
        for item in plan.items:
            if not item.logits:
                continue
            outcome = verified(item, list(islice(sampled, len(item.logits))))
            if not isinstance(outcome, Sampled | RowFailure):  # what was computed after a wrong guess is overwritten
                self.ends[item.request] = item.start + len(outcome)
            outcomes.append(outcome)
        return outcomes


Kind = int | AttentionPattern | StateSpec | None
"""What a layer keeps: a window's positions, all of them, those of another reach, or a state."""


def layout_of(kinds: Sequence[Kind], pages: int, page_size: int) -> KVLayout:
    """A pool of pages for one layer of each kind, each a group of its own."""
    groups = []
    for layer, kind in enumerate(kinds):
        if isinstance(kind, StateSpec):
            groups.append(KVGroup(kind, (layer,), 1))
        else:
            reach = kind if isinstance(kind, AttentionPattern) else sliding_window(kind)
            groups.append(KVGroup(KVSpec(1, 1, 1, reach, torch.float32), (layer,), page_size))
    return KVLayout(8 * page_size, pages, page_size, tuple(groups))


def null_engine(
    *,
    windows: Sequence[int | None] = (None,),
    pages: int = 64,
    page_size: int = 4,
    limits: Limits | None = None,
    prefix_cache: bool = True,
    context: int = 10_000,
    executor: NullExecutor | None = None,
    **others: Any,
) -> Engine:
    """An engine around a null model with one KV group a window. others: as Engine takes them."""
    limits = limits or Limits()
    return Engine(
        executor or NullExecutor(windows, pages, page_size),
        KVCacheManager(layout_of(windows, pages, page_size), limits.max_request_tokens, prefix_cache=prefix_cache),
        limits,
        ModelTraits(context, VOCABULARY, VOCABULARY),
        **others,
    )
