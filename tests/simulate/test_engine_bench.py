"""The simulation as a test bench for the engine: random traffic at thousands of steps a second, its memory checked
after each of them. A trace that breaks something is shrunk to the few requests that do."""

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.engine.kv.pool import PagePool
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.replica import PromptBuilder, SimulatedReplica, StepPricer
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.traffic.workload_trace import TraceRequest
from simulate.machines import TINY_CASE, machine

MAX_PROMPT, MAX_RUNNING = 120, 8
STUCK = 1000  # steps without a token: all prompts under way together are shorter
ALL = [HealthCheck.too_slow, HealthCheck.data_too_large]


@dataclass(frozen=True)
class Come:
    """What happens before a step: a request comes, one under way is aborted (the n-th of them), or nothing does."""

    request: TraceRequest | None = None
    abort: int | None = None


def requests() -> st.SearchStrategy[TraceRequest]:
    """Prompts of blocks of a few names, so that many begin alike and some are equal."""

    def made(names: list[str], last: int, output: int) -> TraceRequest:
        return TraceRequest(0, 16 * len(names) + last, output, tuple(names), 16)

    few = st.lists(st.sampled_from("abc"), max_size=MAX_PROMPT // 16 - 1)
    return st.builds(made, few, st.integers(1, 15), st.integers(1, 60))


traffic = st.lists(
    st.one_of(
        st.builds(Come, requests()),
        st.builds(Come, requests()),
        st.builds(Come, abort=st.integers(0, 30)),
        st.just(Come()),
    ),
    min_size=1,
    max_size=40,
)
limits = st.builds(Limits, st.integers(1, 64), st.integers(1, MAX_RUNNING), st.none() | st.integers(1, 20))


def drive(coming: list[Come], limit: Limits, pages: int, *, prefix_cache: bool) -> int:
    """The steps that it took until nothing was left."""
    clock = SimulatedClock()
    on = machine(limit, pages, prefix_cache=prefix_cache)
    pricer = StepPricer(TINY_CASE.price, TINY_CASE.device)
    replica = SimulatedReplica(on, clock, pricer, PromptBuilder())
    engine, queue, steps, silent = replica.engine, list(reversed(coming)), 0, 0
    while queue or engine.has_work:
        if queue:
            _happen(queue.pop(), replica)
        took = replica.begin()
        if took is None:
            assert not engine.has_work, "there is work, and no step"
            continue
        priced = TINY_CASE.price.price_step(TINY_CASE.device, pricer.work)
        assert took == round(priced.expected * 1e9), "the price of another step was kept"
        clock.to(clock.now + took)
        events = replica.end()
        for event in events:
            if event.finish is not None:
                replica.forget(event.request)
        engine.kv_cache_manager.check()
        running = engine.scheduler.running
        assert len(running) <= limit.requests
        assert [request.id for request in running] == sorted(request.id for request in running)
        assert all(request.computed <= request.known for request in running)
        steps, silent = steps + 1, 0 if events else silent + 1
        assert silent < STUCK, "a livelock: steps, and no token"
    engine.kv_cache_manager.check()
    assert engine.stats.held_pages == 0
    return steps


def _happen(come: Come, replica: SimulatedReplica) -> None:
    under_way = sorted(replica.engine.requests)
    if come.request is not None:
        with suppress(ValueError):  # longer than KV memory
            replica.add(come.request)
    elif come.abort is not None and under_way:
        replica.abort(under_way[come.abort % len(under_way)])


@settings(max_examples=40, deadline=None, suppress_health_check=ALL)
@given(traffic, limits, st.integers(3, 24), st.booleans())
def test_any_traffic_ends_and_memory_adds_up(coming: list[Come], limit: Limits, pages: int, prefix_cache: bool) -> None:
    drive(coming, limit, pages, prefix_cache=prefix_cache)


def test_a_page_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench can fail: a pool that forgets to take one page back."""
    release = PagePool.release
    monkeypatch.setattr(PagePool, "release", lambda self, page: None if page == 3 else release(self, page))
    coming = [Come(TraceRequest(0, 70, 5)), Come(), Come(TraceRequest(0, 30, 5))]
    with pytest.raises(AssertionError, match="page 3 has a wrong reference count"):
        drive(coming, Limits(20, 4), 12, prefix_cache=False)


@pytest.mark.slow
def test_a_hundred_thousand_steps() -> None:
    """The same until so many steps were taken."""
    taken = 0

    @settings(max_examples=400, deadline=None, suppress_health_check=ALL, database=None)
    @given(traffic, limits, st.integers(3, 24), st.booleans())
    def more(coming: list[Come], limit: Limits, pages: int, prefix_cache: bool) -> None:
        nonlocal taken
        taken += drive(coming, limit, pages, prefix_cache=prefix_cache)

    while taken < 100_000:
        more()
