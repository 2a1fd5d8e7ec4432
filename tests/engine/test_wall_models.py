"""An encoder-decoder in the engine: whose pages are shared, when its encoder runs, what its steps cost. And models
without a head: a request is a prompt, its answer the hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.collecting import finish_all
from engine.small_models import assert_nothing_held, poison_free_pages
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import ENCODER, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord, TokenEvent
from ridgeline.engine.generation_request import DEFAULT_PARAMS, GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Outcome, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.price.price import Price
from support.engines import GREEDY, token_engine
from support.wall_models import HEADLESS, VOCABULARY, reference, wall_model

PROMPT = tuple(range(3, 22))
INPUT, OTHER = tuple(range(40, 51)), tuple(range(30, 41))


@dataclass
class Watched:
    """An engine whose steps are kept."""

    model: Model
    engine: Engine
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def encoded(self) -> int:
        """Positions that the encoder ran."""
        return sum(step.work.rows.get(ENCODER, 0) for step in self.steps)

    def answers(self, wanted: int) -> list[tuple[int, ...]]:
        """Run all to their ends; the tokens of each choice."""
        choices = finish_all(self.engine, before_step=lambda _: poison_free_pages(self.engine))
        assert_nothing_held(self.engine)
        assert len(choices) == wanted
        return [tuple(sampled.token for sampled in choices[key].tokens) for key in sorted(choices)]


def watched(
    limits: Limits | None = None, *, page_size: int = 4, prefix_cache: bool = True, positions: int = 600
) -> Watched:
    """The encoder-decoder in an engine."""
    model, steps = wall_model("encoder-decoder", 41), list[StepRecord]()
    engine = token_engine(
        model, page_size=page_size, limits=limits, positions=positions, prefix_cache=prefix_cache, on_step=steps.append
    )
    return Watched(model, engine, steps)


def answer_of(tokens: int, n: int = 1) -> SamplingParams:
    """So many greedy tokens in each of n choices."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, n=n)


