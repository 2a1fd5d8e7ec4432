"""One trace of requests, every way to run it: always the tokens that the model says without a cache.

In fp32, so that any difference is an indexing bug. Pages that are free hold NaN before every step.
"""

import itertools
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine import small_models
from engine.small_models import (
    DELTA,
    LATENT,
    LLAMA,
    MAMBA,
    MIXED,
    SLIDING,
    Answer,
    assert_nothing_held,
    greedy,
    poison_free_pages,
    small_model,
    uncached_answers,
)
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import StateSpec
from ridgeline.core.text import load_tokenizer
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculator import Speculator
from support.cards import placed
from support.drafters import ReplayDrafter
from support.engines import MakeRunner, RecordingRunner, complete, token_engine
from support.wall_models import reference, wall_model

TOLERANCE = 1e-5  # of the largest |logit|: what rounding does when rows are summed in another order
SMALLEST_GAP = 100 * TOLERANCE  # between the two likeliest tokens: only then is an equal token no luck


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the trace: the step before which it comes, what it wants, and what its encoder is to read."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1
    encoder: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its trace and the reference answer to each prompt."""

    model: Model
    trace: tuple[Asked, ...]
    answers: Mapping[Asked, Answer]


def make_trace(text: Sequence[int]) -> tuple[Asked, ...]:
    """Equal prompts, shared prefixes, lengths around every page size, long and short answers, two choices of one."""

    def tokens(part: int, length: int) -> tuple[int, ...]:
        return tuple(text[10 * part : 10 * part + length])

    stem = tokens(1, 33)
    return (
        Asked(0, tokens(2, 15), 22),
        Asked(0, stem[:16], 20),
        Asked(0, stem[:16], 20),
        Asked(0, (*stem, 5), 6),
        Asked(1, (*stem[:17], *tokens(3, 47)), 3),
        Asked(2, tokens(4, 1), 36),
        Asked(2, (*stem, *tokens(5, 32)), 4),
        Asked(3, (*stem[:4], 9), 30, n=2),
        Asked(4, (*stem, 5), 12),
        Asked(5, tokens(6, 3), 34),
        Asked(9, (*stem[:32], *tokens(7, 39)), 1),
        Asked(12, stem[:16], 5, n=2),
        Asked(30, (*stem, *tokens(5, 32)), 7),
    )


def with_encoders(trace: Sequence[Asked], text: Sequence[int]) -> tuple[Asked, ...]:
    """The trace for an encoder-decoder: inputs longer and shorter than prompts; of equal prompts some have equal
    inputs, some others."""
    lengths = (19, 8, 1, 16, 8, 33, 16, 5, 16, 12, 8, 8, 17)
    return tuple(replace(asked, encoder=tuple(text[-n:])) for asked, n in zip(trace, lengths, strict=True))


def make_subject(model: Model, text: Sequence[int]) -> Subject:
    return uncached_subject(model, make_trace(text))


def uncached_subject(model: Model, trace: tuple[Asked, ...]) -> Subject:
    """With what the model itself says without a cache, on the processor."""
    answers = uncached_answers(model, [(asked.prompt, asked.max_tokens) for asked in trace])
    return Subject(there(model), trace, dict(zip(trace, answers, strict=True)))


def there(model: Model) -> Model:
    """The model where RIDGELINE_TEST_DEVICE says that the trace is to run (cuda), by default where it is."""
    device = os.environ.get("RIDGELINE_TEST_DEVICE")
    return placed(model, torch.device(device)) if device else model


def make_wall_subject(name: str, seed: int) -> Subject:
    """A model that only tests have, with what plain torch answers."""
    model = wall_model(name, seed)
    text = random.Random(1).choices(range(model.vocabulary), k=120)
    trace = with_encoders(make_trace(text), text) if model.has_cross_attention else make_trace(text)

    def answer(asked: Asked) -> Answer:
        return greedy(lambda ids: reference(name, model, ids, asked.encoder), asked.prompt, asked.max_tokens)

    answers = {asked: answer(asked) for asked in trace}
    return Subject(there(model), trace, answers)


STORY = """The sun was up and the sky was blue. Tom had a red ball and a big brown dog. The dog ran to the tree, and Tom
saw a small bird in it. "Look, a bird!" he said. The bird was sad. It could not fly. Tom and his mom put it in a box
with some soft leaves. One day the bird was happy again, and it flew away over the house."""

# Seeds (and the place in the story) whose answers are varied, with no two tokens nearly as likely anywhere.
SUBJECTS = {"full": (LLAMA, 48), "sliding": (SLIDING, 48), "mixed": (MIXED, 38), "latent": (LATENT, 23)}
STATES = {"delta rule": (DELTA, 0), "Mamba-2": (MAMBA, 0)}
WALLS = {"latent": 18, "widths": 0, "mixed reaches": 24, "everything": 9, "encoder-decoder": 41}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    model = small_model(*SUBJECTS[request.param])
    return make_subject(model, random.Random(1).choices(range(model.vocabulary), k=120))


@pytest.fixture(scope="module", params=STATES)
def state(request: pytest.FixtureRequest) -> Subject:
    model = small_model(*STATES[request.param])
    return make_subject(model, random.Random(1).choices(range(model.vocabulary), k=120))


@pytest.fixture(scope="module", params=WALLS)
def wall(request: pytest.FixtureRequest) -> Subject:
    return make_wall_subject(request.param, WALLS[request.param])


@pytest.fixture(scope="module")
def stories(data_dir: Path) -> Subject:
    folder = data_dir / "models" / "stories260K"
    return make_subject(load_model(str(folder)), load_tokenizer(folder).encode(STORY)[20:])


# -- ways to run the trace --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """load: one request at a time, many, many in a pool so small that some are preempted, or where they also are by
    hand, because layers that keep little leave room."""

    load: str
    chunk: int | None
    prefix_cache: bool
    page_size: int
    aborts: bool

    def __str__(self) -> str:
        cache = "cache" if self.prefix_cache else "no cache"
        return f"{self.load}, chunk {self.chunk}, {cache}, page {self.page_size}{', aborts' * self.aborts}"

    @property
    def limits(self) -> Limits:
        return Limits(requests=1 if self.load == "alone" else 16, chunk=self.chunk)

    @property
    def positions(self) -> int:
        """Positions of the pool; the longest request of the trace has 72."""
        return 73 if self.load in ("crowded", "preempted") else 1200


AXES: tuple[tuple[object, ...], ...] = (
    ("alone", "many", "crowded"),
    (1, 7, 64, None),
    (False, True),
    (1, 4, 16),
    (False, True),
)


def pairs_of(row: Sequence[object]) -> set[tuple[int, object, int, object]]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def pairwise(axes: Iterable[Sequence[object]], seed: int) -> list[tuple[object, ...]]:
    """Rows in which any two values of two axes meet at least once (greedy: the row that adds most pairs). seed: of the
    order in which those that add as many are taken; some orders need fewer rows than others."""
    rows = list(itertools.product(*axes))
    random.Random(seed).shuffle(rows)
    missing = set().union(*map(pairs_of, rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs_of(row) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


# Seeds that give as many rows as the two longest axes have pairs, which is the fewest that there can be.
WAYS = [Way(*row) for row in pairwise(AXES, seed=6571)]  # type: ignore[arg-type]
WALL_AXES = (("alone", "many", "preempted"), (3, 64, None), (False, True), (1, 3, 16), (False, True))
WALL_WAYS = [Way(*row) for row in pairwise(WALL_AXES, seed=5)]  # type: ignore[arg-type]


# -- running ----------------------------------------------------------------------------------------------------------


def run(engine: Engine, trace: Sequence[Asked], way: Way) -> dict[int, Asked]:
    """Run the trace to its end; returns what each id asked. Collects tokens in each request itself."""
    ids: dict[int, Asked] = {}
    neighbours: dict[int, int] = {}  # id -> the step before which it is aborted
    for step in itertools.count():
        for asked in trace:
            if asked.step == step:
                params = SamplingParams(temperature=0.0, max_tokens=asked.max_tokens, n=asked.n, ignore_eos=True)
                ids[engine.add(GenerationRequest(asked.prompt, params, encoder=asked.encoder))] = asked
                if way.aborts and asked.step in (0, 2, 4):
                    # The same prompt again, so that the neighbour's pages are shared when it goes.
                    params = SamplingParams(n=3, seed=1)
                    neighbour = engine.add(GenerationRequest(asked.prompt, params, encoder=asked.encoder))
                    neighbours[neighbour] = step + 2 * len(neighbours) + 1
        for request, end in neighbours.items():
            if end == step:
                engine.abort(request)
        if way.load == "preempted" and step % 7 == 3 and len(engine.scheduler.running) > 1:
            engine.scheduler.preempt(engine.scheduler.running[-1])
        if not engine.has_work and step > trace[-1].step:
            return ids
        poison_free_pages(engine)
        for event in engine.step():
            assert event.error is None, event.error
        engine.kv_cache_manager.check()
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Ran:
    """A trace that was run in some way. asked: what each id asked, of its first choice. done: every choice. logits: of
    every request and position that ran."""

    engine: Engine
    asked: Mapping[int, Asked]
    done: Mapping[int, Request]
    logits: Mapping[tuple[int, int], torch.Tensor]


def run_way(
    model: Model,
    trace: Sequence[Asked],
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
    speculator: Speculator | None = None,
    runner: MakeRunner = RecordingRunner,
) -> Ran:
    """Run a trace this way, to the end of every request. runner: one that records."""
    engine = token_engine(
        model,
        runner=runner,
        page_size=way.page_size,
        limits=way.limits,
        positions=way.positions,
        prefix_cache=way.prefix_cache,
        speculator=speculator,
    )
    done: dict[int, Request] = {}
    release = engine.scheduler.release

    def keep(request: Request) -> None:
        done[request.id] = request
        release(request)

    monkeypatch.setattr(engine.scheduler, "release", keep)
    # One at a time takes many steps; a few requests are enough to see that nothing depends on neighbours.
    asked = run(engine, trace[::3] if way.load == "alone" else trace, way)
    assert isinstance(engine.executor, RecordingRunner)
    return Ran(engine, asked, done, engine.executor.logits)


def guessing(subject: Subject) -> Speculator:
    """Three guesses a step, of which most are right, at the answers of a subject; anything for those of neighbours."""
    answers: dict[tuple[int, ...], list[int]] = {}
    for asked, answer in subject.answers.items():  # of equal prompts the longest begins with the others
        known = answers.setdefault((*asked.prompt, -1, *asked.encoder), answer.tokens)
        answers[(*asked.prompt, -1, *asked.encoder)] = max(known, answer.tokens, key=len)

    def answer_of(request: Request) -> Sequence[int] | None:
        return answers[(*request.tokens.prompt, -1, *request.spec.encoder)] if request.spec.params.greedy else None

    outputs = subject.model.vocabulary
    return Speculator(ReplayDrafter(answer_of, 0.7, outputs), 3, outputs)


def check_way(
    subject: Subject,
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
    speculator: Speculator | None = None,
    runner: MakeRunner = RecordingRunner,
) -> None:
    """Run the trace this way and compare every token and every logit that was computed."""
    ran_so = run_way(subject.model, subject.trace, way, monkeypatch, speculator, runner)
    engine, done, logits = ran_so.engine, ran_so.done, ran_so.logits
    for request, asked in ran_so.asked.items():
        answer = subject.answers[asked]
        largest = float(answer.logits.abs().max())
        for choice in range(asked.n):
            own = done[request + choice]
            assert own.output == answer.tokens, f"{asked}"
            ran = [position for position in range(own.cached, own.known - 1) if (own.id, position) in logits]
            # One that starts again may find what others have computed in the meantime.
            assert len(ran) == own.known - 1 - own.cached or own.preemptions
            error = torch.stack([logits[own.id, position] for position in ran]) - answer.logits[ran]
            assert float(error.abs().max()) <= TOLERANCE * largest, f"{asked}, choice {choice}"
    short = way.load in ("crowded", "preempted")
    assert (engine.scheduler.preemptions > 0) == short or (short and speculator is not None)  # which needs fewer steps
    first_choices = [done[request] for request in ran_so.asked]
    finds = way.prefix_cache and not any(isinstance(spec, StateSpec) for spec in subject.model.kv_specs)
    if finds and way.positions > 1000:
        assert sum(request.cached for request in first_choices) >= 32
    elif not finds:
        assert all(request.cached == 0 for request in first_choices)
    assert_nothing_held(engine)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_tokens_whatever_the_way(subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(subject, way, monkeypatch)


@pytest.mark.parametrize("way", WALL_WAYS, ids=str)
def test_models_that_only_tests_have(wall: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain torch: latents, widths and reaches side by side, an encoder's rows."""
    check_way(wall, way, monkeypatch)


