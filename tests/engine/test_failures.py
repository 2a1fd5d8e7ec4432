"""What goes wrong goes wrong alone: failing steps, bad logits, aborts, refusals. And nothing depends on company."""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.collecting import Choices, finish_all, take
from engine.null_model import GREEDY, VOCABULARY, NullExecutor, expected_tokens, null_engine
from engine.small_models import LLAMA, MIXED, assert_nothing_held, poison_free_pages, small_model, uncached_answer
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import CAUSAL, sliding_window
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import PageCopy
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import PlanItem, PromptScoring, StepPlan
from support.engines import EagerRunner, token_engine

WINDOWS = (None, 6)


def greedy(count: int | None, n: int = 1) -> SamplingParams:
    return dataclasses.replace(GREEDY, max_tokens=count, n=n)


# -- steps that fail --------------------------------------------------------------------------------------------------


class Failing(NullExecutor):
    """Raises when a step runs one position of one request, or at one step: before, or after having written."""

    poisoned: tuple[int, int] | None = None  # request and position
    at_step: int | None = None
    late = False
    failures = 0

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        fails = plan.step == self.at_step or any(self._hit(item) for item in plan.items)
        ends = dict(self.ends)
        if not fails or self.late:
            sampled = super().execute(plan, rows)
        if fails:
            self.failures += 1
            self.ends = {**self.ends, **ends}
            raise RuntimeError("something\n  broke")
        return sampled

    def _hit(self, item: PlanItem) -> bool:
        if self.poisoned is None or item.request != self.poisoned[0]:
            return False
        return item.start <= self.poisoned[1] < item.start + len(item.tokens)


def failing_engine(*, prefix_cache: bool = True, tokens: int = 64, chunk: int | None = 5) -> tuple[Engine, Failing]:
    executor = Failing(WINDOWS, 60, 4)
    limits = Limits(tokens=tokens, requests=6, chunk=chunk)
    return null_engine(windows=WINDOWS, pages=60, limits=limits, prefix_cache=prefix_cache, executor=executor), executor


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("position", [0, 7, 12, 13, 19])
def test_a_request_that_breaks_its_steps_fails_alone(position: int, prefix_cache: bool, late: bool) -> None:
    """At its first position, in the middle of its prompt, at its end, or while it decodes."""
    engine, executor = failing_engine(prefix_cache=prefix_cache)
    executor.late = late
    prompts = {
        engine.add(GenerationRequest([*range(length)], greedy(9))): [*range(length)] for length in (3, 13, 14, 8, 20)
    }
    bad = list(prompts)[1]
    executor.poisoned = (bad, position)
    choices = finish_all(engine, lambda _: executor.poison(engine.kv_cache_manager))
    for request, prompt in prompts.items():
        choice = choices[request, 0]
        if request == bad:
            assert (choice.finish, choice.error) == (FinishReason.ERROR, "RuntimeError: something broke")
            assert choice.token_ids == expected_tokens(prompt, 9, WINDOWS)[: max(0, position - 12)]
        else:
            assert (choice.finish, choice.error) == (FinishReason.LENGTH, None)
            assert choice.token_ids == expected_tokens(prompt, 9, WINDOWS)
    assert 1 <= executor.failures <= 3, "the one to blame is found at once"
    assert_nothing_held(engine)


@pytest.mark.parametrize("position", [2, 12])
def test_a_prompt_that_fails_ends_all_its_choices(position: int) -> None:
    engine, executor = failing_engine()
    other = engine.add(GenerationRequest([5] * 4, greedy(9)))
    bad = engine.add(GenerationRequest([*range(13)], greedy(9, n=3)))
    executor.poisoned = (bad, position)
    choices = finish_all(engine)
    assert choices[other, 0].token_ids == expected_tokens([5] * 4, 9, WINDOWS)
    assert [choices[bad, choice].finish for choice in range(3)] == [FinishReason.ERROR] * 3
    assert_nothing_held(engine)


