"""The state of an engine for those who watch it: what it holds now, and which of its KV pages change.

It has lengths and numbers, no text.
"""

from typing import NamedTuple

from ridgeline.core.ops.kv_layout import NULL_PAGE
from ridgeline.engine.engine import Engine
from ridgeline.engine.request import Request
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.worker.engine_messages import EngineSnapshot, PageChange, SequenceState, Stage


class _PageEntry(NamedTuple):
    """The place of a KV page in the page tables of an engine."""

    group: int
    """The index of the layer group of the page."""
    sequence: int
    """The id of the sequence that holds the page."""
    entry: int
    """The index of the KV page in the sequence's page table for its layer group."""


_NOWHERE = _PageEntry(0, 0, 0)


def snapshot(engine: Engine, *, pages: bool = True) -> EngineSnapshot:
    """Return a snapshot of what the engine holds.

    Args:
        engine: The engine.
        pages: Whether to include all KV pages that are not free.
    """
    return EngineSnapshot(
        engine.clock(),
        engine.stats,
        [len(group.layers) for group in engine.kv_cache_manager.groups],
        _taken(engine) if pages else [],
        [_sequence(request) for request in engine.requests.values()],
    )


def _taken(engine: Engine) -> list[PageChange]:
    """Return the state of all KV pages that are not free."""
    pool, places = engine.kv_cache_manager.pool, _places(engine)
    return [_change(engine, page, places) for page in range(1, pool.size + 1) if pool.state(page) != "free"]


def _sequence(request: Request) -> SequenceState:
    stage: Stage = "waiting" if not request.running else "decode" if request.output_length else "prefill"
    return SequenceState(
        *(request.group, request.choice, stage, request.timing.arrived, request.prompt_length),
        *(request.known, request.computed, request.cached, request.preemptions),
    )


class PageWatch:
    """The observation of changes to KV pages. While it is open, the pool records the pages that it touches."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._pool = engine, engine.kv_cache_manager.pool
        self._pool.touched = set()
        self._places = _places(engine)

    def close(self) -> None:
        """Stop recording changes of KV pages."""
        self._pool.touched = None

    def ran(self, plan: StepPlan) -> None:
        """Record which sequences hold the pages of a plan's new table entries."""
        for item in [item for item in plan.items if any(item.pages)]:
            table = self._engine.kv_cache_manager.tables[item.request]
            for group, pages in enumerate(item.pages):
                first = len(table.pages[group]) - len(pages)
                self._places |= {
                    page: _PageEntry(group, item.request, entry) for entry, page in enumerate(pages, first)
                }

    def changes(self) -> list[PageChange]:
        """Return the pages touched since the last call, in their current state."""
        if not self._pool.touched:
            return []
        touched, self._pool.touched = self._pool.touched, set()
        if any(self._pool.references(page) and not self._owned(page) for page in touched):
            self._places = _places(self._engine)
        return [_change(self._engine, page, self._places) for page in sorted(touched)]

    def _owned(self, page: int) -> bool:
        """Return whether the sequence that took a KV page last still holds the page."""
        group, sequence, entry = self._places.get(page, _NOWHERE)
        table = self._engine.kv_cache_manager.tables.get(sequence)
        return table is not None and table.pages[group][entry : entry + 1] == [page]


def _change(engine: Engine, page: int, places: dict[int, _PageEntry]) -> PageChange:
    """Return the current state of a KV page. A published page knows its group of layers itself."""
    pool, ledger = engine.kv_cache_manager.pool, engine.kv_cache_manager
    state, published = pool.state(page), ledger.published_group(page)
    group, sequence, entry = places.get(page, _NOWHERE)
    owner = engine.requests.get(sequence) if state not in ("free", "cached") else None
    start, before = -1, NULL_PAGE
    if owner is not None and ledger.groups[group].spec.grows:
        start = entry * ledger.groups[group].page_size
        before = ledger.tables[sequence].pages[group][entry - 1] if entry else NULL_PAGE
    return PageChange(
        *(group if published is None else published, page, state, 0 if owner is None else owner.group),
        *(start, pool.references(page), before),
    )


def _places(engine: Engine) -> dict[int, _PageEntry]:
    """Return the place of each KV page in a request's page tables; of requests that share a page, the last counts."""
    return {
        page: _PageEntry(group, sequence, entry)
        for sequence, table in engine.kv_cache_manager.tables.items()
        for group, pages in enumerate(table.pages)
        for entry, page in enumerate(pages)
        if page != NULL_PAGE
    }