@pytest.mark.parametrize("way", WALL_WAYS, ids=str)
def test_layers_that_keep_a_state(state: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carried from chunk to chunk, begun anew after a preemption, and never found by its prefix."""
    check_way(state, way, monkeypatch)


@pytest.mark.parametrize("way", [way for way in WAYS if way.load != "alone"][::3], ids=str)
def test_a_trained_model_too(stories: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(stories, way, monkeypatch)


def check_guessed(
    subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch, runner: MakeRunner = RecordingRunner
) -> None:
    """The same with guesses, which are right, wrong, and for others at once; a chunk of one position has no room for
    any."""
    speculator = guessing(subject)
    check_way(subject, way, monkeypatch, speculator, runner)
    if way.chunk == 1:
        assert speculator.drafts == 0
    else:
        assert speculator.drafts > 20
        assert 0 < speculator.accepted_tokens < speculator.draft_tokens
    assert isinstance(speculator.drafter, ReplayDrafter)
    assert speculator.drafter.asked <= speculator.drafter.forgotten, "a drafter keeps what it knew of every request"


@pytest.mark.parametrize("way", WAYS[::2], ids=str)
def test_the_same_tokens_with_guesses(subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_guessed(subject, way, monkeypatch)


@pytest.mark.parametrize("way", WALL_WAYS[::3], ids=str)
def test_guesses_in_models_that_only_tests_have(wall: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_guessed(wall, way, monkeypatch)


def check_gaps(subject: Subject) -> None:
    """If two tokens were nearly as likely, equal tokens would be luck and different ones no bug."""
    for asked, answer in subject.answers.items():
        gap = answer.smallest_gap / float(answer.logits.abs().max())
        assert gap > SMALLEST_GAP, f"{asked}: the two likeliest tokens are {gap:.1e} of the largest logit apart"


def test_the_likeliest_token_is_likelier_by_far(subject: Subject) -> None:
    check_gaps(subject)


def test_the_likeliest_token_is_likelier_by_far_in_models_of_tests(wall: Subject) -> None:
    check_gaps(wall)


def test_the_likeliest_token_is_likelier_by_far_with_states(state: Subject) -> None:
    check_gaps(state)


def test_the_likeliest_token_is_likelier_by_far_in_a_trained_model(stories: Subject) -> None:
    check_gaps(stories)


def test_every_two_choices_meet() -> None:
    for ways, axes in ((WAYS, AXES), (WALL_WAYS, WALL_AXES)):
        rows = [(way.load, way.chunk, way.prefix_cache, way.page_size, way.aborts) for way in ways]
        assert set().union(*map(pairs_of, rows)) == set().union(*map(pairs_of, itertools.product(*axes)))
        assert len(ways) == len(axes[0]) * len(axes[1])


def test_a_prompt_that_was_found_goes_on_as_it_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, of prompts of 16k + 1 tokens, all but one position lies in full pages: where only that one ran again,
    seven of these twelve went on with other text."""
    monkeypatch.setattr(small_models, "WEIGHT_STD", 0.3)
    model = small_model(LLAMA | {"torch_dtype": "bfloat16"})
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    engine = token_engine(model, page_size=16, positions=4096, prefix_cache=True)
    params, draw = SamplingParams(seed=5, max_tokens=40, ignore_eos=True), random.Random(1)
    same = 0
    for pages in [1, 2, 3, 4] * 3:
        prompt = [draw.randrange(41) for _ in range(16 * pages + 1)]
        first, again = (complete(engine, [prompt], params) for _ in range(2))
        same += first == again
    assert same >= 11
    assert engine.stats.reused_tokens == 16 * 3 * (0 + 1 + 2 + 3)


# -- guesses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [0, 1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_give_the_tokens_that_would_have_been_sampled(temperature: float, right: int) -> None:
    """A step that runs three guesses, of which some are right, beside another request: as many tokens as were right and
    one more, each drawn with the number of its own position; what was guessed wrong is written again."""
    model, params = small_model(LLAMA), SamplingParams(temperature=temperature, seed=5, max_tokens=9, ignore_eos=True)
    (wanted,) = complete(token_engine(model), [[3, 1, 4, 1, 5]], params)
    engine = token_engine(model)
    for ids in ([3, 1, 4, 1, 5], [9, 2, 6]):
        engine.add(GenerationRequest(ids, params))
    engine.step()
    plan = engine.plan()
    assert plan is not None
    item, beside = plan.items
    guesses = [*wanted[1 : 1 + right], *((token + 1) % 41 for token in wanted[1 + right : 4])]
    assert engine.kv_cache_manager.grow(item.request, 5 + 4)
    _, pages = engine.kv_cache_manager.unsent(item.request)
    pages = tuple(known + new for known, new in zip(item.pages, pages, strict=True))
    guessing = structs.replace(item, tokens=(wanted[0], *guesses), logits=(0, 1, 2, 3), pages=pages)
    plan = replace(plan, items=(guessing, beside), blank=tuple(engine.kv_cache_manager.pages_to_zero))
    engine.kv_cache_manager.pages_to_zero.clear()
    outcomes = engine.execute(plan)
    assert len(outcomes) == 2
    engine.accept(plan, outcomes)
    request = engine.requests[item.request]
    assert request.output == wanted[: 2 + right]
    assert request.computed == 5 + 1 + right
    while engine.has_work:
        engine.step()
    assert request.output == wanted
