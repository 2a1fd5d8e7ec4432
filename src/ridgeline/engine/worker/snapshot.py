"""What an engine holds now, and which of its KV pages change: for those who watch it. Lengths and numbers, no text."""

from ridgeline.engine.engine import Engine
from ridgeline.engine.request import Request
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.worker.messages import PageChange, SequenceState, Snapshot, Stage
from ridgeline.ops.kv import NULL_PAGE


def snapshot(engine: Engine) -> Snapshot:
    """What the engine holds."""
    pool, owners = engine.ledger.pool, _owners(engine)
    pages = [(page, pool.state(page)) for page in range(1, pool.size + 1)]
    return Snapshot(
        engine.clock(),
        engine.stats,
        [len(group.layers) for group in engine.ledger.groups],
        [_change(engine, page, owners) for page, state in pages if state != "free"],
        [_sequence(request) for request in engine.requests.values()],
    )


def _sequence(request: Request) -> SequenceState:
    stage: Stage = "waiting" if not request.running else "decode" if request.output_length else "prefill"
    return SequenceState(
        *(request.group, request.choice, stage, request.timing.arrived, request.prompt_length),
        *(request.known, request.computed, request.cached, request.preemptions),
    )


class PageWatch:
    """Which pages change, for as long as somebody asks. While it is open the pool notes what it touches."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._pool = engine, engine.ledger.pool
        self._pool.touched = set()
        self._owners = _owners(engine)

    def close(self) -> None:
        """Nothing is noted any more."""
        self._pool.touched = None

    def ran(self, plan: StepPlan) -> None:
        """A plan's new entries say whose the pages are."""
        for item in [item for item in plan.items if any(item.pages)]:
            for group, pages in enumerate(item.pages):
                self._owners.update(dict.fromkeys(pages, (group, item.request)))

    def changes(self) -> list[PageChange]:
        """The pages touched since the last time, as they are now."""
        if not self._pool.touched:
            return []
        touched, self._pool.touched = self._pool.touched, set()
        if any(self._pool.references(page) and not self._owned(page) for page in touched):
            self._owners = _owners(self._engine)
        return [_change(self._engine, page, self._owners) for page in sorted(touched)]

    def _owned(self, page: int) -> bool:
        """Whether whoever took the page last still has it."""
        group, request = self._owners.get(page, (0, 0))
        table = self._engine.ledger.tables.get(request)
        return table is not None and page in table.pages[group]


def _change(engine: Engine, page: int, owners: dict[int, tuple[int, int]]) -> PageChange:
    """A page as it is now. One that can be found says itself whose layers' it is."""
    state, published = engine.ledger.pool.state(page), engine.ledger.published_group(page)
    group, sequence = owners.get(page, (0, 0))
    owner = engine.requests.get(sequence) if state not in ("free", "cached") else None
    return PageChange(group if published is None else published, page, state, 0 if owner is None else owner.group)


def _owners(engine: Engine) -> dict[int, tuple[int, int]]:
    """Of each page in a table its group and the sequence that has it, the last of those that share it."""
    return {
        page: (group, sequence)
        for sequence, table in engine.ledger.tables.items()
        for group, pages in enumerate(table.pages)
        for page in pages
        if page != NULL_PAGE
    }
