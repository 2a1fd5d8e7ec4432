"""Log-probabilities of prompts, against log-softmax of one whole forward that keeps nothing, in fp32."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.folders import write_model
from engine.small_models import LLAMA, MIXED, assert_nothing_held, small_model, uncached_answer
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import LOGITS
from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.output_processor import with_text
from ridgeline.engine.request import FinishReason
from ridgeline.engine.result import Completion
from ridgeline.engine.runner import HEAD_ROWS, Runner
from ridgeline.engine.sampling import PromptLogprob
from ridgeline.engine.scheduler import MAX_SCORED_WITH_DECODES, Limits
from support.engines import token_engine, uncached_logits

GREEDY = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True}


def scoring(count: int = 3, **fields: Any) -> SamplingParams:
    return SamplingParams(**(GREEDY | fields), prompt_logprobs=count)


def prompt_of(length: int, seed: int) -> list[int]:
    return torch.randint(0, 41, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def model() -> Model:
    torch.set_num_threads(1)
    return small_model(LLAMA)


def run(engine: Engine, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[Completion]:
    """All of them together, to their ends."""
    completions = {
        engine.add(GenerationRequest(prompt, params)): Completion.empty(prompt, params.n) for prompt, params in asked
    }
    while engine.has_work:
        for event in engine.step():
            completions[event.request].take([with_text(event)])
        engine.kv_cache_manager.check()
    assert_nothing_held(engine)
    return list(completions.values())


def assert_scored(model: Model, completion: Completion, count: int) -> None:
    """Every token of its prompt has the log-probability that a whole forward gives it, with the `count` likeliest."""
    prompt, scores = completion.prompt_ids, completion.prompt_logprobs
    assert scores is not None
    assert len(scores) == len(prompt)
    assert scores[0] is None, "nothing comes before the first token"
    (logits_TV,) = uncached_logits(model, [prompt])
    expected_TV = torch.log_softmax(logits_TV.double(), dim=1)
    for position, score in enumerate(scores[1:], 1):
        assert isinstance(score, PromptLogprob)
        before_V = expected_TV[position - 1]
        assert score.token == prompt[position]
        assert score.logprob == pytest.approx(float(before_V[score.token]), abs=2e-5)
        values_K, tokens_K = before_V.topk(count)
        assert [token for token, _ in score.top] == tokens_K.tolist()
        assert [share for _, share in score.top] == pytest.approx(values_K.tolist(), abs=2e-5)


@pytest.mark.parametrize("config", [LLAMA, MIXED], ids=["full", "mixed"])
@pytest.mark.parametrize("chunk", [None, 5, 1])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_prompts_are_scored_in_any_company(config: dict[str, Any], chunk: int | None, prefix_cache: bool) -> None:
    """Beside requests that score nothing, among them one with the same prompt; what is sampled stays the same."""
    model = small_model(config)
    records: list[StepRecord] = []
    limits = Limits(tokens=24, requests=4, chunk=chunk)
    engine = token_engine(model, limits=limits, prefix_cache=prefix_cache, on_step=records.append)
    prompts = [prompt_of(23, 1), prompt_of(23, 1), prompt_of(9, 2), prompt_of(2, 3), prompt_of(1, 4), prompt_of(40, 5)]
    counts = [None, 3, 0, 41, 2, None]
    params = [SamplingParams(**GREEDY, prompt_logprobs=count) for count in counts]
    completions = run(engine, list(zip(prompts, params, strict=True)))
    for completion, count in zip(completions, counts, strict=True):
        assert completion.choices[0].token_ids == uncached_answer(model, completion.prompt_ids, 5).tokens
        if count is None:
            assert completion.prompt_logprobs is None
        else:
            assert_scored(model, completion, count)
    scored = sum(len(item.scored.tokens) for record in records for item in record.plan.items if item.scored)
    assert scored == 22 + 8 + 1 + 0
    sampled = sum(len(record.rows) for record in records)
    assert sum(record.work.rows[LOGITS] for record in records) == scored + sampled


def test_no_prefix_is_taken_from_the_cache_and_what_is_computed_goes_there(model: Model) -> None:
    prompt = prompt_of(30, 1)
    engine = token_engine(model, prefix_cache=True)
    plain, scored = SamplingParams(**GREEDY), scoring()
    cached = []
    for params in (plain, scored, plain):
        (completion,) = run(engine, [(prompt, params)])
        cached.append(completion.cached)
    assert cached == [0, 0, 28]
    engine = token_engine(model, prefix_cache=True)
    (completion,) = run(engine, [(prompt, scored)])
    assert_scored(model, completion, 3)
    assert run(engine, [(prompt, plain)])[0].cached == 28, "pages of a scored prompt are found by others"


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_preempted_prompt_is_scored_once(model: Model, prefix_cache: bool) -> None:
    """So few pages that requests are preempted, the one that scores in the middle of its prompt."""
    records: list[StepRecord] = []
    limits = Limits(tokens=16, requests=4, chunk=3)
    engine = token_engine(model, limits=limits, positions=72, prefix_cache=prefix_cache, on_step=records.append)
    first = engine.add(
        GenerationRequest(prompt_of(8, 7), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    )
    prompt = prompt_of(50, 8)
    group = engine.add(GenerationRequest(prompt, scoring()))
    completion, preempted_at = Completion.empty(prompt, 1), list[int]()
    while engine.has_work:
        request = engine.requests.get(group)
        if request is not None and not preempted_at and request.scores and len(request.scores) > 20:
            preempted_at.append(len(request.scores))
            engine.scheduler.preempt(request)
        completion.take(with_text(event) for event in engine.step() if event.request == group)
        engine.kv_cache_manager.check()
    assert first != group
    assert preempted_at
    assert engine.stats.preemptions > 0
    assert_scored(model, completion, 3)
    assert completion.choices[0].token_ids == uncached_answer(model, prompt, 5).tokens
    scored = [item.scored.tokens for record in records for item in record.plan.items if item.scored]
    assert [token for tokens in scored for token in tokens] == prompt[1:]


@pytest.mark.parametrize("fits", [True, False])
def test_choices_share_one_scoring(model: Model, fits: bool) -> None:
    """Also where there is no room for the other choices to start from the first one's pages."""
    records: list[StepRecord] = []
    limits = Limits(requests=4 if fits else 1)
    engine = token_engine(model, limits=limits, prefix_cache=True, on_step=records.append)
    prompt = prompt_of(19, 3)
    engine.add(GenerationRequest(prompt, scoring(2, n=3, temperature=1.0, seed=5)))
    events: list[TokenEvent] = []
    while engine.has_work:
        events += engine.step()
    completion = Completion.empty(prompt, 3)
    completion.take(map(with_text, events))
    assert_scored(model, completion, 2)
    assert [(event.choice, event.token) for event in events if event.prompt_logprobs is not None] == [
        (0, events[0].token)
    ]
    assert sum(len(item.scored.tokens) for record in records for item in record.plan.items if item.scored) == 18
    plain = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=5, ignore_eos=True)
    (other,) = run(token_engine(model, limits=limits), [(prompt, plain)])
    assert [choice.token_ids for choice in completion.choices] == [choice.token_ids for choice in other.choices]


