"""The fast path of decode: with it or without, an engine plans, tells and holds the same; and when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from engine.null_model import GREEDY, expected_tokens, null_engine
from engine.random_traces import Trace
from engine.small_models import assert_nothing_held
from ridgeline.engine import EngineSettings, SamplingParams, StructuredOutputs
from ridgeline.engine.decode_fast_path import DecodeFastPath
from ridgeline.engine.encoder_features import EncoderFeatures, PlacedImages
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import Event, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.llm import LLM, TextEngine
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.sampling import Outcome, RowFailure, Sampled
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.step_plan import PlanItem, StepPlan

# -- with it or without -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_random_trace_is_the_same_with_the_fast_path_and_without(seed: int, guesses: bool) -> None:
    """Chunks, shared prefixes, choices, preemptions, aborts, stops, failing rows and steps, all kinds of requests."""
    trace = Trace(seed, guesses=guesses)
    fast, engine, planned = trace.run(fast=True)
    general, other, never = trace.run(fast=False)
    assert never == 0
    assert planned > 0 or trace.page_size == 1
    for number, (ours, theirs) in enumerate(zip(fast.plans, general.plans, strict=False)):
        assert ours == theirs, f"plan {number} differs"
    assert fast.rows == general.rows
    assert fast.events == general.events
    assert fast.tables == general.tables
    assert fast.stats == general.stats
    assert len(fast.plans) == len(general.plans)
    for each in (engine, other):
        assert_nothing_held(each)


def test_the_random_traces_have_everything_in_them() -> None:
    """What they are to compare does happen, and often."""
    ends, preemptions, reused, planned, items = dict.fromkeys(FinishReason, 0), 0, 0, 0, 0
    for seed in range(40):
        log, engine, fast = Trace(seed, guesses=False).run(fast=True)
        for event in log.events:
            if event.finish is not None:
                ends[event.finish] += 1
        preemptions += engine.stats.preemptions
        reused += engine.stats.reused_tokens
        planned += fast
        items += sum(len(plan.items) for plan in log.plans)
    assert min(ends.values()) > 20
    assert preemptions > 100
    assert reused > 1000
    assert planned > items // 5


ASKED: dict[str, SamplingParams] = {
    "greedy": replace(GREEDY, max_tokens=40),
    "sampled with log-probabilities": SamplingParams(temperature=0.9, top_p=0.9, max_tokens=40, seed=7, logprobs=2),
    "stop strings": replace(GREEDY, max_tokens=60, stop=(" the", "dog.")),
    "choices": SamplingParams(temperature=0.9, max_tokens=30, seed=3, n=3),
    "a scored prompt": replace(GREEDY, max_tokens=20, prompt_logprobs=2),
    "a form": replace(
        GREEDY, max_tokens=60, structured_outputs=StructuredOutputs(regex=r"((the cat|a dog) (sat|ran)\. ){5}")
    ),
}
SMALL = EngineSettings(kv_bytes=2.0**22, seed=1, page_size=4)
SETTINGS = {
    "whole": SMALL,
    "chunks, few pages": replace(SMALL, kv_bytes=float(60 * 3072), limits=Limits(tokens=9, requests=6, chunk=4)),
    "guesses": replace(SMALL, speculation=Speculation("ngram", 4, shortest=1)),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_model_streams_the_same_with_the_fast_path_and_without(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole events, text and log-probabilities in them, of requests that run side by side."""
    prompts = ("Tom had a dog. The dog liked Tom. Tom and the dog", "One day a girl named Ann saw")

    def stream() -> list[Event]:
        texts, told = TextEngine(LLM("tales", settings, threads=1).loaded), list[Event]()
        for params in ASKED.values():
            for prompt in prompts:
                texts.add(GenerationRequest(texts.texts.encode(prompt, 400), params))
        while texts.engine.has_work:
            told += [event._replace(at=0, timing=None) for event in texts.step()]
        assert {event.finish for event in told if event.finish is not None} <= {FinishReason.STOP, FinishReason.LENGTH}
        return told

    fast = stream()
    monkeypatch.setattr(DecodeFastPath, "_entering", lambda _self, _request, _count, item: item)
    assert stream() == fast


# -- when a request enters and leaves ---------------------------------------------------------------------------------


