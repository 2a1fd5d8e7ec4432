"""The scheduler under load, over a model that computes nothing: what is planned, in which order, and nothing twice."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.null_model import GREEDY, VOCABULARY, NullExecutor, expected_tokens, null_engine
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.sampling import SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan

GOLDEN = Path(__file__).parent / "golden" / "plans.jsonl"


class Watched(NullExecutor):
    """A null model that keeps every plan and checks it against the limits."""

    def __init__(
        self, windows: Sequence[int | None], pages: int, page_size: int, limits: Limits, *, keep: bool = True
    ) -> None:
        super().__init__(windows, pages, page_size)
        self.limits, self.keep = limits, keep
        self.plans: list[StepPlan] = []

    def check(self, plan: StepPlan, rows: Sequence[SampleRow]) -> None:
        super().check(plan, rows)
        assert 0 < plan.tokens <= self.limits.tokens
        assert 0 < len(plan.items) <= self.limits.requests
        assert len({item.request for item in plan.items}) == len(plan.items)
        for item in plan.items:
            assert 0 < len(item.tokens) <= (self.limits.chunk or self.limits.tokens)
        if self.keep:
            self.plans.append(plan)


def watched_engine(
    limits: Limits, *, pages: int, page_size: int, prefix_cache: bool = True, keep: bool = True
) -> Engine:
    executor = Watched((None,), pages, page_size, limits, keep=keep)
    return null_engine(pages=pages, page_size=page_size, limits=limits, prefix_cache=prefix_cache, executor=executor)


def spare_the_oldest(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the oldest of the running requests is preempted."""
    preempt = engine.scheduler.preempt

    def checked(request: Request) -> None:
        oldest = min(engine.scheduler.running, key=lambda r: r.id)
        assert request is not oldest, "the oldest request was preempted"
        preempt(request)

    monkeypatch.setattr(engine.scheduler, "preempt", checked)


def run_out(engine: Engine) -> dict[int, list[int]]:
    """Steps until nothing is left; every request's tokens."""
    out: dict[int, list[int]] = {}
    while engine.has_work:
        events = engine.step()
        assert events or engine.has_work
        for event in events:
            assert event.error is None, event.error
            if event.token is not None:
                out.setdefault(event.request, []).append(event.token.token)
    return out