def greedy(model: Model, prompt: Sequence[int], encoder: Sequence[int], count: int) -> tuple[int, ...]:
    """What plain torch says."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference("encoder-decoder", model, tokens, encoder)[-1].argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize("page_size", [1, 4])
def test_equal_prompts_share_pages_only_under_equal_inputs(page_size: int) -> None:
    """The keys of a decoder depend on what it has read from the encoder; those of cross-attention are each one's own,
    so that the encoder runs also where the prompt is found."""
    run = watched(page_size=page_size)
    align = max(group.page_size for group in run.engine.kv_cache_manager.groups if group.spec.grows)
    cached, told = [], []
    for encoder in (INPUT, OTHER, INPUT, INPUT[:-1], OTHER):
        run.engine.add(GenerationRequest(PROMPT, answer_of(6), encoder=encoder))
        told += run.answers(1)
        cached.append(run.engine.stats.reused_tokens - sum(cached))
    found = (len(PROMPT) - 2) // align * align  # the last two positions run again
    assert cached == [0, 0, found, 0, found]
    assert run.encoded == 4 * 11 + 10
    expected = {e: greedy(run.model, PROMPT, e, 6) for e in (INPUT, OTHER, INPUT[:-1])}
    assert told == [expected[e] for e in (INPUT, OTHER, INPUT, INPUT[:-1], OTHER)]
    assert len(set(told)) == 3, "the input makes no difference to the tokens"


@pytest.mark.parametrize("chunk", [None, 3])
def test_choices_share_the_encoders_pages(chunk: int | None) -> None:
    """Three choices of a prompt beside another request: the encoder runs once for each of the two."""
    run = watched(Limits(chunk=chunk), prefix_cache=False)
    first = run.engine.add(GenerationRequest(PROMPT, answer_of(9, n=3), encoder=INPUT))
    run.engine.add(GenerationRequest(PROMPT, answer_of(5), encoder=OTHER))
    (cross,) = [index for index, group in enumerate(run.engine.kv_cache_manager.groups) if not group.spec.grows]
    seen: list[list[list[int]]] = []

    def note(_: int) -> None:
        tables = run.engine.kv_cache_manager.tables
        if len(tables) == 4:
            seen.append([list(tables[first + choice].pages[cross]) for choice in range(4)])

    choices = finish_all(run.engine, before_step=note)
    assert seen
    for *ours, other in seen:
        assert ours[0] == ours[1] == ours[2]
        assert not set(ours[0]) & set(other)
    told = [tuple(sampled.token for sampled in choices[key].tokens) for key in sorted(choices)]
    assert told == [greedy(run.model, PROMPT, INPUT, 9)] * 3 + [greedy(run.model, PROMPT, OTHER, 5)]
    assert run.encoded == len(INPUT) + len(OTHER)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_choices_that_wait_run_the_encoder_again(page_size: int) -> None:
    """Two requests at a time: the third choice has no parent left to start from."""
    run = watched(Limits(requests=2, chunk=3), page_size=page_size)
    run.engine.add(GenerationRequest(PROMPT, answer_of(7, n=4), encoder=INPUT))
    assert run.answers(4) == [greedy(run.model, PROMPT, INPUT, 7)] * 4
    assert run.encoded in (2 * len(INPUT), 3 * len(INPUT))


def test_prompts_are_scored_beside_an_encoder() -> None:
    """What is known of a prompt's tokens depends on the encoder's input, and a prefix that is found spares none."""
    run = watched(Limits(chunk=3))
    params = replace(answer_of(2), prompt_logprobs=0)
    for encoder in (INPUT, INPUT, OTHER):
        run.engine.add(GenerationRequest(PROMPT, params, encoder=encoder))
        events = []
        while run.engine.has_work:
            events += run.engine.step()
        scores = [score for event in events for score in event.prompt_logprobs or ()]
        assert scores
        logits = reference("encoder-decoder", run.model, PROMPT, encoder)
        theirs = logits.log_softmax(-1)[range(len(PROMPT) - 1), PROMPT[1:]].tolist()
        assert [score.logprob for score in scores if score is not None] == pytest.approx(theirs, abs=1e-5)


def test_a_step_is_priced_with_its_encoder() -> None:
    """The work that an observer is told is what the price takes, encoder and cross-attention included."""
    run = watched(Limits(chunk=5))
    for encoder in (INPUT, OTHER[:4]):
        run.engine.add(GenerationRequest(PROMPT, GREEDY, encoder=encoder))
    run.answers(2)
    price = Price(run.model)
    for step in run.steps:
        assert step.work == Work.of(
            [item.segment for item in step.plan.items],
            run.model.attention_patterns,
            sum(len(i.logits) for i in step.plan.items),
        )
        assert price.step(step.work).total_flops > 0
    decodes = [step for step in run.steps if step.decodes_only and step.work.tokens == 2]
    contexts = [item.segment.kv_len for item in decodes[-1].plan.items]
    assert price.step(decodes[-1].work) == price.step(Work.decode(contexts, run.model.attention_patterns, [11, 4]))


@pytest.mark.parametrize("tokens", [13, 30])
def test_a_step_has_room_for_an_encoders_rows_too(tokens: int) -> None:
    """They run together, so that a request waits for a step that holds them; the limit is that of memory."""
    run = watched(Limits(tokens=tokens))
    inputs = (INPUT, OTHER[:4], OTHER, INPUT[:9], OTHER[:1])
    for encoder in inputs:
        run.engine.add(GenerationRequest(PROMPT, answer_of(5), encoder=encoder))
    assert run.answers(5) == [greedy(run.model, PROMPT, encoder, 5) for encoder in inputs]
    assert all(step.work.tokens + step.work.rows.get(ENCODER, 0) <= tokens for step in run.steps)
    for longest in (tuple(range(1, tokens)), tuple(range(tokens))):  # the second leaves no room, and runs alone
        run.engine.add(GenerationRequest(PROMPT[:2], answer_of(1), encoder=longest))
        assert run.answers(1) == [greedy(run.model, PROMPT[:2], longest, 1)]


class FailingOnce(Runner):
    """A Runner whose step of this number breaks once it has run."""

    at_step = -1

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        outcomes = super().execute(plan, rows)
        if plan.step == self.at_step:
            raise RuntimeError("something broke")
        return outcomes


@pytest.mark.parametrize("at_step", range(8))
@pytest.mark.parametrize("name", ["encoder-decoder", *HEADLESS])
def test_what_a_failed_step_gave_is_made_again(name: str, at_step: int) -> None:
    """An encoder runs again, hidden states are not told twice, prompts that have to be whole stay so."""
    model = wall_model(name, 41)
    engine = token_engine(model, runner=FailingOnce, limits=Limits(tokens=40, chunk=7), page_size=3, prefix_cache=True)
    assert isinstance(engine.executor, FailingOnce)
    engine.executor.at_step = at_step
    params, prompts = answer_of(4, n=2) if model.has_head else DEFAULT_PARAMS, [PROMPT, PROMPT[:12], PROMPT[:3]]
    inputs = [INPUT, OTHER[:4], INPUT[:9]] if model.has_cross_attention else [()] * 3
    both = list(zip(prompts, inputs, strict=True))
    asked = {
        engine.add(GenerationRequest(prompt, params, encoder=encoder)): (prompt, encoder) for prompt, encoder in both
    }
    events: list[TokenEvent] = []
    while engine.has_work:
        poison_free_pages(engine)
        events += engine.step()
        engine.kv_cache_manager.check()
    assert_nothing_held(engine)
    failed = {event.request for event in events if event.error is not None}
    assert len(failed) <= 1, "who was not alone in the step is not to blame"
    for request, (prompt, encoder) in asked.items():
        own = [event for event in events if event.request == request]
        if request in failed:
            continue
        if not model.has_head:
            (event,) = own
            assert event.hidden is not None
            theirs = reference(name, model, prompt)
            assert abs(event.hidden - theirs.numpy()).max() <= 1e-5 * float(theirs.abs().max())
            continue
        for choice in range(2):
            told = [event.token.token for event in own if event.choice == choice and event.token is not None]
            assert tuple(told) == greedy(model, prompt, encoder, 4)


def test_inputs_that_cannot_run_are_refused() -> None:
    """An encoder-decoder wants an input, others have no use for one, and it has to fit into memory."""
    run = watched(positions=20)
    with pytest.raises(ValueError, match="encoder"):
        run.engine.add(GenerationRequest(PROMPT))
    with pytest.raises(ValueError, match="out of range"):
        run.engine.add(GenerationRequest((3,), encoder=(67,)))
    with pytest.raises(ValueError, match="the KV cache holds"):
        run.engine.add(GenerationRequest((3,), encoder=tuple(range(60))))
    with pytest.raises(ValueError, match="encoder"):
        token_engine(wall_model("latent")).add(GenerationRequest(PROMPT, encoder=INPUT))
    assert not run.engine.has_work


# -- without a head ---------------------------------------------------------------------------------------------------


def prompts_of(*lengths: int) -> list[tuple[int, ...]]:
    return [tuple((7 * length + 5 * i) % VOCABULARY for i in range(length)) for length in lengths]


def embedded(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[TokenEvent]:
    """Add these and run them to their ends; the only event of each."""
    ids = [engine.add(GenerationRequest(prompt)) for prompt in prompts]
    events: dict[int, TokenEvent] = {}
    while engine.has_work:
        poison_free_pages(engine)
        for event in engine.step():
            assert event.request not in events
            events[event.request] = event
    assert_nothing_held(engine)
    assert sorted(events) == ids
    return [events[request] for request in ids]


@pytest.mark.parametrize("tokens", [24, 64, 2048])
@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("name", HEADLESS)
def test_hidden_states_of_prompts(name: str, chunk: int | None, tokens: int) -> None:
    """In one step each where positions all see each other, whatever a chunk is; in chunks where they do not."""
    model, steps = wall_model(name), list[StepRecord]()
    limits = Limits(tokens=tokens, chunk=chunk)
    engine = token_engine(model, limits=limits, page_size=3, prefix_cache=True, on_step=steps.append)
    prompts = prompts_of(1, 24, 9, 9, 23, 2)
    both = [*embedded(engine, prompts), *embedded(engine, prompts)]  # nothing that is cached spares a position
    for event, prompt in zip(both, prompts * 2, strict=True):
        assert event.finish is FinishReason.STOP
        assert event.token is None
        assert event.hidden is not None
        theirs = reference(name, model, prompt)
        assert event.hidden.dtype == "float32"
        assert event.hidden.shape == theirs.shape
        assert abs(event.hidden - theirs.numpy()).max() <= 1e-5 * float(theirs.abs().max())
    price = Price(model)
    for step in steps:
        assert step.work.tokens <= tokens
        assert step.work.logit_rows == step.work.tokens
        assert price.step(step.work).total_flops > 0
        assert all(item.start == 0 and item.logits for item in step.plan.items) or name != "encoder"
    assert sum(step.work.tokens for step in steps) == 2 * sum(map(len, prompts))
    assert len(steps) >= 4 or tokens == 2048


def test_hidden_states_are_given_once_whatever_is_preempted() -> None:
    """A decoder that embeds, preempted after every step: what was told is not told again."""
    model = wall_model("embedder")
    engine = token_engine(model, limits=Limits(chunk=5, requests=2), page_size=4)
    engine.add(GenerationRequest(prompts_of(17)[0]))
    told = []
    while engine.has_work:
        for event in engine.step():
            told.append(event)
        if len(engine.scheduler.running) == 1 and engine.scheduler.preemptions < 2:
            engine.scheduler.preempt(engine.scheduler.running[0])
    (event,) = told
    theirs = reference("embedder", model, prompts_of(17)[0])
    assert event.hidden is not None
    assert event.hidden.shape == theirs.shape
    assert abs(event.hidden - theirs.numpy()).max() <= 1e-5 * float(theirs.abs().max())
    assert engine.stats.wasted_tokens > 0


def test_prompts_that_a_model_without_a_head_cannot_run_are_refused() -> None:
    """Its context may be filled, nothing is sampled, and a prompt has to fit into a step."""
    engine = token_engine(wall_model("encoder"), limits=Limits(tokens=90))
    with pytest.raises(
        ValueError, match="has 91 tokens, which must run in one step, but a step runs at most 90: shorten the prompt"
    ):
        engine.add(GenerationRequest([1] * 91))
    with pytest.raises(ValueError, match="the model's context is 96"):
        engine.add(GenerationRequest([1] * 97))
    with pytest.raises(ValueError, match="no head to sample with: leave the sampling parameters out"):
        engine.add(GenerationRequest([1], SamplingParams(temperature=0.0)))
    assert not engine.has_work
    engine = token_engine(wall_model("encoder"))
    (event,) = embedded(engine, [[1] * 96])
    assert event.hidden is not None
    assert len(event.hidden) == 96