def decoding(*lengths: int, count: int = 30, **others: Any) -> tuple[Engine, list[Request]]:
    """An engine whose requests, with prompts so long, have their first token each."""
    engine = null_engine(**others)
    for length in lengths:
        engine.add(GenerationRequest([*range(1, length + 1)], replace(GREEDY, max_tokens=count)))
    engine.step()
    requests = list(engine.requests.values())
    assert [request.output_length for request in requests] == [1] * len(lengths)
    return engine, requests


def on_path(request: Request) -> bool:
    return request.computed < request.decode_fast_until


def test_a_request_is_on_the_path_from_its_first_decode_step_to_the_end_of_its_page() -> None:
    """Pages of 4 positions: a prompt of 5 has 2 pages, so that the path ends at 8 positions, and then at 12."""
    engine, (request,) = decoding(5)
    assert request.decode_fast_until == 0
    seen = []
    for _ in range(7):
        engine.step()
        seen.append((request.computed, request.decode_fast_until, on_path(request)))
    assert seen == [(6, 8, True), (7, 8, True), (8, 8, False), (9, 12, True), (10, 12, True), (11, 12, True),
                    (12, 12, False)]  # fmt: skip


def test_the_ledger_is_asked_nothing_of_a_request_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it gets to the end: the ledger is told how far it is then, so that its full page can be found."""
    engine, (request,) = decoding(9, page_size=8)
    engine.step()
    calls: list[tuple[str, int]] = []

    def watch(name: str, method: Callable[..., Any]) -> None:
        def watched(*args: Any) -> Any:
            calls.append((name, request.computed))
            return method(*args)

        monkeypatch.setattr(engine.kv_cache_manager, name, watched)

    for name in ("grow", "commit", "unsent"):
        watch(name, getattr(engine.kv_cache_manager, name))
    while request.computed < 15:
        engine.step()
    assert calls == []
    assert engine.kv_cache_manager.pool.cached == 0
    engine.step()
    assert calls == [("commit", 16)]
    assert engine.kv_cache_manager.tables[request.id].published == 2
    engine.step()
    assert [name for name, _ in calls] == ["commit", "grow", "unsent"]


def test_a_window_ends_the_path_where_it_passes_a_page() -> None:
    """What no window reaches is given back at the same steps as without the path."""

    def held(fast: bool) -> list[int]:
        engine, (request,) = decoding(5, windows=(6,))
        if not fast:
            request.adapter = 1
        pages = []
        for _ in range(20):
            engine.step()
            pages.append(engine.stats.held_pages)
        assert (request.decode_fast_until > 0) == fast
        return pages

    assert held(fast=True) == held(fast=False)
    assert max(held(fast=True)) == 3


PLANNED = PlanItem(1, 5, (7,), (), False, (0,))


def entered(request: Request, path: DecodeFastPath, count: int = 1) -> bool:
    """Whether a request is on the path after a plan of so many positions in the general way."""
    request.decode_fast_until = 0
    assert path.items({request: count}, {}, lambda *_: PLANNED) == [PLANNED]
    return on_path(request)


def test_only_a_plain_decode_step_enters_the_path() -> None:
    engine, (request,) = decoding(5)
    path = engine.scheduler.fast_path
    assert entered(request, path)
    assert not entered(request, path, count=2)
    request.adapter = 1
    assert not entered(request, path)
    plain = request.spec
    request.adapter, request.spec = 0, structs.replace(plain, encoder=(1, 2))
    assert not entered(request, path)
    request.spec, request.placed_images = plain, PlacedImages(EncoderFeatures(bytes(4), 1), (0,))
    assert not entered(request, path)
    request.placed_images = None
    assert entered(request, path)
    request.computed -= 1  # two positions are missing, of which one runs
    assert not entered(request, path)


def test_a_chunk_of_one_position_of_a_prompt_does_not_enter_the_path() -> None:
    """The last one, too: its request has no token that the next step could run."""
    engine = null_engine(limits=Limits(chunk=1))
    request = engine.requests[engine.add(GenerationRequest([1, 2, 3], replace(GREEDY, max_tokens=4)))]
    for computed in (1, 2, 3):
        engine.step()
        assert (request.computed, request.decode_fast_until) == (computed, 0)
    engine.step()
    assert request.decode_fast_until == 4


def test_pages_that_the_runner_does_not_know_keep_a_request_off_the_path() -> None:
    engine, (request,) = decoding(5)
    assert engine.kv_cache_manager.grow(request.id, 9)
    assert engine.kv_cache_manager.unchanged_until(request.id) == 0
    assert not entered(request, engine.scheduler.fast_path)


@pytest.mark.parametrize("how", ["preempted", "failed", "aborted", "stopped"])
def test_a_request_that_loses_its_pages_leaves_the_path(how: str) -> None:
    engine, (request,) = decoding(5)
    engine.step()
    assert on_path(request)
    if how == "preempted":
        engine.scheduler.preempt(request)
    elif how == "failed":
        plan = engine.plan()
        assert plan is not None
        engine.fail(StepPlan(plan.step, plan.items * 2), RuntimeError("broke"))
    elif how == "aborted":
        engine.abort(request.id)
    else:
        engine.stop(request.id, 0, 1)
    assert request.decode_fast_until == 0
    assert not on_path(request)
    engine.abort(request.id)
    assert_nothing_held(engine)


def test_a_preempted_request_computes_its_positions_again_and_enters_the_path_after_that() -> None:
    engine, (request,) = decoding(5, count=9)
    for _ in range(2):
        engine.step()
    engine.scheduler.preempt(request)
    engine.step()
    assert request.decode_fast_until == 0
    engine.step()
    assert on_path(request)
    while engine.has_work:
        engine.step()
    assert request.output == expected_tokens([1, 2, 3, 4, 5], 9)


def test_guesses_take_the_general_way_and_leave_the_request_on_the_path() -> None:
    engine, (request,) = decoding(5)
    engine.step()
    asked: list[tuple[int, Sequence[int]]] = []

    def general(_: Request, count: int, guesses: Sequence[int]) -> PlanItem:
        asked.append((count, guesses))
        return PLANNED

    path = engine.scheduler.fast_path
    assert path.items({request: 1}, {request: (3, 4)}, general) == [PLANNED]
    assert asked == [(1, (3, 4))]
    assert on_path(request)
    newest = PlanItem(request.id, 6, (request.output[-1],), ((),), False, (0,))
    assert path.items({request: 1}, {}, general) == [newest]
    assert len(asked) == 1


OUTCOMES: list[Outcome | None] = [RowFailure("NaN"), [Sampled(1), Sampled(2)], None]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=["a failure", "several tokens", "nothing"])
def test_an_outcome_that_is_no_token_takes_the_general_way(outcome: Outcome | None) -> None:
    engine, (request,) = decoding(5)
    engine.step()
    taken, ended = accept(engine, request, outcome)
    assert (taken, ended, request.computed, request.output_length) == ([outcome], [], 6, 2)
    assert on_path(request)


def test_a_token_on_the_path_becomes_an_event_and_the_last_one_ends_the_request() -> None:
    engine, (request,) = decoding(5, count=4)
    engine.step()
    assert accept(engine, request, Sampled(8)) == ([], [])
    assert (request.output[-1], request.computed) == (8, 7)
    assert accept(engine, request, Sampled(9)) == ([], [FinishReason.LENGTH])
    assert (request.output[-1], request.computed) == (9, 8)


def test_an_outcome_of_a_request_that_has_ended_is_dropped() -> None:
    engine, (request,) = decoding(5)
    engine.step()
    engine.abort(request.id)
    assert accept(engine, request, Sampled(8)) == ([], [])
    assert request.output_length == 2


def accept(
    engine: Engine, request: Request, outcome: Outcome | None
) -> tuple[list[Outcome | None], list[FinishReason]]:
    """Take an outcome; return those that took the general way, and the ends of requests."""
    taken: list[Outcome | None] = []
    ended: list[FinishReason] = []
    events: list[TokenEvent] = []
    before = request.output_length
    fast = engine.scheduler.fast_path.accept(
        [(PLANNED, outcome)],
        engine.requests,
        99,
        events,
        general=lambda _request, _item, one, _now, _events: taken.append(one),
        end=lambda _request, finish, _last, _now, _events: ended.append(finish),
    )
    assert fast == request.output_length - before
    assert [(event.token, event.at) for event in events] == [(outcome, 99)] * (fast - len(ended))
    return taken, ended


def test_requests_on_the_path_are_granted_positions_in_their_order_of_arrival() -> None:
    """A budget of two for three requests: the third waits on the path, and goes on when another ends."""
    engine, requests = decoding(1, 1, 1, count=3, page_size=16)
    engine.step()
    assert all(map(on_path, requests))
    engine.scheduler.limits = Limits(tokens=2)
    assert [event.request for event in engine.step()] == [1, 2]
    assert on_path(requests[2])
    assert [event.request for event in engine.step()] == [3]
