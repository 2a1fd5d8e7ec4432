"""The engine by itself: its clock, what it tells of its work, a step in three parts, prompts that are not copied."""

import ast
import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.collecting import finish_all
from engine.folders import write_model
from engine.null_model import GREEDY, VOCABULARY, NullExecutor, expected_tokens, layout_of, null_engine
from engine.small_models import assert_nothing_held
from ridgeline import engine as engine_room
from ridgeline.core.ops.work import CROSS
from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.prompt_tokens import NamedPrompt
from ridgeline.engine.request import FinishReason
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import PlanItem, StepPlan


def greedy(count: int, n: int = 1) -> SamplingParams:
    return dataclasses.replace(GREEDY, max_tokens=count, n=n)


# -- the clock --------------------------------------------------------------------------------------------------------


def test_nothing_in_the_engine_reads_the_time_by_itself() -> None:
    """`time` is named below engine/ as the default of the engine's clock, where ranks measure what joins them, before
    there is an engine, and where one on another machine is told the caller's clock; torch takes a time limit of theirs
    as a timedelta. What waits for another engine's pages goes by the world's clock, which is at the other end."""
    named: list[str] = []
    files = sorted(Path(str(engine_room.__file__)).parent.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        if file.parent.name == "transfer":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
                named.append(f"{file.name} time.{node.attr}")
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
                named.append(f"{file.name} from {node.module}")
    measured = ["leader.py time.perf_counter"] * 2
    told = ["engine_process.py time.perf_counter_ns"]
    assert named == ["engine.py time.perf_counter_ns", *measured, "rank_processes.py from datetime", *told]


def test_moments_are_those_of_the_clock() -> None:
    now = itertools.count(100, 10)
    engine = null_engine(limits=Limits(requests=1), clock=lambda: next(now))
    first, second = engine.add(GenerationRequest([1, 2], greedy(2))), engine.add(GenerationRequest([3], greedy(1)))
    events = {event.request: event for _ in range(3) for event in engine.step()}
    one, two = events[first].timing, events[second].timing
    assert (one.arrived, two.arrived) == (100, 110)
    for timing in (one, two):
        assert timing.scheduled is not None
        assert timing.first_token is not None
        assert timing.finished is not None
        assert timing.arrived < timing.scheduled < timing.first_token <= timing.finished
    assert two.scheduled is not None
    assert one.finished is not None
    assert two.scheduled > one.finished
    assert one.queued == pytest.approx((one.scheduled - 100) * 1e-9)  # type: ignore[operator]
    assert one.time_to_first_token == pytest.approx((one.first_token - 100) * 1e-9)  # type: ignore[operator]
    assert events[first].at == one.finished


def test_a_clock_that_stands_still_or_runs_backwards_changes_no_plan() -> None:
    def plans(clock: Any) -> list[str]:
        seen: list[str] = []
        engine = null_engine(
            pages=20, limits=Limits(tokens=12, chunk=5), on_step=lambda r: seen.append(r.plan.to_json()), clock=clock
        )
        for number in range(6):
            engine.add(GenerationRequest([number] * (number + 3), greedy(14, n=1 + number % 2)))
        finish_all(engine)
        assert engine.stats.preemptions > 0
        return seen

    down = itertools.count(10**9, -7)
    assert plans(lambda: 5) == plans(lambda: next(down)) == plans(itertools.count().__next__)


# -- what it tells ----------------------------------------------------------------------------------------------------


class Counting(NullExecutor):
    """Counts how often each position of each request runs."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__((None,), pages, page_size)
        self.runs: dict[tuple[int, int], int] = {}

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        for item in plan.items:
            for position in range(item.start, item.start + len(item.tokens)):
                self.runs[item.request, position] = self.runs.get((item.request, position), 0) + 1
        return super().execute(plan, rows)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_wasted_tokens_are_those_that_ran_again(prefix_cache: bool) -> None:
    """With a prefix cache a preempted request may find pages of its own: what it finds was not wasted."""
    executor = Counting(24, 2)
    engine = null_engine(
        pages=24, page_size=2, limits=Limits(tokens=16, requests=5), prefix_cache=prefix_cache, executor=executor
    )
    for number in range(12):
        engine.add(GenerationRequest([number % 3] * 7 + [number], greedy(12)))
    finish_all(engine)
    stats = engine.stats
    assert stats.preemptions > 0
    assert stats.wasted_tokens == sum(count - 1 for count in executor.runs.values()) > 0
    assert stats.computed_tokens == sum(executor.runs.values())
    assert (stats.reused_tokens > 0) == prefix_cache
    assert (stats.output_tokens, stats.dropped_tokens, stats.running, stats.waiting) == (12 * 12, 0, 0, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.steps = 0  # type: ignore[misc]


def test_cached_counts_and_timing_reach_the_caller(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path)), EngineSettings(kv_bytes=4e6))
    prompt = list(range(40))
    for cached in (0, 32):
        (completion,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
        assert completion.cached == cached
        timing = completion.choices[0].timing
        assert timing is not None
        assert timing.time_to_first_token is not None
        assert timing.seconds is not None
        assert 0 < timing.time_to_first_token <= timing.seconds
    events = list(llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)))
    assert [event.cached for event in events] == [32] * 3
    assert events[-1].output_tokens == 3
    assert events[0].at < events[1].at


# -- a step in three parts --------------------------------------------------------------------------------------------


def test_a_step_is_plan_execute_accept() -> None:
    whole, parts = null_engine(), null_engine()
    for engine in (whole, parts):
        engine.add(GenerationRequest([1, 2, 3], greedy(6, n=2)))
    while whole.has_work:
        plan = parts.plan()
        assert plan is not None
        told = parts.accept(plan, parts.execute(plan))
        assert [(e.request, e.choice, e.token, e.finish) for e in told] == [
            (e.request, e.choice, e.token, e.finish) for e in whole.step()
        ]
    assert not parts.has_work
    assert parts.plan() is None


def test_an_observer_sees_a_step_before_its_tokens_are_accepted() -> None:
    records: list[StepRecord] = []
    known: list[tuple[int, int]] = []

    def observe(record: StepRecord) -> None:
        records.append(record)
        (row,) = record.rows
        known.append((engine.requests[1].known, row.position))

    now = itertools.count(0, 5)
    engine = null_engine(on_step=observe, clock=lambda: next(now))
    engine.add(GenerationRequest([1, 2, 3], greedy(3)))
    finish_all(engine)
    assert known == [(3, 3), (4, 4), (5, 5)]
    assert [record.work.tokens for record in records] == [3, 1, 1]
    assert [record.seconds for record in records] == [pytest.approx(5e-9)] * 3
    assert all(isinstance(outcome, Sampled) for record in records for outcome in record.outcomes)


def test_what_ends_between_plan_and_accept_is_dropped() -> None:
    engine = null_engine()
    ids = [engine.add(GenerationRequest([number] * 6, greedy(4, n=2))) for number in range(3)]
    engine.step()
    plan = engine.plan()
    assert plan is not None
    assert plan.copies
    outcomes = engine.execute(plan)
    engine.abort(ids[1])
    assert {event.request for event in engine.accept(plan, outcomes)} == {ids[0], ids[2]}
    finish_all(engine)
    assert_nothing_held(engine)


class Guessing(NullExecutor):
    """Gives several tokens at once, as a speculation that was right would."""

    ahead = 3

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        super().execute(plan, rows)
        return [[Sampled(token) for token in self.next(row)] for row in rows]

    def next(self, row: SampleRow) -> list[int]:
        said = expected_tokens(self.prompts[row.seed], row.generated + self.ahead)
        return said[row.generated :]

    prompts: dict[int, list[int]]


@pytest.mark.parametrize("pages", [12, 64])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_several_tokens_an_item(pages: int, prefix_cache: bool) -> None:
    """They are known and not computed: the law has the next step run them, and nothing is sampled past the limit."""
    executor = Guessing((None,), pages, 4)
    executor.prompts = {seed: [seed] * (3 + seed) for seed in range(5)}
    engine = null_engine(pages=pages, executor=executor, prefix_cache=prefix_cache, limits=Limits(chunk=5))
    ids = {
        engine.add(GenerationRequest(prompt, dataclasses.replace(greedy(10), seed=seed))): prompt
        for seed, prompt in executor.prompts.items()
    }
    choices = finish_all(engine)
    for request, prompt in ids.items():
        assert choices[request, 0].token_ids == expected_tokens(prompt, 10)
        assert choices[request, 0].finish is FinishReason.LENGTH
    assert (engine.stats.preemptions > 0) == (pages == 12)
    assert engine.stats.output_tokens == 50
    assert engine.stats.dropped_tokens == 5 * 2, "four steps of three tokens, of which ten are wanted"
    assert_nothing_held(engine)


def test_rows_of_one_item_have_positions_of_their_own() -> None:
    engine = null_engine()
    request = engine.add(GenerationRequest([1, 2, 3, 4, 5], greedy(9)))
    plan = engine.plan()
    assert plan is not None
    several = StepPlan(0, (structs.replace(plan.items[0], tokens=(1, 2, 3, 4, 5, 8, 9), logits=(4, 5, 6)),))
    rows = engine.rows(several)
    assert [(row.position, row.generated) for row in rows] == [(5, 0), (6, 1), (7, 2)]
    assert (rows[2].position, len(rows)) == (7, 3)
    engine.abort(request)


def test_a_guess_that_was_wrong_is_not_computed() -> None:
    """An item runs two guessed positions with three logit rows, of which one guess was right: it got two tokens."""
    engine = null_engine()
    request = engine.requests[engine.add(GenerationRequest([1, 2, 3, 4], greedy(9)))]
    engine.step()
    assert (request.known, request.computed) == (5, 4)
    plan = engine.plan()
    assert plan is not None
    assert engine.kv_cache_manager.grow(request.id, 7)
    item = PlanItem(
        request.id, 4, (request.output[0], 8, 9), engine.kv_cache_manager.unsent(request.id), False, (0, 1, 2)
    )
    events = engine.accept(StepPlan(plan.step, (item,)), [[Sampled(8), Sampled(7)]])
    assert [event.token.token for event in events if event.token] == [8, 7]
    assert (request.known, request.computed) == (7, 6)
    engine.abort(1)
    assert_nothing_held(engine)


class Constant:
    """An executor that says 1."""

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        return [Sampled(1) for item in plan.items if item.logits]


def test_nobody_new_gets_ahead_of_those_whose_step_failed() -> None:
    """A suspect lacks pages that a long prompt is owed. The prompt goes on; who has just come waits, though it is small
    enough to fit."""
    engine = null_engine(pages=10, page_size=4, limits=Limits(tokens=3), executor=Constant())  # type: ignore[arg-type]
    suspects = [engine.add(GenerationRequest([2] * 4, greedy(20))), engine.add(GenerationRequest([3], greedy(20)))]
    long = engine.add(GenerationRequest([4] * 24, greedy(2)))
    for _ in range(10):
        engine.step()
    plan = engine.plan()
    assert plan is not None
    assert [item.request for item in plan.items] == [*suspects, long]
    assert engine.accept(StepPlan(plan.step, plan.items[2:]), []) == []
    assert engine.fail(StepPlan(plan.step, plan.items[:2]), RuntimeError("broke")) == []
    late = engine.add(GenerationRequest([9], greedy(4)))
    firsts: list[int] = []
    while engine.has_work:
        firsts += [event.request for event in engine.step() if event.request not in firsts]
    assert firsts == [long, *suspects, late]
    assert_nothing_held(engine)


# -- what goes in -----------------------------------------------------------------------------------------------------


def test_prompts_are_not_copied() -> None:
    engine = null_engine(context=10**7, pages=10**6)
    prompt = [7] * 1000
    request = engine.add(GenerationRequest(prompt, greedy(2, n=3)))
    assert all(engine.requests[request + choice].tokens.prompt is prompt for choice in range(3))
    endless = range(10**9, 10**9 + 3)
    with pytest.raises(ValueError, match="out of range"):
        engine.add(GenerationRequest(endless, greedy(1)))


def test_a_prompt_may_be_a_length_and_names() -> None:
    """Equal names are equal prefixes, block by block; nothing is made for each token."""
    tokens = NamedPrompt(1000, (5, 6), 512)
    assert list(tokens) == [-6] * 512 + [-7] * 488
    for part in (slice(500, 520), slice(512, 1000), slice(16, 32), slice(7, 7), slice(0, None), slice(-3, None)):
        assert list(tokens[part]) == list(tokens)[part]
        assert isinstance(tokens[part], NamedPrompt)
        assert list(tokens[2:990][part]) == list(tokens)[2:990][part]
    engine = null_engine(pages=200, page_size=16, context=10_000)
    cached = []
    for names in ((5, 6), (5, 6), (5, 7), (8, 6)):
        request = engine.requests[engine.add(GenerationRequest(NamedPrompt(1000, names, 512), greedy(1)))]
        finish_all(engine)
        cached.append(request.cached)
    assert cached == [0, 992, 512, 0]
    for length, names in ((0, ()), (1000, (1,)), (1000, (1, 2, 3))):
        with pytest.raises(ValueError, match=r"names|empty"):
            engine.add(GenerationRequest(NamedPrompt(length, names, 512)))


@pytest.mark.parametrize(("block", "page_size"), [(4, 4), (2, 4), (8, 4), (3, 4), (6, 4), (5, 2), (16, 1)])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_pages_are_shared_as_far_as_their_blocks_are(windows: Any, block: int, page_size: int) -> None:
    """Whatever the sizes: a page is found where all blocks are that it touches, and never where one differs, nor where
    the prompt ends in the middle of it."""
    draw = random.Random(block)
    engine = null_engine(
        windows=windows, pages=400, page_size=page_size, executor=Constant(), limits=Limits(tokens=9, requests=1)
    )
    before: list[tuple[int, ...]] = []
    hits = 0
    for _ in range(60):
        length = draw.randint(1, 30)
        names = tuple(draw.choice((1, 1, 1, 2)) for _ in range(-(-length // block)))
        request = engine.requests[
            engine.add(GenerationRequest(NamedPrompt(length, names, block), greedy(draw.randint(1, 9))))
        ]
        finish_all(engine)
        assert request.cached <= block * max((common(names, other) for other in before), default=0)
        hits += request.cached > 0
        before.append(names)
    assert hits > 10


def common(names: Sequence[int], others: Sequence[int]) -> int:
    """How many names are equal from the first on."""
    return next(
        (i for i, (a, b) in enumerate(zip(names, others, strict=False)) if a != b), min(len(names), len(others))
    )


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, 2, 3]),
        torch.tensor([1, 2, 3]),
        [np.int64(1), 2, np.int32(3)],
        list(torch.tensor([1, 2, 3])),
        (1, 2, 3),
    ],
)
def test_ids_of_numpy_and_torch_are_ids(ids: Any) -> None:
    engine = null_engine()
    request = engine.add(GenerationRequest(ids, greedy(4)))
    assert finish_all(engine)[request, 0].token_ids == expected_tokens([1, 2, 3], 4)


def test_ids_of_numpy_and_torch_are_prompts(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path)), EngineSettings(kv_bytes=4e6))
    params = SamplingParams(temperature=0.0, max_tokens=3)
    (wanted,) = llm.generate([1, 2, 3], params)
    for one in (torch.tensor([1, 2, 3]), np.array([1, 2, 3]), list(np.array([1, 2, 3])), list(torch.tensor([1, 2, 3]))):
        assert llm.generate(one, params) == [wanted]
    for many in (torch.tensor([[1, 2, 3]] * 2), [np.array([1, 2, 3]), [1, 2, 3]]):
        assert llm.generate(many, params) == [wanted] * 2
    for prompts, own, says in (
        (torch.tensor([1.5, 2.0]), params, "give integers"),
        (torch.tensor(3), params, "prompts is a int"),
        (None, params, "prompts is a NoneType: give text"),
        ([], params, None),
        (torch.tensor([]), params, None),
        ("abc", {"max_tokens": 3}, "params is a dict: give a SamplingParams"),
        (["abc"], [{"max_tokens": 3}], "params is a dict: give a SamplingParams"),
        ([[1], None], params, "not a list of token ids"),
    ):
        if says is None:
            assert llm.generate(prompts, own) == []
            continue
        with pytest.raises(ValueError, match=says) as refused:
            llm.generate(prompts, own)
        assert "\n" not in str(refused.value)
        assert not llm.engine.has_work


def test_a_server_takes_a_models_name(tmp_path: Path) -> None:
    server = AsyncLLM(str(write_model(tmp_path)))
    server.close()
    assert server.info.vocabulary > 256
    with pytest.raises(
        ValueError, match="model is a int: give a folder, a built-in name, or the result of load_engine"
    ):
        AsyncLLM(3)  # type: ignore[arg-type]


def encoding_engine(
    pages: int = 20, chunk: int | None = 3, *, prefix_cache: bool = False, plans: list[StepPlan] | None = None
) -> Engine:
    """An engine around a model that looks at an encoder; what it runs is added to `plans`."""
    limits = Limits(tokens=16, chunk=chunk)
    return Engine(
        Constant(),
        KVCacheManager(layout_of((CROSS, None), pages, 4), limits.max_request_tokens, prefix_cache=prefix_cache),
        limits,
        ModelTraits(100, VOCABULARY, VOCABULARY, encoder_context=100),
        on_step=None if plans is None else lambda record: plans.append(record.plan),
    )


@pytest.mark.parametrize("chunk", [None, 3])
def test_an_encoders_ids_travel_with_the_step_that_first_runs_their_request(chunk: int | None) -> None:
    plans: list[StepPlan] = []
    engine = encoding_engine(pages=14, chunk=chunk, plans=plans)
    ids = {
        engine.add(GenerationRequest([number] * 5, greedy(14, n=1 + number % 2), encoder=(number, 9, 9))): number
        for number in (1, 2, 3)
    }
    finish_all(engine)
    assert engine.stats.preemptions > 0
    carried = 0
    for item in (item for plan in plans for item in plan.items):
        own = next(number for request, number in reversed(ids.items()) if item.request >= request)
        if item.first and item.start == 0:
            assert item.encoder == (own, 9, 9)
            carried += 1
        else:
            assert item.encoder == ()
    assert carried > len(ids)
    with pytest.raises(ValueError, match=f"token id {VOCABULARY} is out of range"):
        engine.add(GenerationRequest([1], encoder=[VOCABULARY]))


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_an_encoders_pages_come_whole_with_the_step_that_runs_it(prefix_cache: bool) -> None:
    """They do not grow, choices share them, and after a preemption they are granted and filled anew; what the decoder
    found of its prompt does not spare the encoder."""
    plans: list[StepPlan] = []
    engine = encoding_engine(prefix_cache=prefix_cache, plans=plans)
    ids = [
        engine.add(GenerationRequest([7] * 9, greedy(14, n=1 + number % 2), encoder=[number % 2] * 10))
        for number in range(4)
    ]
    finish_all(engine)
    assert engine.stats.preemptions > 0
    assert (engine.stats.reused_tokens > 2 * 8) == prefix_cache, "more than the two forks start with"
    tables: dict[int, tuple[int, ...]] = {}
    for item in (item for plan in plans for item in plan.items):
        if item.encoder:
            assert item.first
            assert len(item.pages[0]) == 3, "ten positions, whatever the prompt's chunk is"
        elif item.first:
            assert item.pages[0] == tables[max(request for request in ids if request < item.request)]
        else:
            assert item.pages[0] == ()
        tables[item.request] = item.pages[0] or tables[item.request]
    assert sum(bool(item.encoder) for plan in plans for item in plan.items) > len(ids)
    assert_nothing_held(engine)
    with pytest.raises(
        ValueError, match=r"has 5 tokens, but the KV cache holds 4 next to 76 encoder tokens: shorten the prompt"
    ):
        engine.add(GenerationRequest([1] * 5, encoder=[1] * 76))
    with pytest.raises(ValueError, match=r"has 1 tokens, but the KV cache holds 0 next to 81 encoder tokens"):
        engine.add(GenerationRequest([1], encoder=[1] * 81))


@pytest.mark.parametrize("length", [15, 16, 40])
def test_an_encoders_input_without_room_beside_those_that_run_has_a_step_alone(length: int) -> None:
    """With as much of its prompt as a step runs; those that run have every other step, and nobody waits for their end.
    Beside two that run 13 fit in a step of 16."""
    plans: list[StepPlan] = []
    engine = encoding_engine(pages=100, chunk=None, plans=plans)
    running = [engine.add(GenerationRequest([7], greedy(30), encoder=[9] * 3)) for _ in range(2)]
    engine.step()
    fits = engine.add(GenerationRequest([7], greedy(30), encoder=[9] * 13))
    engine.step()
    long = [engine.add(GenerationRequest([7] * 5, greedy(3), encoder=[9] * length)) for _ in range(3)]
    finish_all(engine)
    seen = [[(item.request, len(item.encoder), len(item.tokens)) for item in plan.items] for plan in plans]
    decoding = [(request, 0, 1) for request in running]
    assert seen[:2] == [[(request, 3, 1) for request in running], [*decoding, (fits, 13, 1)]]
    decoding.append((fits, 0, 1))
    for step, request in zip((2, 4, 6), long, strict=True):
        assert seen[step] == [(request, length, 1 if length == 15 else 5)]
        assert seen[step + 1][:3] == decoding
    assert_nothing_held(engine)
    with pytest.raises(
        ValueError, match="the encoder input has 101 tokens, but the encoder reads at most 100: shorten it or split it"
    ):
        engine.add(GenerationRequest([7], encoder=[9] * 101))


def namespace(engine: Engine, **others: Any) -> bytes:
    request = engine.add(GenerationRequest([1, 2], greedy(1), **others))
    found = engine.requests[request].cache_namespace
    engine.abort(request)
    return found


def test_a_cache_namespace_says_all_that_keys_and_values_depend_on() -> None:
    assert namespace(null_engine()) == b""
    assert namespace(null_engine(), cache_salt=b"adapter") == b"adapter"
    engine = encoding_engine()
    found = [
        namespace(engine, encoder=encoder, cache_salt=salt)
        for encoder, salt in (((1,), b""), ((2,), b""), ((1,), b"a"), ((1, 2), b""))
    ]
    assert len({*found, b"a"}) == len(found) + 1
    assert namespace(engine, encoder=(1,)) == found[0]
