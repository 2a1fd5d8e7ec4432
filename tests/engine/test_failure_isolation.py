"""The search for the request that makes a step fail: it finds each of them, and costs nobody else a token."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from engine.collecting import Choices, finish_all, take
from engine.null_model import GREEDY, VOCABULARY, VerifyingExecutor, expected_tokens, null_engine
from engine.small_models import assert_nothing_held
from ridgeline.engine.engine import Engine
from ridgeline.engine.failure_isolation import FailureIsolation
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.engine.step_plan import StepPlan
from support.drafters import ReplayDrafter

WINDOWS = (None, 6)
LENGTHS = (3, 13, 1, 8, 20, 5)
"""Positions of six prompts: less than a page, one page, several, and more than a chunk."""
TOKENS = 9
BROKE = "RuntimeError: it broke"

PAIRS = [*itertools.combinations(range(1, 7), 2)]
Fails = Callable[[StepPlan], bool]


class FailingExecutor(VerifyingExecutor):
    """A null model that fails in some steps, after it has written. It keeps every plan."""

    def __init__(self, fails: Fails, pages: int = 80) -> None:
        super().__init__(WINDOWS, pages, 4)
        self.fails = fails
        self.plans: list[StepPlan] = []
        self.failed: list[StepPlan] = []

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        self.plans.append(plan)
        ends = dict(self.ends)
        sampled = super().execute(plan, rows)
        if self.fails(plan):
            self.failed.append(plan)
            self.ends = ends
            raise RuntimeError("it\nbroke")
        return sampled


def failing_engine(fails: Fails, *, pages: int = 80, tokens: int = 64, **others: object) -> Engine:
    limits = Limits(tokens=tokens, requests=8, chunk=5)
    executor = FailingExecutor(fails, pages)
    return null_engine(windows=WINDOWS, pages=pages, limits=limits, executor=executor, **others)


def executor_of(engine: Engine) -> FailingExecutor:
    assert isinstance(engine.executor, FailingExecutor)
    return engine.executor


def prompt(number: int) -> list[int]:
    """The prompt of one of six requests."""
    return [(37 * number + 5 * place) % VOCABULARY for place in range(LENGTHS[number % len(LENGTHS)])]


def runs(plan: StepPlan, request: int, position: int) -> bool:
    """Whether a plan computes a position of a request."""
    return any(
        item.request == request and item.start <= position < item.start + len(item.tokens) for item in plan.items
    )


def requests_of(plan: StepPlan) -> list[int]:
    return [item.request for item in plan.items]


def run_six(engine: Engine, leave_out: Sequence[int] = ()) -> Choices:
    """Run six requests, whose ids are 1 to 6, to their ends, without some of them."""
    for number in range(6):
        request = engine.add(GenerationRequest(prompt(number), replace(GREEDY, max_tokens=TOKENS)))
        if request in leave_out:
            engine.abort(request)
    choices = finish_all(engine, lambda _: executor_of(engine).poison(engine.kv_cache_manager))
    assert_nothing_held(engine)
    return choices


def assert_alone_after_failure(executor: FailingExecutor) -> None:
    """Assert that the requests of a failed step ran alone, the oldest first, before any step of several."""
    for plan in executor.failed:
        if len(plan.items) == 1:
            continue
        isolated = requests_of(plan)
        later = executor.plans[executor.plans.index(plan) + 1 :]
        alone = list(itertools.takewhile(lambda one: len(one.items) == 1, later))
        order = [request for request, _ in itertools.groupby(own for one in alone for own in requests_of(one))]
        assert order[: len(isolated)] == isolated


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("at", ["first", "last of the prompt", "first token", "late"])
def test_one_failing_request_is_found_wherever_it_stands(place: int, at: str) -> None:
    """At every place of the batch, in its prompt and while it decodes. The others say what they say without it."""
    bad, length = place + 1, LENGTHS[place]
    position = {"first": 0, "last of the prompt": length - 1, "first token": length, "late": length + TOKENS - 2}[at]
    engine = failing_engine(lambda plan: runs(plan, bad, position))
    choices = run_six(engine)
    without = run_six(failing_engine(lambda _: False), leave_out=[bad])
    for request in range(1, 7):
        choice = choices[request, 0]
        if request == bad:
            assert (choice.finish, choice.error) == (FinishReason.ERROR, BROKE)
            sampled = max(0, position - length + 1)
            assert choice.token_ids == expected_tokens(prompt(place), TOKENS, WINDOWS)[:sampled]
        else:
            assert (choice.finish, choice.error) == (FinishReason.LENGTH, None)
            assert choice.token_ids == without[request, 0].token_ids
            assert choice.token_ids == expected_tokens(prompt(request - 1), TOKENS, WINDOWS)
    executor = executor_of(engine)
    assert len(executor.failed) <= 2, "once with the others, once alone"
    assert requests_of(executor.failed[-1]) == [bad]
    assert_alone_after_failure(executor)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("same_step", [False, True])
def test_two_failing_requests_are_both_found(pair: tuple[int, int], same_step: bool) -> None:
    """In the same step, which runs both in isolation, and in different ones."""
    positions = {request: 0 if same_step else request + 2 for request in pair}
    engine = failing_engine(lambda plan: any(runs(plan, *one) for one in positions.items()))
    choices = run_six(engine)
    without = run_six(failing_engine(lambda _: False), leave_out=pair)
    for request in range(1, 7):
        choice = choices[request, 0]
        if request in pair:
            assert (choice.finish, choice.error) == (FinishReason.ERROR, BROKE)
            sampled = max(0, positions[request] - LENGTHS[request - 1] + 1)
            assert choice.token_ids == expected_tokens(prompt(request - 1), TOKENS, WINDOWS)[:sampled]
        else:
            assert (choice.finish, choice.token_ids) == (FinishReason.LENGTH, without[request, 0].token_ids)
    alone = [requests_of(plan) for plan in executor_of(engine).failed if len(plan.items) == 1]
    assert sorted(alone) == [[request] for request in pair]
    assert len(executor_of(engine).failed) <= 4
    assert_alone_after_failure(executor_of(engine))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_failure_of_two_together_blames_nobody(pair: tuple[int, int]) -> None:
    """Each of them runs well alone, so that nobody fails, and every request gets on by a token for each failure."""
    engine = failing_engine(lambda plan: {*pair} <= {*requests_of(plan)})
    choices = run_six(engine)
    assert executor_of(engine).failed
    for request in range(1, 7):
        choice = choices[request, 0]
        assert (choice.finish, choice.error) == (FinishReason.LENGTH, None)
        assert choice.token_ids == expected_tokens(prompt(request - 1), TOKENS, WINDOWS)
    assert len(executor_of(engine).failed) <= TOKENS + max(LENGTHS)
    assert_alone_after_failure(executor_of(engine))


def test_a_failure_that_vanishes_blames_nobody() -> None:
    """Whichever step of several fails once, all requests run on; who had a step alone is to blame for its failure."""
    never = failing_engine(lambda _: False)
    run_six(never)
    for at in range(len(executor_of(never).plans)):
        engine = failing_engine(lambda plan, at=at: plan.step == at)  # type: ignore[misc]
        choices = run_six(engine)
        (failed,) = executor_of(engine).failed
        for request in range(1, 7):
            choice, wanted = choices[request, 0], expected_tokens(prompt(request - 1), TOKENS, WINDOWS)
            if requests_of(failed) == [request]:
                assert (choice.finish, choice.error) == (FinishReason.ERROR, BROKE)
                assert choice.token_ids == wanted[: len(choice.token_ids)]
            else:
                assert (choice.finish, choice.error, choice.token_ids) == (FinishReason.LENGTH, None, wanted)
        assert_alone_after_failure(executor_of(engine))


@dataclass(frozen=True)
class Asked:
    """A request of a mixture: its prompt, how many tokens it wants, and how many choices."""

    prompt: list[int]
    count: int
    n: int


class Mixture:
    """Requests that arrive and are aborted while some of them, some pairs of them and some steps fail."""

    def __init__(self, seed: int, *, guesses: bool) -> None:
        self.draw = random.Random(seed)
        self.bad = {request: self.draw.randrange(12) for request in self.draw.sample(range(1, 30), 6)}
        self.pairs = [{*self.draw.sample(range(1, 30), 2)} for _ in range(3)]
        self.faults = {*self.draw.sample(range(60), 4)}
        self.asked: dict[int, Asked] = {}
        self.aborted: set[int] = set()
        drafter = ReplayDrafter(self._answer, 0.7, VOCABULARY, seed)
        speculator = Speculator(drafter, 3, VOCABULARY) if guesses else None
        self.engine = failing_engine(self._fails, pages=40, tokens=24, speculator=speculator)

    def _answer(self, request: Request) -> Sequence[int]:
        return expected_tokens(self.asked[request.group].prompt, 12, WINDOWS)

    def _fails(self, plan: StepPlan) -> bool:
        here = {*requests_of(plan)}
        return (
            any(runs(plan, *one) for one in self.bad.items())
            or any(pair <= here for pair in self.pairs)
            or (plan.step in self.faults and len(here) > 1)
        )

    def run(self) -> Choices:
        """Run all requests to their ends."""
        engine, draw, choices = self.engine, self.draw, Choices()
        while len(self.asked) < 16 or engine.has_work:
            if len(self.asked) < 16 and draw.random() < 0.5:
                prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 14))]
                asked = Asked(prompt, draw.randint(1, 12), draw.choice((1, 1, 3)))
                self.asked[
                    engine.add(GenerationRequest(prompt, replace(GREEDY, max_tokens=asked.count, n=asked.n)))
                ] = asked
            if self.asked and draw.random() < 0.1:
                victim = draw.choice(list(self.asked))
                ended = engine.abort(victim)
                self.aborted |= {victim} if ended else set()
                take(choices, ended)
            executor_of(engine).poison(engine.kv_cache_manager)
            take(choices, engine.step())
            engine.kv_cache_manager.check()
            assert engine.scheduler.steps < 3_000, "it does not end"
        return choices


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_failures_ends_every_request(seed: int, guesses: bool) -> None:
    """Failing requests, failing pairs and passing faults, with choices, arrivals, aborts, few pages and guesses."""
    mixture = Mixture(seed, guesses=guesses)
    choices = mixture.run()
    assert_nothing_held(mixture.engine)
    for request, asked in mixture.asked.items():
        for choice in range(asked.n):
            told = choices[request, choice]
            assert told.token_ids == expected_tokens(asked.prompt, asked.count, WINDOWS)[: len(told.tokens)]
            # The further choices of a prompt that fails end with it.
            blamed = request + choice in mixture.bad or request in mixture.bad
            assert told.finish is not FinishReason.LENGTH or len(told.tokens) == asked.count
            assert told.finish is not FinishReason.ABORT or request in mixture.aborted
            assert told.finish is not FinishReason.ERROR or blamed
            assert told.error == (BROKE if told.finish is FinishReason.ERROR else None)
    speculator = mixture.engine.speculator
    assert not guesses or (speculator is not None and speculator.accepted_tokens > 0)
    assert any(told.error == BROKE for told in choices.values())


def test_nobody_new_runs_before_the_isolated_requests_are_cleared() -> None:
    engine = failing_engine(lambda plan: plan.step == 1)
    first = [engine.add(GenerationRequest(prompt(number), replace(GREEDY, max_tokens=TOKENS))) for number in (0, 2, 5)]
    engine.step()
    assert engine.step() == []
    late = engine.add(GenerationRequest([7], replace(GREEDY, max_tokens=TOKENS)))
    for _ in range(3):
        engine.step()
    engine.step()
    plans = executor_of(engine).plans
    assert [requests_of(plan) for plan in plans] == [first, first, *([one] for one in first), [*first, late]]


# -- the class alone --------------------------------------------------------------------------------------------------


def isolation_around(count: int) -> tuple[Engine, FailureIsolation, StepPlan]:
    """An engine with a plan for so many requests, and an isolation of its own over the engine's scheduler."""
    engine = null_engine()
    for number in range(count):
        engine.add(GenerationRequest([number + 1] * 3, replace(GREEDY, max_tokens=4)))
    plan = engine.plan()
    assert plan is not None
    return engine, FailureIsolation(engine.scheduler), plan


