"""The engine where kernels for cards compute: in Triton's interpreter where there is no card. What a step captures is
made again in Python then, over the same numbers at the same places."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.small_models import LLAMA, MIXED, assert_nothing_held, small_model
from models.configs import CONFIGS
from ridgeline.engine import placement
from ridgeline.engine.bare import warm_up
from ridgeline.engine.capturing import Capture, CapturingRunner
from ridgeline.engine.events import StepRecord
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.placement import card_memory, device_named
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.engine.step_plan import StepPlan
from ridgeline.models.model import Model
from support.cards import HAS_CARD, TOLERANCE, cards_compute, close, needs_card, needs_triton, placed
from support.checkpoints import random_ours
from support.drafters import ReplayDrafter
from support.engines import complete, token_engine
from support.wall_models import wall_model

# Of the interpreter two: soft caps, windows, norms around; norms of heads. A card has time for more.
CAPTURED = {"gemma2", "qwen3"} | ({"llama", "mistral", "qwen2", "gpt2"} if HAS_CARD else set())


@pytest.fixture(autouse=True)
def _on_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where there is no card, no keys are cut into parts: each is some milliseconds of the interpreter."""
    if not HAS_CARD and find_spec("triton"):
        monkeypatch.setattr("ridgeline.ops.kernels.triton.attention._PROGRAMS", 1)
    with cards_compute():
        yield


class Again:
    """Stands for a graph where there is no card: the step in Python, its result always in the same place."""

    def __init__(self, step: Callable[[], Tensor]) -> None:
        self.step, self.result = step, step().clone()

    def replay(self) -> None:
        self.result.copy_(self.step())


class Keeping(CapturingRunner):
    """Keeps a copy of each step's logits, and how many steps were captured ones."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[Tensor] = []
        self.replayed = 0

    def step_logits(self, plan: StepPlan) -> Tensor:
        logits = super().step_logits(plan)
        self.seen.append(logits.clone())
        return logits

    def capture(self, plan: StepPlan) -> Capture | None:
        found = super().capture(plan)
        self.replayed += found is not None
        return found

    def captured(self, step: Callable[[], Tensor]) -> Capture:
        if HAS_CARD:
            return super().captured(step)
        again = Again(step)
        return Capture(again, again.result)  # type: ignore[arg-type]


class Plain(Runner):
    """The same without captures."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[Tensor] = []

    def step_logits(self, plan: StepPlan) -> Tensor:
        logits = super().step_logits(plan)
        self.seen.append(logits.clone())
        return logits


def logits_of(
    model: Model, runner: type[Runner], page_size: int = 4, *, guesses: bool = False
) -> tuple[list[Tensor], Any]:
    """The logits of every step of two requests, one of two choices, that end one after the other. guesses: with three
    more rows of each sequence, at random."""
    drafter = ReplayDrafter(lambda _: None, 0.0, model.vocabulary)
    speculator = Speculator(drafter, 3, model.vocabulary) if guesses else None
    engine = token_engine(model, runner=runner, page_size=page_size, speculator=speculator)
    for index in range(2):
        params = SamplingParams(max_tokens=3 + 2 * index, n=2 - index, ignore_eos=True, seed=index)
        engine.add([(7 * index + i) % model.vocabulary for i in range(3 + 2 * index)], params)
    while engine.has_work:
        assert [event.error for event in engine.step() if event.error] == []
    assert_nothing_held(engine)
    return engine.executor.seen, engine.executor  # type: ignore[attr-defined]


@needs_triton
@pytest.mark.parametrize("family", sorted(CAPTURED))
def test_captured_steps_give_what_the_processor_gives(family: str) -> None:
    """Prefills and decode steps of batches that do not fill their bucket, against torch on the processor."""
    model = random_ours(CONFIGS[family])
    assert model.captures
    found, runner = logits_of(placed(model), Keeping)
    assert runner._known.keys() <= {1, 2, 4}
    assert runner.replayed >= 3
    wanted, _ = _on_the_processor(model)
    assert len(found) == len(wanted)
    assert all(close(one, other, TOLERANCE[model.storage.dtype]) for one, other in zip(found, wanted, strict=True))


@needs_triton
def test_captured_steps_verify_guesses() -> None:
    """Each a row beside its sequence's, which sees those before it, in graphs of as many rows."""
    model = random_ours(CONFIGS["llama"])
    found, runner = logits_of(placed(model), Keeping, guesses=True)
    assert max(runner._known) >= 8
    wanted, _ = _on_the_processor(model, guesses=True)
    assert [len(one) for one in found] == [len(other) for other in wanted]
    assert max(map(len, found)) > 3
    assert all(close(one, other, TOLERANCE[model.storage.dtype]) for one, other in zip(found, wanted, strict=True))


