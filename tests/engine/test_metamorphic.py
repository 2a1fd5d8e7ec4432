"""One trace of requests, every way to run it: always the tokens that the model says without a cache.

fp32 and plain torch, so that any difference is an indexing bug. Pages that are free hold NaN before every step.
"""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.small_models import (
    LLAMA,
    MIXED,
    SLIDING,
    Answer,
    assert_nothing_held,
    poison_free_pages,
    small_model,
    uncached_answer,
)
from ridgeline.checkpoint import load_model
from ridgeline.engine.engine import Engine
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Limits
from ridgeline.models.model import Model
from ridgeline.text import load_tokenizer
from support.engines import RecordingRunner, token_engine

TOLERANCE = 1e-5  # of the largest |logit|: what rounding does when rows are summed in another order
SMALLEST_GAP = 100 * TOLERANCE  # between the two likeliest tokens: only then is an equal token no luck


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the trace: the step before which it comes, and what it wants."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1


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


def make_subject(model: Model, text: Sequence[int]) -> Subject:
    trace = make_trace(text)
    return Subject(model, trace, {asked: uncached_answer(model, asked.prompt, asked.max_tokens) for asked in trace})


STORY = """The sun was up and the sky was blue. Tom had a red ball and a big brown dog. The dog ran to the tree, and Tom
saw a small bird in it. "Look, a bird!" he said. The bird was sad. It could not fly. Tom and his mom put it in a box
with some soft leaves. One day the bird was happy again, and it flew away over the house."""

# Seeds (and the place in the story) whose answers are varied, with no two tokens nearly as likely anywhere.
SUBJECTS = {"full": (LLAMA, 48), "sliding": (SLIDING, 48), "mixed": (MIXED, 38)}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    model = small_model(*SUBJECTS[request.param])
    return make_subject(model, random.Random(1).choices(range(model.vocabulary), k=120))


@pytest.fixture(scope="module")
def stories(data_dir: Path) -> Subject:
    folder = data_dir / "models" / "stories260K"
    return make_subject(load_model(str(folder)), load_tokenizer(folder).encode(STORY)[20:])


# -- ways to run the trace --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """load: one request at a time, many, or many in a pool so small that some are preempted."""

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
        return 73 if self.load == "crowded" else 1200


AXES: tuple[tuple[object, ...], ...] = (
    ("alone", "many", "crowded"),
    (1, 7, 64, None),
    (False, True),
    (1, 4, 16),
    (False, True),
)


def pairs_of(row: Sequence[object]) -> set[tuple[int, object, int, object]]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def pairwise(axes: Iterable[Sequence[object]]) -> list[tuple[object, ...]]:
    """Rows in which any two values of two axes meet at least once (greedy: the row that adds most pairs)."""
    rows = list(itertools.product(*axes))
    missing = set().union(*map(pairs_of, rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs_of(row) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


WAYS = [Way(*row) for row in pairwise(AXES)]  # type: ignore[arg-type]


# -- running ----------------------------------------------------------------------------------------------------------


def run(engine: Engine, trace: Sequence[Asked], *, aborts: bool) -> dict[int, Asked]:
    """Run the trace to its end; returns what each id asked. Collects tokens in each request itself."""
    ids: dict[int, Asked] = {}
    neighbours: dict[int, int] = {}  # id -> the step before which it is aborted
    for step in itertools.count():
        for asked in trace:
            if asked.step == step:
                params = SamplingParams(temperature=0.0, max_tokens=asked.max_tokens, n=asked.n, ignore_eos=True)
                ids[engine.add(asked.prompt, params)] = asked
                if aborts and asked.step in (0, 2, 4):
                    # The same prompt again, so that the neighbour's pages are shared when it goes.
                    neighbours[engine.add(asked.prompt, SamplingParams(n=3, seed=1))] = step + 2 * len(neighbours) + 1
        for request, end in neighbours.items():
            if end == step:
                engine.abort(request)
        if not engine.has_work and step > trace[-1].step:
            return ids
        poison_free_pages(engine)
        for event in engine.step():
            assert event.error is None, event.error
        engine.ledger.check()
    raise AssertionError


def check_way(subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the trace this way and compare every token and every logit that was computed."""
    engine = token_engine(
        subject.model,
        runner=RecordingRunner,
        page_size=way.page_size,
        limits=way.limits,
        positions=way.positions,
        prefix_cache=way.prefix_cache,
    )
    done: dict[int, Request] = {}
    release = engine.scheduler.release

    def keep(request: Request) -> None:
        done[request.id] = request
        release(request)

    monkeypatch.setattr(engine.scheduler, "release", keep)
    # One at a time takes many steps; a few requests are enough to see that nothing depends on neighbours.
    trace = subject.trace[::3] if way.load == "alone" else subject.trace
    ids = run(engine, trace, aborts=way.aborts)

    assert isinstance(engine.executor, RecordingRunner)
    logits = engine.executor.logits
    for request, asked in ids.items():
        answer = subject.answers[asked]
        largest = float(answer.logits.abs().max())
        for choice in range(asked.n):
            own = done[request + choice]
            assert own.output == answer.tokens, f"{asked}"
            ran = range(own.cached, own.known - 1)
            error = torch.stack([logits[own.id, position] for position in ran]) - answer.logits[ran.start : ran.stop]
            assert float(error.abs().max()) <= TOLERANCE * largest, f"{asked}, choice {choice}"
    assert (engine.scheduler.preemptions > 0) == (way.load == "crowded")
    first_choices = [done[request] for request in ids]
    if way.prefix_cache and way.load != "crowded":
        assert sum(request.cached for request in first_choices) >= 32
    elif not way.prefix_cache:
        assert all(request.cached == 0 for request in first_choices)
    assert_nothing_held(engine)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_tokens_whatever_the_way(subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(subject, way, monkeypatch)


@pytest.mark.parametrize("way", [way for way in WAYS if way.load != "alone"][::3], ids=str)
def test_a_trained_model_too(stories: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(stories, way, monkeypatch)


def check_gaps(subject: Subject) -> None:
    """If two tokens were nearly as likely, equal tokens would be luck and different ones no bug."""
    for asked, answer in subject.answers.items():
        gap = answer.smallest_gap / float(answer.logits.abs().max())
        assert gap > SMALLEST_GAP, f"{asked}: the two likeliest tokens are {gap:.1e} of the largest logit apart"


def test_the_likeliest_token_is_likelier_by_far(subject: Subject) -> None:
    check_gaps(subject)


def test_the_likeliest_token_is_likelier_by_far_in_a_trained_model(stories: Subject) -> None:
    check_gaps(stories)


def test_every_two_choices_meet() -> None:
    rows = [(way.load, way.chunk, way.prefix_cache, way.page_size, way.aborts) for way in WAYS]
    assert set().union(*map(pairs_of, rows)) == set().union(*map(pairs_of, itertools.product(*AXES)))
    assert 12 <= len(WAYS) <= 20