def test_a_step_of_several_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, in a line that says why: each of them alone runs well, and nobody would hear of it."""
    engine, executor = failing_engine()
    executor.at_step = 1
    for number in (1, 2):
        engine.add(GenerationRequest([number] * 4, greedy(5)))
    choices = finish_all(engine)
    assert {choice.error for choice in choices.values()} == {None}
    (line,) = [record.getMessage() for record in caplog.records if record.name == "ridgeline.engine.suspects"]
    assert (
        line == "a step of 2 requests failed, so each request now runs in its own step: RuntimeError: something broke"
    )


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("tokens", [2, 64])
def test_a_failure_that_does_not_come_again_costs_nobody_a_token(tokens: int, late: bool) -> None:
    """At any step, a fork's copy under way or not: whoever was in it starts again."""
    copies_under_way = 0
    for at_step in range(36):
        engine, executor = failing_engine(tokens=tokens)
        executor.late, executor.at_step = late, at_step
        forking = engine.add(GenerationRequest([*range(6)], greedy(9, n=3)))
        work = {forking: ([*range(6)], 3)}
        work |= {engine.add(GenerationRequest([number] * 5, greedy(12))): ([number] * 5, 1) for number in (1, 2)}

        def before(step: int, engine: Engine = engine, executor: Failing = executor) -> None:
            nonlocal copies_under_way
            executor.poison(engine.kv_cache_manager)
            copies_under_way += engine.scheduler.steps == executor.at_step and bool(engine.kv_cache_manager.copies)

        choices = finish_all(engine, before)
        for request, (prompt, n) in work.items():
            for choice in range(n):
                own = choices[request, choice]
                assert own.token_ids == expected_tokens(prompt, 9 if n > 1 else 12, WINDOWS)[: len(own.tokens)]
                if own.error is None:
                    assert own.finish is FinishReason.LENGTH
                else:  # alone in its step, it was to blame
                    assert (own.error, executor.failures) == ("RuntimeError: something broke", 1)
        assert len({request for (request, _), own in choices.items() if own.error is not None}) <= 1
        assert_nothing_held(engine)
    assert copies_under_way > 0


def test_tables_that_a_failed_step_should_have_forgotten_are_forgotten_later() -> None:
    engine, executor = failing_engine()
    first = engine.add(GenerationRequest([1, 2], greedy(2)))
    engine.add(GenerationRequest([3, 4], greedy(12)))
    engine.add(GenerationRequest([5, 6], greedy(12)))
    engine.step()
    engine.step()
    assert first in executor.tables
    assert first not in engine.requests
    executor.at_step = 2
    finish_all(engine)
    assert executor.failures == 1
    assert first not in executor.tables


class NaNAt(EagerRunner):
    """A runner whose logits are NaN for one row of one request, or +inf, or nothing but -inf."""

    bad: tuple[int, int, float] | None = None  # request, position, value

    def forward(self, plan: StepPlan) -> Tensor:
        logits_RV = super().forward(plan).clone()
        row = 0
        for item in plan.items:
            for offset in item.logits:
                if self.bad is not None and (item.request, item.start + offset) == self.bad[:2]:
                    logits_RV[row] = self.bad[2]
                row += 1
        return logits_RV


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model(LLAMA, 48)


@pytest.mark.parametrize(("value", "why"), [("nan", "NaN"), ("inf", "+inf"), ("-inf", "-inf")])
@pytest.mark.parametrize("sampled", [0, 3])
def test_bad_logits_end_one_request(model: Model, value: str, why: str, sampled: int) -> None:
    engine = token_engine(model, runner=NaNAt)
    assert isinstance(engine.executor, NaNAt)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    requests = [engine.add(GenerationRequest(prompt, greedy(6))) for prompt in prompts]
    engine.executor.bad = (requests[1], 4 + sampled, float(value))
    choices = finish_all(engine, lambda _: poison_free_pages(engine))
    for request, prompt in zip(requests, prompts, strict=True):
        choice, wanted = choices[request, 0], uncached_answer(model, prompt, 6).tokens
        if request == requests[1]:
            assert choice.finish is FinishReason.ERROR
            assert why in (choice.error or "")
            assert choice.token_ids == wanted[:sampled]
        else:
            assert (choice.finish, choice.token_ids) == (FinishReason.LENGTH, wanted)
    assert_nothing_held(engine)