def assert_empty(engine: Engine) -> None:
    """Nothing is held: every page is free or cached."""
    engine.kv_cache_manager.check()
    assert not engine.kv_cache_manager.tables
    assert not engine.kv_cache_manager.copies
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert engine.kv_cache_manager.pool.available == engine.kv_cache_manager.pool.size


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_five_thousand_requests(prefix_cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with exactly its tokens in a pool that is too small for them, and no position is computed twice
    but for preemption."""
    rng = random.Random(1)
    limits = Limits(tokens=256, requests=48, chunk=100)
    engine = watched_engine(limits, pages=300, page_size=2, prefix_cache=prefix_cache, keep=False)
    executor = engine.executor
    assert isinstance(executor, Watched)
    spare_the_oldest(engine, monkeypatch)
    stems = [[rng.randrange(VOCABULARY) for _ in range(24)] for _ in range(20)]
    work, requests = {}, []
    for index in range(5_000):
        burst = index % 1000 < 48  # short prompts with long answers: they all fit when they come, and then they grow
        length = 1 if burst else rng.choice((1, 2, 7, 8, 9, 16, 150 if index % 50 == 0 else 12))
        stem = rng.choice(stems)[: rng.randrange(4 if burst else 24)]
        prompt = stem + [rng.randrange(VOCABULARY) for _ in range(length)]
        count = rng.randint(40, 60) if burst else rng.randint(1, 8)
        request = engine.add(GenerationRequest(prompt, dataclasses.replace(GREEDY, max_tokens=count)))
        work[request] = (prompt, count)
        requests.append(engine.requests[request])
    out = run_out(engine)

    assert len(out) == 5_000
    for request, (prompt, count) in work.items():
        assert out[request] == expected_tokens(prompt, count)
    assert_empty(engine)
    assert all(request.finish is FinishReason.LENGTH for request in requests)
    assert engine.scheduler.preemptions == sum(request.preemptions for request in requests) > 100
    assert max(request.preemptions for request in requests) <= 10, "admission thrashes"
    needed = sum(len(prompt) + count - 1 for prompt, count in work.values())
    if prefix_cache:
        assert executor.computed < needed, "shared prefixes were not shared"
    else:
        assert engine.scheduler.recomputed_tokens == executor.lost
        assert executor.computed == needed + executor.lost
        assert executor.lost < 0.1 * needed, "too much is computed again"


def test_without_pressure_every_position_runs_once() -> None:
    limits = Limits(tokens=64, requests=8, chunk=10)
    engine = watched_engine(limits, pages=200, page_size=4, prefix_cache=False)
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(length)] for length in (1, 3, 4, 5, 10, 11, 64, 65, 90)]
    requests = [engine.add(GenerationRequest(prompt, dataclasses.replace(GREEDY, max_tokens=5))) for prompt in prompts]
    run_out(engine)
    assert isinstance(engine.executor, Watched)
    positions = {request: [] for request in requests}
    for plan in engine.executor.plans:
        for item in plan.items:
            positions[item.request] += range(item.start, item.start + len(item.tokens))
    assert engine.scheduler.preemptions == engine.scheduler.recomputed_tokens == 0
    for request, prompt in zip(requests, prompts, strict=True):
        assert positions[request] == list(range(len(prompt) + 4))


def test_decoding_goes_on_while_a_huge_prompt_prefills() -> None:
    limits = Limits(tokens=32, requests=16)
    engine = watched_engine(limits, pages=600, page_size=4)
    small = {
        engine.add(GenerationRequest([index, 7], dataclasses.replace(GREEDY, max_tokens=100))) for index in range(8)
    }
    engine.step()
    huge = engine.add(GenerationRequest(list(range(900)), dataclasses.replace(GREEDY, max_tokens=2)))
    steps = 0
    while engine.requests[huge].output_length == 0:
        events = engine.step()
        assert {event.request for event in events} >= small, "a decoding request had to wait"
        assert isinstance(engine.executor, Watched)
        steps += 1
        assert engine.executor.plans[-1].tokens == min(32, 8 + 900 - (steps - 1) * 24), "the budget was not used up"
    assert steps == -(-900 // (32 - 8))


def test_arrivals_in_the_middle_run_beside_what_runs() -> None:
    """A new request starts in the next step, and its first token comes with it."""
    engine = watched_engine(Limits(tokens=64, requests=4), pages=64, page_size=4)
    first = engine.add(GenerationRequest([1, 2, 3], dataclasses.replace(GREEDY, max_tokens=20)))
    for _ in range(5):
        engine.step()
    second = engine.add(GenerationRequest([4, 5, 6], dataclasses.replace(GREEDY, max_tokens=20)))
    assert {event.request for event in engine.step()} == {first, second}


def test_more_requests_than_a_step_holds_are_served_in_order_of_arrival() -> None:
    engine = watched_engine(Limits(tokens=64, requests=3), pages=64, page_size=4)
    requests = [engine.add(GenerationRequest([index], dataclasses.replace(GREEDY, max_tokens=4))) for index in range(9)]
    firsts: list[int] = []
    while engine.has_work:
        for event in engine.step():
            if event.request not in firsts:
                firsts.append(event.request)
    assert firsts == requests


def test_a_request_that_fills_the_pool_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole pool for one request, with others in its way: it still ends, and so do they."""
    engine = watched_engine(Limits(tokens=64, requests=8), pages=10, page_size=4)
    spare_the_oldest(engine, monkeypatch)
    prompts = [[index] * length for index, length in enumerate((5, 3, 20, 38, 1, 36))]
    work = {engine.add(GenerationRequest(p, dataclasses.replace(GREEDY, max_tokens=None))): p for p in prompts}
    out = run_out(engine)
    for request, prompt in work.items():
        assert len(prompt) + len(out[request]) == 40, "what fits was not used"
        assert out[request] == expected_tokens(prompt, 40 - len(prompt))
    assert engine.scheduler.preemptions > 0
    assert_empty(engine)


@pytest.mark.parametrize(("windows", "positions"), [((None,), 120), ((20,), 64), ((None, 6), 160), ((3, None, 8), 150)])
@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_pages_are_right_under_pressure(
    windows: tuple[int | None, ...], positions: int, page_size: int, prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks, shared prefixes, windows, preemptions and aborts at once; free pages are unreadable."""
    rng = random.Random(f"{windows} {page_size}")
    limits = Limits(tokens=40, requests=7, chunk=11)
    pages = positions // page_size
    engine = null_engine(windows=windows, pages=pages, page_size=page_size, limits=limits, prefix_cache=prefix_cache)
    assert isinstance(engine.executor, NullExecutor)
    spare_the_oldest(engine, monkeypatch)
    stem = [rng.randrange(VOCABULARY) for _ in range(24)]
    work: dict[int, tuple[list[int], int, int]] = {}
    out: dict[tuple[int, int], list[int]] = {}
    aborted: set[int] = set()
    for step in range(10_000):
        if step % 3 == 0 and len(work) < 60:
            prompt = stem[: rng.randrange(25)] + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))]
            count, n = rng.randint(1, 20), rng.choice((1, 1, 3))
            work[engine.add(GenerationRequest(prompt, dataclasses.replace(GREEDY, max_tokens=count, n=n)))] = (
                prompt,
                count,
                n,
            )
        elif step % 17 == 1:
            victim = rng.choice(list(work))
            if engine.abort(victim):
                aborted.add(victim)
        engine.executor.poison(engine.kv_cache_manager)
        for event in engine.step():
            assert event.error is None, event.error
            if event.token is not None:
                out.setdefault((event.request, event.choice), []).append(event.token.token)
        engine.kv_cache_manager.check()
        if len(work) == 60 and not engine.has_work:
            break
    assert_empty(engine)
    assert engine.scheduler.preemptions > 0
    assert aborted
    for request, (prompt, count, n) in work.items():
        wanted = expected_tokens(prompt, count, windows)
        for choice in range(n):
            tokens = out.get((request, choice), [])
            assert tokens == wanted[: len(tokens) if request in aborted else None]


# -- golden plans -----------------------------------------------------------------------------------------------------


def golden_plans() -> list[StepPlan]:
    """A fixed workload with everything in it: chunks, a shared prefix, a fork, a window, preemption, an abort."""
    limits = Limits(tokens=12, requests=4, chunk=6)
    executor = Watched((None, 6), 35, 2, limits)
    engine = null_engine(windows=(None, 6), pages=35, page_size=2, limits=limits, executor=executor)
    stem = list(range(100, 109))
    engine.add(GenerationRequest([*stem, 1], dataclasses.replace(GREEDY, max_tokens=12)))
    engine.add(GenerationRequest([*stem, 2, 3, 4], dataclasses.replace(GREEDY, max_tokens=9, n=2)))
    for _ in range(4):
        engine.step()
    engine.add(GenerationRequest([*stem, 4, 5, 6, 7], dataclasses.replace(GREEDY, max_tokens=14)))
    late = engine.add(GenerationRequest([9], dataclasses.replace(GREEDY, max_tokens=14)))
    engine.add(GenerationRequest([8, 8, 8, 8, 8], dataclasses.replace(GREEDY, max_tokens=16)))
    while engine.has_work:
        engine.step()
        if engine.scheduler.steps == 15:
            engine.abort(late)
    assert engine.scheduler.preemptions > 0
    assert any(plan.copies for plan in executor.plans)
    return executor.plans


def test_plans_are_those_of_the_golden_file() -> None:
    """A change of what the scheduler decides must be meant. If it is, `PYTHONPATH=tests python
    tests/engine/test_null_runner.py` writes the plans anew."""
    lines = [plan.to_json() for plan in golden_plans()]
    golden = GOLDEN.read_text(encoding="ascii").splitlines()
    for number, (line, wanted) in enumerate(zip(lines, golden, strict=False)):
        assert json.loads(line) == json.loads(wanted), f"plan {number} differs from the one in {GOLDEN.name}"
    assert lines == golden


if __name__ == "__main__":
    GOLDEN.write_text("".join(plan.to_json() + "\n" for plan in golden_plans()), encoding="ascii")