def test_a_request_that_was_alone_is_returned_and_not_isolated() -> None:
    engine, isolation, plan = isolation_around(1)
    assert isolation.isolate(plan, engine.requests, RuntimeError()) is engine.requests[1]
    assert not isolation.active
    assert not engine.scheduler.running, "the step is undone"


def test_a_request_that_was_alone_and_has_ended_since_is_not_returned() -> None:
    engine, isolation, plan = isolation_around(1)
    engine.abort(1)
    assert isolation.isolate(plan, engine.requests, RuntimeError()) is None
    assert not isolation.active


def test_several_are_isolated_and_planned_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    engine, isolation, plan = isolation_around(3)
    assert isolation.isolate(plan, engine.requests, RuntimeError("it\nbroke")) is None
    (record,) = caplog.records
    assert record.name == "ridgeline.engine.suspects"
    assert record.getMessage() == f"a step of 3 requests failed, so each request now runs in its own step: {BROKE}"
    for request in (1, 2, 3):
        assert isolation.active
        alone = isolation.schedule(0)
        assert alone is not None
        assert requests_of(alone) == [request]
        engine.accept(alone, [Sampled(1)])
        isolation.clear()
    assert not isolation.active


def test_a_request_stays_isolated_until_it_is_past_the_step_that_failed() -> None:
    """Preempted since, it starts again, and is not cleared by positions that it had computed before."""
    engine, isolation, _ = isolation_around(2)
    for request in engine.requests.values():
        engine.scheduler.preempt(request)
    engine.scheduler.limits = Limits(chunk=2)
    plan = engine.scheduler.schedule(0)
    assert plan is not None
    engine.accept(plan, [])
    plan = engine.plan()  # runs the third position of each
    assert plan is not None
    isolation.isolate(plan, engine.requests, RuntimeError())
    ran = []
    while isolation.active:
        alone = isolation.schedule(0)
        assert alone is not None
        ran += [(item.request, item.start, len(item.tokens)) for item in alone.items]
        engine.accept(alone, [Sampled(1)] if alone.logit_rows else [])
        isolation.clear()
    assert ran == [(1, 0, 2), (1, 2, 1), (2, 0, 2), (2, 2, 1)]


def test_requests_that_end_are_isolated_no_more() -> None:
    engine, isolation, plan = isolation_around(3)
    isolation.isolate(plan, engine.requests, RuntimeError())
    engine.abort(1)
    alone = isolation.schedule(0)
    assert alone is not None
    assert requests_of(alone) == [2]
    engine.accept(alone, [Sampled(1)])
    isolation.clear()
    assert isolation.active
    engine.abort(3)
    assert not isolation.active


def test_requests_that_ended_before_the_failure_are_not_isolated() -> None:
    """The last one is isolated, not to blame: it was not alone in the step."""
    engine, isolation, plan = isolation_around(3)
    engine.abort(1)
    engine.abort(2)
    assert isolation.isolate(plan, engine.requests, RuntimeError()) is None
    alone = isolation.schedule(0)
    assert alone is not None
    assert requests_of(alone) == [3]