def test_bad_logits_of_a_prompt_end_all_its_choices_and_those_of_one_choice_only_it(model: Model) -> None:
    for victim, ended in ((0, 3), (1, 1)):
        engine = token_engine(model, runner=NaNAt)
        assert isinstance(engine.executor, NaNAt)
        request = engine.add(GenerationRequest([1, 2, 3], greedy(6, n=3)))
        engine.executor.bad = (request + victim, 2, float("nan"))
        choices = finish_all(engine)
        errors = [choices[request, choice].error for choice in range(3)]
        assert sum(error is not None for error in errors) == ended
        assert_nothing_held(engine)


# -- aborts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [2, 6])
def test_an_abort_at_any_point_takes_one_request_and_all_its_pages(requests: int) -> None:
    """Waiting, in the middle of its prompt, before a fork's copy has run, decoding, finished."""
    points: set[str] = set()
    for at in range(24 if requests > 2 else 34):
        limits = Limits(tokens=12, requests=requests, chunk=5)
        engine = null_engine(windows=WINDOWS, pages=18, limits=limits)
        assert isinstance(engine.executor, NullExecutor)
        others = {engine.add(GenerationRequest([number] * 6, greedy(9))): [number] * 6 for number in (1, 2)}
        victim = engine.add(GenerationRequest([*range(14)], greedy(6, n=3)))
        choices: Choices = {}
        for _ in range(at):
            engine.executor.poison(engine.kv_cache_manager)
            take(choices, engine.step())
        own = [r for r in engine.requests.values() if victim <= r.id < victim + 3]
        points |= {"copy"} if engine.kv_cache_manager.copies else set()
        points |= {_point(engine, r.id) for r in own} or {"finished"}
        ended = engine.abort(victim)
        assert [event.finish for event in ended] == [FinishReason.ABORT] * len(own)
        take(choices, ended)
        assert engine.abort(victim) == []
        engine.kv_cache_manager.check()
        before = {key: list(choice.token_ids) for key, choice in choices.items() if key[0] == victim}
        rest = finish_all(engine, lambda _, engine=engine: engine.executor.poison(engine.kv_cache_manager))  # type: ignore[misc]
        assert not any(request == victim for request, _ in rest)
        for request, prompt in others.items():
            tokens = [t for source in (choices, rest) if (request, 0) in source for t in source[request, 0].token_ids]
            assert tokens == expected_tokens(prompt, 9, WINDOWS)
        for tokens in before.values():
            assert tokens == expected_tokens([*range(14)], 6, WINDOWS)[: len(tokens)]
        assert_nothing_held(engine)
    assert points >= {"waiting", "prefill", "decode", "finished"}
    assert requests == 2 or points >= {"copy", "unforked"}


def _point(engine: Engine, request: int) -> str:
    own = engine.requests[request]
    if own in engine.scheduler.running:
        return "prefill" if own.output_length == 0 else "decode"
    return "waiting" if own in engine.scheduler.waiting else "unforked"


def test_to_abort_what_is_not_there_is_no_error() -> None:
    engine = null_engine()
    assert engine.abort(1) == []
    request = engine.add(GenerationRequest([1], greedy(1)))
    finish_all(engine)
    assert engine.abort(request) == []
    assert engine.abort(99) == []
    assert engine.step() == []


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ([], GREEDY, "empty"),
        ([1, VOCABULARY], GREEDY, f"token id {VOCABULARY} is out of range"),
        ([1, -1], GREEDY, "token id -1 is out of range"),
        ([1, 2.5], GREEDY, "give integers"),
        ("text", GREEDY, "give integers"),
        ([1] * 40, GREEDY, "the prompt has 40 tokens, but the model's context is 40"),
        ([1] * 32, GREEDY, "the prompt has 32 tokens, but the KV cache holds 32"),
        ([1], dataclasses.replace(GREEDY, stop=("END",)), "stop strings need a tokenizer"),
        (
            [1],
            dataclasses.replace(GREEDY, logit_bias={VOCABULARY: 1.0}),
            f"logit_bias has the key {VOCABULARY}; give token ids from 0 to {VOCABULARY - 1}",
        ),
        ([1], dataclasses.replace(GREEDY, stop_token_ids=(VOCABULARY,)), f"stop_token_ids has the id {VOCABULARY}"),
        ([1], dataclasses.replace(GREEDY, logprobs=VOCABULARY + 1), f"logprobs is {VOCABULARY + 1}"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_and_leaves_nothing(
    prompt: list[int], params: SamplingParams, says: str
) -> None:
    engine = null_engine(pages=8, context=40)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        engine.add(GenerationRequest(prompt, params))
    assert "\n" not in str(refused.value)
    assert not engine.has_work
    assert_nothing_held(engine)


@pytest.mark.parametrize(("name", "value"), [("tokens", 0), ("requests", 0), ("chunk", -5), ("tokens", 10**9)])
def test_limits_that_make_no_sense_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"limit of {name} is {value}: give 1 to"):
        Limits(**{name: value})