def test_beside_a_request_that_decodes_few_positions_of_a_step_are_scored() -> None:
    """They come slice by slice and are those of the prompt alone. Who comes later does not wait behind them; without
    anybody who decodes, a step may score as many positions as it runs."""
    model, records = small_model(LLAMA | {"max_position_embeddings": 1024}), list[StepRecord]()
    engine = token_engine(model, positions=4096, on_step=records.append)
    decoding = engine.add(
        GenerationRequest(prompt_of(5, 1), SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    )
    engine.step()
    prompts = {
        engine.add(GenerationRequest(prompt, scoring(2))): prompt for prompt in (prompt_of(700, 2), prompt_of(300, 3))
    }
    late = engine.add(GenerationRequest(prompt_of(40, 4), SamplingParams(temperature=0.0, max_tokens=1)))
    completions = {group: Completion.empty(prompt, 1) for group, prompt in prompts.items()}
    told: list[int] = []
    for step in range(200):
        for event in engine.step():
            if event.request in completions:
                completions[event.request].take([with_text(event)])
            if event.prompt_logprobs is not None:
                told.append(len(event.prompt_logprobs))
            if event.request == late:
                assert step == 0, "it runs beside the first slice"
        if not engine.has_work:
            break
    for completion in completions.values():
        assert_scored(model, completion, 2)
    assert sum(told) == 1000
    assert max(told) <= MAX_SCORED_WITH_DECODES + 1
    scored = [sum(len(item.scored.tokens) for item in r.plan.items if item.scored) for r in records]
    decoded = [any(item.request == decoding for item in r.plan.items) for r in records]
    assert max(scored) == MAX_SCORED_WITH_DECODES
    assert all(beside for beside, count in zip(decoded, scored, strict=True) if count)
    alone = token_engine(model, positions=4096, on_step=records.append)
    records.clear()
    run(alone, [(prompt, scoring(2)) for prompt in prompts.values()])
    assert sum(len(item.scored.tokens) for item in records[0].plan.items if item.scored) == 998


def test_a_request_of_one_token_has_them_with_its_end(model: Model) -> None:
    (completion,) = run(token_engine(model), [(prompt_of(12, 3), scoring(1, max_tokens=1))])
    assert completion.choices[0].finish is FinishReason.LENGTH
    assert_scored(model, completion, 1)


@pytest.mark.parametrize("chunk", [None, 7, 1])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_prompt_that_fills_the_context_is_scored_without_a_token(
    model: Model, chunk: int | None, choices: int
) -> None:
    """All of KV memory too, beside a request that samples; nothing is sampled, and the head sees scored rows alone."""
    context, records = LLAMA["max_position_embeddings"], list[StepRecord]()
    limits = Limits(requests=4, chunk=chunk)
    engine = token_engine(model, limits=limits, positions=context, on_step=records.append)
    full, short, plain = prompt_of(context, 5), prompt_of(1, 6), prompt_of(9, 2)
    only = scoring(2, max_tokens=0, n=choices)
    sampled = SamplingParams(**GREEDY)
    completions = run(engine, [(full, only), (plain, sampled), (short, only)])
    for completion in (completions[0], completions[2]):
        assert [(choice.finish, choice.tokens) for choice in completion.choices] == [
            (FinishReason.LENGTH, [])
        ] * choices
        assert_scored(model, completion, 2)
        assert completion.choices[0].timing is not None
        assert completion.choices[0].timing.first_token is not None
    assert completions[1].choices[0].token_ids == uncached_answer(model, plain, 5).tokens
    assert engine.stats.output_tokens == 5
    assert sum(record.work.rows[LOGITS] for record in records) == context - 1 + 5
    for wrong, params in ((full, scoring(2, max_tokens=1)), ([*full, 1], only)):
        with pytest.raises(
            ValueError, match=f"the prompt has {len(wrong)} tokens, but the model's context is {context}"
        ):
            engine.add(GenerationRequest(wrong, params))


def test_a_prompt_may_be_computed_for_those_that_follow(model: Model) -> None:
    """Without scores nothing is told of it, but that it ended, and the next one finds it."""
    engine, prompt = token_engine(model, prefix_cache=True), prompt_of(30, 1)
    (first,) = run(engine, [(prompt, SamplingParams(max_tokens=0))])
    assert (first.text, first.choices[0].finish, first.prompt_logprobs) == ("", FinishReason.LENGTH, None)
    (second,) = run(engine, [(prompt, SamplingParams(**GREEDY))])
    assert second.cached == 28
    assert second.choices[0].token_ids == uncached_answer(model, prompt, 5).tokens


class Watched(Runner):
    """Notes how many rows each call of the head has."""

    def __init__(self, model: Model, *args: Any) -> None:
        super().__init__(model, *args)
        self.head_rows: list[int] = []
        model.head = self.watch(model.head)  # type: ignore[method-assign]

    def watch(self, head: Any) -> Any:
        def watched(x_RD: torch.Tensor) -> torch.Tensor:
            self.head_rows.append(len(x_RD))
            logits: torch.Tensor = head(x_RD)
            return logits

        return watched


def test_the_head_sees_a_long_prompt_in_blocks() -> None:
    """Of two prompts in one step, so that a block holds rows of both; what is sampled has a call of its own."""
    model = small_model(LLAMA | {"max_position_embeddings": 1024})
    engine = token_engine(model, runner=Watched, positions=2048)
    long, short = prompt_of(2 * HEAD_ROWS - 20, 1), prompt_of(50, 2)
    completions = run(engine, [(long, scoring(2)), (short, scoring(0))])
    runner = engine.executor
    assert isinstance(runner, Watched)
    rows = len(long) - 1 + len(short) - 1
    assert runner.head_rows[:4] == [HEAD_ROWS, HEAD_ROWS, rows - 2 * HEAD_ROWS, 2]
    assert max(runner.head_rows) <= HEAD_ROWS
    assert_scored(model, completions[0], 2)
    assert_scored(model, completions[1], 0)


@pytest.mark.parametrize("chunk", [None, 5])
def test_a_row_that_fails_ends_its_request_alone(chunk: int | None) -> None:
    """A token whose embedding is broken: in the middle of one prompt, so that with chunks nothing is sampled there."""
    model = small_model(LLAMA)
    model.get_parameter("model.embed_tokens.weight")[40] = float("nan")
    prompts = [[token % 40 for token in prompt_of(20, seed)] for seed in range(3)]
    prompts[1][7] = 40
    engine = token_engine(model, limits=Limits(chunk=chunk))
    completions = run(engine, [(prompt, scoring()) for prompt in prompts])
    failed = completions.pop(1)
    assert failed.choices[0].finish is FinishReason.ERROR
    assert failed.choices[0].error == "the model's logits contain NaN"
    assert failed.prompt_logprobs is None
    for completion in completions:
        assert_scored(model, completion, 3)
        assert completion.choices[0].token_ids == uncached_answer(model, completion.prompt_ids, 5).tokens


def test_an_abort_midway_gives_no_scores(model: Model) -> None:
    engine = token_engine(model, limits=Limits(chunk=5))
    group = engine.add(GenerationRequest(prompt_of(20, 1), scoring()))
    engine.step()
    (event,) = engine.abort(group)
    assert event.prompt_logprobs is None
    assert_nothing_held(engine)


def test_texts_come_with_their_prompts_scores(tmp_path: Path) -> None:
    """LLM, its stream, and AsyncLLM say the same, also where the first token already ends the text."""
    llm = LLM(str(write_model(tmp_path)), EngineSettings(kv_bytes=4e6))
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=2)
    (completion,) = llm.generate("a few words", params)
    assert_scored(llm.loaded.model, completion, 2)
    events = list(llm.stream("a few words", params))
    assert list(events[0].prompt_logprobs or ()) == completion.prompt_logprobs
    assert all(event.prompt_logprobs is None for event in events[1:])
    stop = completion.choices[0].text[0]
    (stopped,) = llm.generate("a few words", SamplingParams(temperature=0.0, stop=(stop,), prompt_logprobs=2))
    assert stopped.choices[0].finish is FinishReason.STOP
    assert stopped.prompt_logprobs == completion.prompt_logprobs

    async def served() -> Completion:
        async with AsyncLLM(llm.loaded) as server:
            return await server.generate("a few words", params)

    assert asyncio.run(served()) == completion


def test_a_plan_says_what_it_scores(model: Model) -> None:
    engine = token_engine(model, limits=Limits(chunk=5))
    engine.add(GenerationRequest([3, 1, 4, 1, 5, 9, 2], scoring(6)))
    plan = engine.plan()
    assert plan is not None
    assert '"logits":[],"scored":{"first":0,"tokens":[1,4,1,5,9],"alternatives":6}' in plan.to_json()
    engine.accept(plan, engine.execute(plan))
    plan = engine.plan()
    assert plan is not None
    assert '"logits":[1],"scored":{"first":0,"tokens":[2],"alternatives":6}' in plan.to_json()


def test_more_alternatives_than_tokens_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="prompt_logprobs is 42; give at most 41"):
        token_engine(model).add(GenerationRequest([1, 2], scoring(42)))
