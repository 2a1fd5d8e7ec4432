"""What is said of KV pages and requests, followed from step to step beside a count of every page table."""

import random
from collections.abc import Callable, Iterator

import pytest

from engine.null_model import null_engine
from ridgeline.core.ops.kv_layout import NULL_PAGE
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.worker.engine_messages import (
    Abort,
    AddRequest,
    EngineSnapshot,
    FromEngine,
    GetSnapshot,
    PageChange,
    Stepped,
    ToEngine,
    WatchPages,
)
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.engine.worker.snapshot import snapshot

Map = dict[int, PageChange]


def truth(engine: Engine) -> dict[int, tuple[str, set[tuple[int, int]]]]:
    """Of each page its state, and all who might be said to hold it (group, request), from the tables alone."""
    holders: dict[int, list[tuple[int, int]]] = {page: [] for page in range(1, engine.kv_cache_manager.pool.size + 1)}
    for sequence, table in engine.kv_cache_manager.tables.items():
        for group, pages in enumerate(table.pages):
            for page in pages:
                if page != NULL_PAGE:
                    holders[page].append((group, engine.requests[sequence].group))
    free = set(engine.kv_cache_manager.pool.free_pages)
    found = {}
    for page, held in holders.items():
        alone = "held" if engine.kv_cache_manager.pool.key(page) is None else "published"
        copied = [copy for copy in engine.kv_cache_manager.copies if copy.source == page]
        state = "shared" if len(held) + len(copied) > 1 else alone if held else "free" if page in free else "cached"
        found[page] = state, set(held)
    return found


def check(engine: Engine, pages: Map) -> None:
    before: dict[int, set[int]] = {}
    for table in engine.kv_cache_manager.tables.values():
        for group, own in zip(engine.kv_cache_manager.groups, table.pages, strict=True):
            for last, page in zip([NULL_PAGE, *own], own, strict=False):
                before.setdefault(page, set()).add(last if group.spec.grows else NULL_PAGE)
    for page, (state, holders) in truth(engine).items():
        told = pages.get(page, PageChange(0, page, "free", 0))
        assert told.state == state, page
        assert (told.group, told.request) in holders if holders else told.request == 0, page
        found = before.get(page, {NULL_PAGE})
        passed = (
            engine.kv_cache_manager.groups[told.group].spec.frees_positions and NULL_PAGE in found
        )  # a window has left the one before
        assert told.before in found or passed, page


Turns = Iterator[list[ToEngine]]


class Follower:
    """Who listens to an engine's loop, and what they know of its pages."""

    def __init__(self, engine: Engine, turns: Callable[["Follower"], Turns]) -> None:
        """turns: the messages before each step, a list for each; what follows a `yield` runs after the step."""
        self.engine, self.pages, self.told = engine, Map(), 0
        self.snapshot: EngineSnapshot | None = None
        script = turns(self)
        EngineLoop(engine, self.hear).run(lambda idle: next(script, None))

    def hear(self, message: FromEngine) -> None:
        if isinstance(message, EngineSnapshot):
            self.snapshot = message
            self.pages = {change.page: change for change in message.pages}
        elif isinstance(message, Stepped):
            self.told += len(message.pages)
            self.pages.update({change.page: change for change in message.pages})


@pytest.mark.parametrize("windows", [(None,), (None, 5)])
def test_a_page_map_that_follows_the_changes_is_the_engines(windows: tuple[int | None, ...]) -> None:
    """Shared prefixes, choices, preemption, aborts; the watch begins when pages are held already."""
    rng, states = random.Random(1), set[str]()
    stem = [rng.randrange(1000) for _ in range(30)]

    def asked(turn: int, engine: Engine) -> list[ToEngine]:
        messages: list[ToEngine] = []
        if turn % 4 == 0:
            prompt = stem[: rng.randrange(1, 30)] + [rng.randrange(1000) for _ in range(rng.randrange(6))]
            params = SamplingParams(temperature=0, n=rng.choice((1, 1, 3)), max_tokens=rng.randrange(1, 50))
            messages.append(AddRequest(turn, GenerationRequest(prompt, params)))
        if turn % 7 == 0 and engine.requests:
            messages.append(Abort(rng.choice([request.group for request in engine.requests.values()])))
        return messages

    def turns(follower: Follower) -> Turns:
        engine = follower.engine
        for turn in range(30):
            yield asked(turn, engine)
        assert engine.stats.held_pages > 0
        yield [WatchPages(True), GetSnapshot()]
        for turn in range(400):
            check(engine, follower.pages)
            states.update(change.state for change in follower.pages.values())
            check(engine, {change.page: change for change in snapshot(engine).pages})
            yield asked(turn, engine)

    engine = null_engine(windows=windows, pages=26, page_size=4, limits=Limits(tokens=16, requests=6))
    Follower(engine, turns)
    assert states == {"free", "held", "published", "shared", "cached"}
    assert engine.stats.preemptions > 0


def test_nothing_is_noted_unless_somebody_watches() -> None:
    def turns(follower: Follower) -> Turns:
        pool = follower.engine.kv_cache_manager.pool
        yield [AddRequest(1, GenerationRequest([1, 2, 3, 4, 5], SamplingParams(max_tokens=100)))]
        yield []
        assert (pool.touched, follower.told) == (None, 0)
        yield [WatchPages(True)]
        for _ in range(5):
            yield []
        told = follower.told
        assert told > 0
        yield [WatchPages(False)]
        for _ in range(5):
            yield []
        assert (pool.touched, follower.told) == (None, told)
        yield [WatchPages(True)]

    engine = null_engine()
    Follower(engine, turns)
    assert engine.kv_cache_manager.pool.touched is None  # whoever watched has gone with the loop


def test_a_snapshot_says_where_requests_stand() -> None:
    def turns(follower: Follower) -> Turns:
        params = SamplingParams(temperature=0, max_tokens=30)
        yield [
            AddRequest(number, GenerationRequest([number] * length, params)) for number, length in enumerate((3, 20, 5))
        ]
        stats = follower.engine.stats
        yield [GetSnapshot()]
        assert follower.snapshot is not None
        assert follower.snapshot.stats == stats
        assert follower.snapshot.groups == [1]
        told = follower.snapshot.sequences
        assert [(one.request, one.stage) for one in told] == [(1, "decode"), (2, "prefill"), (3, "waiting")]
        assert [(one.prompt, one.known, one.computed) for one in told] == [(3, 4, 3), (20, 20, 5), (5, 5, 0)]

    Follower(null_engine(limits=Limits(tokens=8, requests=2)), turns)