@pytest.mark.parametrize(("context", "pages", "room"), [(40, 100, 30), (1000, 8, 22)])
def test_without_a_limit_a_request_runs_to_the_end_of_the_context_or_of_the_pool(
    context: int, pages: int, room: int
) -> None:
    for count in (None, 500):
        engine = null_engine(pages=pages, context=context)
        request = engine.add(GenerationRequest([*range(10)], greedy(count)))
        choice = finish_all(engine)[request, 0]
        assert (choice.finish, len(choice.tokens)) == (FinishReason.LENGTH, room)
        assert choice.token_ids == expected_tokens([*range(10)], room)


# -- plans as text ----------------------------------------------------------------------------------------------------


def plan_of(line: str) -> StepPlan:
    """The plan that to_json wrote."""

    def pages(groups: list[list[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, groups))

    def item_of(fields: dict[str, Any]) -> PlanItem:
        fields |= {name: tuple(fields[name]) for name in ("tokens", "logits", "encoder") if name in fields}
        if "scored" in fields:
            scored = fields["scored"]
            fields["scored"] = PromptScoring(**scored | {"tokens": tuple(scored["tokens"])})
        return PlanItem(**fields | {"pages": pages(fields["pages"])})

    values = json.loads(line)
    items = tuple(map(item_of, values["items"]))
    copies = tuple(PageCopy(**copy) for copy in values["copies"])
    return StepPlan(values["step"], items, copies, tuple(values["blank"]), tuple(values["forget"]))


def test_a_plan_survives_as_json() -> None:
    seen: list[StepPlan] = []

    class Keeping(NullExecutor):
        def check(self, plan: StepPlan, rows: Sequence[SampleRow]) -> None:
            super().check(plan, rows)
            seen.append(plan)

    engine = null_engine(windows=WINDOWS, pages=20, limits=Limits(chunk=6), executor=Keeping(WINDOWS, 20, 4))
    engine.add(GenerationRequest([*range(14)], greedy(8, n=3)))
    engine.add(GenerationRequest([*range(13)], greedy(2)))
    finish_all(engine)
    assert any(plan.copies for plan in seen)
    assert any(plan.forget for plan in seen)
    assert any(plan.blank for plan in seen)
    seen.append(StepPlan(9, (PlanItem(1, 0, (5, 6), ((1,),), True, (1,), (7, 8, 9), 3, PromptScoring(0, (6,), 2)),)))
    for plan in seen:
        line = plan.to_json()
        assert "\n" not in line
        assert plan_of(line) == plan
        assert plan_of(line).work((CAUSAL, sliding_window(6))) == plan.work((CAUSAL, sliding_window(6)))


# -- choices and seeds ------------------------------------------------------------------------------------------------

SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, top_k=30, repetition_penalty=1.1, frequency_penalty=0.3, seed=7, max_tokens=14
)


def sampled_alone(model: Model, prompt: Sequence[int], params: SamplingParams, choice: int = 0) -> list[int]:
    engine = token_engine(model)
    request = engine.add(GenerationRequest(prompt, dataclasses.replace(params, n=1)))
    engine.requests[request].choice = choice
    return finish_all(engine)[request, choice].token_ids