def _on_the_processor(model: Model, *, guesses: bool = False) -> tuple[list[Tensor], Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeline.engine.runner.for_cards", lambda _: None)
        patch.setattr("ridgeline.ops.kernels.cards.cards_of", lambda _: None)
        return logits_of(model, Plain, guesses=guesses)


@needs_triton
@pytest.mark.parametrize("name", ["encoder-decoder", "everything"])
def test_what_is_not_captured_runs_all_the_same(name: str) -> None:
    """Latents, biases and encoders, which torch reads in part."""
    model = wall_model(name)
    assert not model.captures
    encoders = [(5, 6, 7), (8, 9)] if model.encodes else []
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    there = complete(token_engine(placed(model), runner=Keeping), prompts, encoders=encoders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeline.engine.runner.for_cards", lambda _: None)
        here = complete(token_engine(model, runner=Plain), prompts, encoders=encoders)
    assert there == here


@needs_triton
def test_an_engine_that_was_warmed_up_has_captured_and_answers_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_CARD:  # the interpreter takes a second for a few rows
        monkeypatch.setattr("ridgeline.engine.bare._WARMING", (2, 3))
    model = placed(small_model(LLAMA, 16))
    engine = token_engine(model, runner=Keeping)
    steps: list[StepRecord] = []
    engine.on_step = steps.append
    warm_up(engine)
    assert_nothing_held(engine)
    assert isinstance(engine.executor, Keeping)
    assert engine.executor._known.keys() == {1}
    assert steps == []
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    assert complete(engine, [[1, 2, 3]], params) == complete(token_engine(model, runner=Keeping), [[1, 2, 3]], params)
    assert steps


@needs_triton
def test_seats_are_given_up_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer seats than requests, which are taken from those that do not decode: the same tokens as alone."""
    monkeypatch.setattr("ridgeline.engine.capturing._FIRST_SEATS", 1)
    model = placed(small_model(MIXED, 38))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8], [13, 14]]
    alone = [complete(token_engine(model, runner=Keeping), [prompt], params)[0] for prompt in prompts]
    engine = token_engine(model, runner=Keeping, limits=Limits(requests=2))
    assert complete(engine, prompts, params) == alone
    assert isinstance(engine.executor, Keeping)
    assert engine.executor.replayed > 4
    assert engine.executor._tables is not None
    assert engine.executor._tables.seats > 1
    assert engine.stats.preemptions == 0  # a step that fails is made again, request by request


@needs_triton
def test_a_hook_sees_steps_that_were_captured_before() -> None:
    model = placed(small_model(LLAMA))
    engine, seen = token_engine(model, runner=Keeping), list[object]()
    engine.add([1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True))
    for step in range(6):
        if step == 3:
            handle = model.ops()[0][1].register_forward_hook(lambda *_: seen.append(1))
        engine.step()
        if step == 3:
            handle.remove()
    assert len(seen) == 1


def test_where_a_model_runs_is_said_in_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(device_named(name)) for name in ("cpu", "cuda", "cuda:1", "auto")] == [
        "cpu",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    with pytest.raises(ValueError, match="torch sees 2 CUDA devices"):
        device_named("cuda:2")
    for wrong in ("gpu", "cuda:x", "h100-sxm"):
        with pytest.raises(ValueError, match="give cpu, cuda, cuda:N"):
            device_named(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(device_named("auto")) == "cpu"
    with pytest.raises(ValueError, match="sees no CUDA device"):
        device_named("cuda")


def test_a_share_of_a_card_counts_what_others_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70e9, 80e9))
    device = torch.device("cuda", 0)
    assert card_memory(device, 0.5) == pytest.approx(30e9)
    assert card_memory(device, None) == pytest.approx(70e9 - (1 - placement.MEMORY_SHARE) * 80e9)
    assert card_memory(device, 0.1) == 0.0


@needs_card
def test_tokens_of_a_seed_are_those_of_the_processor() -> None:
    """The sampler on the card draws with the same uniform numbers."""
    model = small_model(LLAMA)
    params = SamplingParams(temperature=0.9, top_k=9, top_p=0.95, max_tokens=12, ignore_eos=True, seed=3)
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    there = complete(token_engine(placed(model), runner=CapturingRunner), prompts, params)
    assert there == complete(token_engine(model), prompts, replace(params))
