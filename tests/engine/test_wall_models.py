"""An encoder-decoder in the engine: whose pages are shared, when its encoder runs, what its steps cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.collecting import finish_all
from engine.small_models import assert_nothing_held, poison_free_pages
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.models.model import Model
from ridgeline.ops.work import ENCODER, Work
from ridgeline.roofline.price import Price
from support.engines import GREEDY, token_engine
from support.wall_models import reference, wall_model

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
    *, page_size: int = 4, chunk: int | None = None, prefix_cache: bool = True, positions: int = 600, requests: int = 16
) -> Watched:
    """The encoder-decoder in an engine."""
    model, steps = wall_model("encoder-decoder", 41), list[StepRecord]()
    limits = Limits(chunk=chunk, requests=requests)
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
    align = max(group.page_size for group in run.engine.ledger.groups if group.spec.grows)
    cached, told = [], []
    for encoder in (INPUT, OTHER, INPUT, INPUT[:-1], OTHER):
        run.engine.add(PROMPT, answer_of(6), encoder=encoder)
        told += run.answers(1)
        cached.append(run.engine.stats.cached_tokens - sum(cached))
    assert cached == [0, 0, (len(PROMPT) - 1) // align * align, 0, (len(PROMPT) - 1) // align * align]
    assert run.encoded == 4 * 11 + 10
    expected = {e: greedy(run.model, PROMPT, e, 6) for e in (INPUT, OTHER, INPUT[:-1])}
    assert told == [expected[e] for e in (INPUT, OTHER, INPUT, INPUT[:-1], OTHER)]
    assert len(set(told)) == 3, "the input makes no difference to the tokens"


@pytest.mark.parametrize("chunk", [None, 3])
def test_choices_share_the_encoders_pages(chunk: int | None) -> None:
    """Three choices of a prompt beside another request: the encoder runs once for each of the two."""
    run = watched(chunk=chunk, prefix_cache=False)
    first = run.engine.add(PROMPT, answer_of(9, n=3), encoder=INPUT)
    run.engine.add(PROMPT, answer_of(5), encoder=OTHER)
    (cross,) = [index for index, group in enumerate(run.engine.ledger.groups) if not group.spec.grows]
    seen: list[list[list[int]]] = []

    def note(_: int) -> None:
        tables = run.engine.ledger.tables
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
    run = watched(page_size=page_size, requests=2, chunk=3)
    run.engine.add(PROMPT, answer_of(7, n=4), encoder=INPUT)
    assert run.answers(4) == [greedy(run.model, PROMPT, INPUT, 7)] * 4
    assert run.encoded in (2 * len(INPUT), 3 * len(INPUT))


def test_a_step_is_priced_with_its_encoder() -> None:
    """The work that an observer is told is what the price takes, encoder and cross-attention included."""
    run = watched(chunk=5)
    for encoder in (INPUT, OTHER[:4]):
        run.engine.add(PROMPT, GREEDY, encoder=encoder)
    run.answers(2)
    price = Price(run.model)
    for step in run.steps:
        assert step.work == Work.of(
            [item.segment for item in step.plan.items], run.model.reaches, sum(len(i.logits) for i in step.plan.items)
        )
        assert price.step(step.work).total_flops > 0
    decodes = [step for step in run.steps if step.decodes_only and step.work.tokens == 2]
    contexts = [item.segment.kv_len for item in decodes[-1].plan.items]
    assert price.step(decodes[-1].work) == price.step(Work.decode(contexts, run.model.reaches, [11, 4]))


def test_inputs_that_cannot_run_are_refused() -> None:
    """An encoder-decoder wants an input, others have no use for one, and it has to fit into memory."""
    run = watched(positions=20)
    with pytest.raises(ValueError, match="encoder"):
        run.engine.add(PROMPT)
    with pytest.raises(ValueError, match="out of range"):
        run.engine.add((3,), encoder=(67,))
    with pytest.raises(ValueError, match="KV memory"):
        run.engine.add((3,), encoder=tuple(range(60)))
    with pytest.raises(ValueError, match="encoder"):
        token_engine(wall_model("latent")).add(PROMPT, encoder=INPUT)
    assert not run.engine.has_work