@pytest.mark.parametrize("config", [LLAMA, MIXED], ids=["full", "mixed"])
@pytest.mark.parametrize("length", [1, 6, 16, 17])
def test_choices_equal_separate_runs(config: dict[str, object], length: int) -> None:
    model = small_model(config)
    prompt, params = [*range(3, 3 + length)], dataclasses.replace(SAMPLED, max_tokens=7)
    separate = [sampled_alone(model, prompt, params, choice) for choice in range(3)]
    assert len(set(map(tuple, separate))) > 1
    for page_size in (1, 4, 16):
        engine = token_engine(model, page_size=page_size)
        request = engine.add(GenerationRequest(prompt, dataclasses.replace(params, n=3)))
        choices = finish_all(engine, lambda _, engine=engine: poison_free_pages(engine))
        assert [choices[request, choice].token_ids for choice in range(3)] == separate
        assert_nothing_held(engine)


def test_choices_share_their_full_pages() -> None:
    engine = null_engine(windows=(None,), page_size=4)
    request = engine.add(GenerationRequest([*range(15)], greedy(8, n=3)))
    engine.step()
    tables = [engine.kv_cache_manager.tables[request + choice].pages[0] for choice in range(3)]
    assert [table[:3] for table in tables] == [tables[0][:3]] * 3
    assert len({table[3] for table in tables}) == 3
    assert len(engine.kv_cache_manager.copies) == 2
    choices = finish_all(engine)
    assert [choices[request, choice].token_ids[-7:] for choice in range(3)] == [
        expected_tokens([*range(15)], 8)[-7:]
    ] * 3


def test_a_sampled_request_says_the_same_in_any_company(model: Model) -> None:
    """Alone, among neighbours, in chunks, with cached prefixes, preempted."""
    prompt = [5, 9, 2, 7, 7, 1, 30, 12, 4, 4, 19, 8, 3]
    wanted = sampled_alone(model, prompt, SAMPLED)
    assert sampled_alone(model, prompt, dataclasses.replace(SAMPLED, seed=8)) != wanted
    preempted = 0
    for limits, positions, cache in (
        (Limits(), 1024, False),
        (Limits(chunk=1), 1024, True),
        (Limits(chunk=5), 1024, False),
        (Limits(), 44, False),
        (Limits(chunk=3), 44, True),
    ):
        engine = token_engine(model, page_size=2, limits=limits, positions=positions, prefix_cache=cache)
        engine.add(GenerationRequest(prompt[:9], greedy(20)))
        engine.add(GenerationRequest([4, 4], dataclasses.replace(SAMPLED, seed=1, max_tokens=20)))
        request = engine.add(GenerationRequest(prompt, SAMPLED))
        own = engine.requests[request]
        assert finish_all(engine, lambda _, engine=engine: poison_free_pages(engine))[request, 0].token_ids == wanted
        assert (own.preemptions > 0) <= (positions == 44)
        preempted += own.preemptions
    assert preempted > 0


def test_without_a_seed_two_requests_differ(model: Model) -> None:
    params = SamplingParams(max_tokens=20)
    engine = token_engine(model)
    requests = [engine.add(GenerationRequest([1, 2, 3], params)) for _ in range(2)]
    choices = finish_all(engine)
    assert choices[requests[0], 0].token_ids != choices[requests[1], 0].token_ids


def test_every_logits_row_is_told_its_position_and_its_choice() -> None:
    seen: dict[tuple[int, int], list[int]] = {}

    class Watching(NullExecutor):
        def check(self, plan: StepPlan, rows: Sequence[SampleRow]) -> None:
            super().check(plan, rows)
            for row in rows:
                assert row.generated == row.position - 5
                seen.setdefault((row.seed, row.choice), []).append(row.position)

    engine = null_engine(limits=Limits(chunk=2), executor=Watching((None,), 64, 4))
    engine.add(GenerationRequest([*range(5)], dataclasses.replace(greedy(4, n=2), seed=11)))
    finish_all(engine)
    assert seen == {(11, 0): [5, 6, 7, 8], (11, 1): [5, 6, 7, 8]}


def test_torch_is_not_asked_for_gradients(model: Model) -> None:
    engine = token_engine(model)
    engine.add(GenerationRequest([1, 2, 3], greedy(2)))
    finish_all(engine)
    assert isinstance(engine.executor, Runner)
    assert not engine.executor.store.buffer.requires_grad
    assert torch.is_grad_enabled()
