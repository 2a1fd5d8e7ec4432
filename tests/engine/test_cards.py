"""The engine where kernels for cards compute: in Triton's interpreter where there is no card. What a step captures is
made again in Python then, over the same numbers at the same places."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.small_models import LLAMA, MIXED, assert_nothing_held, small_model
from models.configs import CONFIGS
from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.backends.cuda.buckets import captured_shape, captures, most_captured_rows
from ridgeline.backends.cuda.cuda_backend import CudaBackend
from ridgeline.backends.cuda.cuda_graphs import CapturedGraph, CudaGraphs, _copied
from ridgeline.backends.cuda.cuda_pages import CudaPages
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.step_graphs import PageTables, PlannedStep, StepGraphs
from ridgeline.engine import placement
from ridgeline.engine.engine_builder import warm_up
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv_budget import fit_kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.placement import available_gpu_memory, device_named
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculation_setup import Draft
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.price.price import Price
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
        monkeypatch.setattr("ridgeline.backends.cuda.triton.triton_attention._PROGRAMS", 1)
    with cards_compute():
        yield


class Again:
    """Stands for a graph where there is no card: the step in Python, its result always in the same place."""

    def __init__(self, step: Callable[[], Tensor]) -> None:
        self.step, self.result = step, step().clone()

    def replay(self) -> None:
        self.result.copy_(self.step())


class Captures(CudaGraphs):
    """Steps that are captured without a GPU too. replayed: how many steps were."""

    replayed = 0

    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> CapturedGraph:
        self.replayed += 1
        return super().graph(step, bucket, tables)

    def captured(self, step: Callable[[], Tensor]) -> CapturedGraph:
        if HAS_CARD:
            return super().captured(step)
        again = Again(step)
        return CapturedGraph(again, again.result)  # type: ignore[arg-type]


class _Everything(set[object]):
    def __contains__(self, _: object) -> bool:
        return True


class CapturesAtOnce(Captures):
    """Captures steps with prompts when their bucket comes for the first time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._met = _Everything()  # type: ignore[assignment]


class Cuda(CudaBackend):
    """Captures without a GPU too."""

    def __init__(self, captures: type[Captures]) -> None:
        self.captures = captures

    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        assert isinstance(pages, CudaPages)
        return self.captures(model, pages)


class Keeping(Runner):
    """Keeps a copy of each step's logits."""

    graphs: Any

    def __init__(self, model: Model, layout: KVLayout, captures: type[Captures] = Captures) -> None:
        super().__init__(model, layout, backend=Cuda(captures))
        self.seen: list[Tensor] = []

    def step_logits(self, plan: StepPlan) -> Tensor:
        logits = super().step_logits(plan)
        self.seen.append(logits.clone())
        return logits


class AtOnce(Keeping):
    """Keeps them, where steps with prompts are captured at once."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout, CapturesAtOnce)


class Plain(Runner):
    """Keeps those that torch computes."""

    def __init__(self, model: Model, layout: KVLayout) -> None:
        super().__init__(model, layout, backend=ReferenceBackend())
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
        engine.add(GenerationRequest([(7 * index + i) % model.vocabulary for i in range(3 + 2 * index)], params))
    while engine.has_work:
        assert [event.error for event in engine.step() if event.error] == []
    assert_nothing_held(engine)
    return engine.executor.seen, engine.executor  # type: ignore[attr-defined]


@needs_triton
@pytest.mark.parametrize("family", sorted(CAPTURED))
def test_captured_steps_give_what_the_processor_gives(family: str) -> None:
    """Prefills and decode steps of batches that do not fill their bucket, against torch on the processor."""
    model = random_ours(CONFIGS[family])
    assert captures(model)
    found, runner = logits_of(placed(model), Keeping)
    assert {bucket.rows for bucket in runner.graphs._known} <= {1, 2, 4}
    assert runner.graphs.replayed >= 3
    wanted, _ = logits_of(model, Plain)
    assert len(found) == len(wanted)
    assert all(close(one, other, TOLERANCE[model.storage.dtype]) for one, other in zip(found, wanted, strict=True))


PROMPTS = (3, 15, 6, 1, 9)
"""Tokens of prompts: chunks that begin and end within a page, at its edge, one that is a token alone."""


def logits_of_prompts(model: Model, runner: type[Runner], prompts: Sequence[int] = PROMPTS) -> tuple[list[Tensor], Any]:
    """The logits of steps in which prompts come, in chunks, beside sequences that decode and without."""
    engine = token_engine(model, runner=runner, page_size=4, limits=Limits(tokens=12, requests=4))
    for index, length in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=2 + index % 2, ignore_eos=True)
        engine.add(GenerationRequest([(7 * index + i) % model.vocabulary for i in range(length)], params))
        engine.step()
    while engine.has_work:
        assert [event.error for event in engine.step() if event.error] == []
    assert engine.stats.preemptions == 0  # a step that fails is made again, request by request
    assert_nothing_held(engine)
    return engine.executor.seen, engine.executor  # type: ignore[attr-defined]


@needs_triton
@pytest.mark.parametrize("family", sorted(CAPTURED))
def test_captured_steps_with_prompts_give_what_the_processor_gives(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt and several, some of whose chunks fill their bucket of rows and some not, with decodes beside them."""
    monkeypatch.setattr("ridgeline.backends.cuda.buckets.CAPTURED_ROWS", (5, 9, 12))
    monkeypatch.setattr("ridgeline.backends.cuda.buckets.CAPTURED_SEQUENCES", (1, 3, 4))
    model = random_ours(CONFIGS[family])
    found, runner = logits_of_prompts(placed(model), AtOnce)
    buckets = [bucket for bucket in runner.graphs._known if bucket.several]
    assert {bucket.several for bucket in buckets} >= {1, 3}
    assert len({bucket.rows for bucket in buckets}) > 1
    assert runner.graphs.replayed == len(found)
    wanted, _ = logits_of_prompts(model, Plain)
    assert [len(one) for one in found] == [len(other) for other in wanted]
    assert all(close(one, other, TOLERANCE[model.storage.dtype]) for one, other in zip(found, wanted, strict=True))


@needs_triton
def test_a_step_with_prompts_is_captured_when_its_bucket_comes_again() -> None:
    """The first of its length is asked for op by op; its tokens are the same."""
    model = placed(small_model(LLAMA, 16))
    engine = token_engine(model, runner=Keeping, prefix_cache=False)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    assert isinstance(engine.executor, Keeping)
    answers = []
    for replayed in (0, 1, 2):
        answers += complete(engine, [[1, 2, 3]], params)
        assert engine.executor.graphs.replayed == replayed
    assert answers[0] == answers[1] == answers[2]
    scored = replace(params, prompt_logprobs=0)  # is asked for op by op, whatever came before
    assert complete(engine, [[1, 2, 3]], scored) == answers[:1]
    assert engine.executor.graphs.replayed == 2


def test_the_bucket_of_a_step() -> None:
    """The next larger one of rows and of sequences; none of what is too large."""
    shape = partial(captured_shape, most=2048, verifies=False)
    assert shape(17, 1, 1) == (32, 1)
    assert shape(16, 1, 1) == (16, 1)
    assert shape(2048, 0, 2) == (2048, 8)
    assert shape(1056, 2, 2) == (1088, 8)
    assert shape(500, 9, 3) == (512, 64)  # guesses are wanted in several rows of a sequence
    assert shape(2049, 1, 1) is None
    assert shape(2000, 1, 257) is None
    assert captured_shape(600, 1, 1, 512, verifies=False) is None
    assert captured_shape(3, 3, 3, 0, verifies=True) == (4, 4)
    assert captured_shape(257, 257, 257, 2048, verifies=True) is None


@pytest.mark.parametrize(("tokens", "rows"), [(16, 256), (1000, 1024), (2048, 2048), (5000, 2048)])
def test_captured_steps_have_room_for_their_bucket(tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 1,000 rows runs as one of 1,024; decode steps have 256, each with logits; a draft model has so too."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr("ridgeline.price.activations.activation_peak", lambda _, *own: asked.append(own) or 0.0)
    model = random_ours(CONFIGS["llama"])
    assert most_captured_rows(model) == 2048
    settings = EngineSettings(limits=Limits(tokens=tokens), memory=1e10, kv_bytes=1e6)
    source, card = open_source("tales"), torch.device("cuda")
    draft = Draft(source, model)
    fit_kv_layout(source, model, Price(model), settings, 64, [], card, draft)
    assert asked == [(rows, 256)] * 2
    monkeypatch.setattr(placement, "backend_of", lambda _: CpuBackend())  # it is off while kernels for cards compute
    there, here = draft.taken(settings.limits, card), draft.taken(settings.limits, torch.device("cpu"))
    assert there.keys() - here.keys() == {"captured steps of the draft model"}
    assert here.keys() - there.keys() == {"recorded steps of the draft model"}


@needs_triton
def test_which_prompts_read_a_copy() -> None:
    """Long ones, for whose keys there is room: as many as of the step, and again as many that came before."""

    def plan(*items: tuple[int, int]) -> StepPlan:
        return StepPlan(0, tuple(PlanItem(i, start, (1,) * n, (), True, ()) for i, (start, n) in enumerate(items)))

    assert _copied(plan((0, 768)), 768) == 1536
    assert _copied(plan((700, 800), (4000, 1)), 832) == 1664
    assert _copied(plan((1000, 800)), 832) == 0
    assert _copied(plan((0, 767), (0, 200)), 1024) == 0


@needs_triton
def test_captured_steps_verify_guesses() -> None:
    """Each a row beside its sequence's, which sees those before it, in graphs of as many rows."""
    model = random_ours(CONFIGS["llama"])
    found, runner = logits_of(placed(model), Keeping, guesses=True)
    assert max(bucket.rows for bucket in runner.graphs._known) >= 8
    wanted, _ = logits_of(model, Plain, guesses=True)
    assert [len(one) for one in found] == [len(other) for other in wanted]
    assert max(map(len, found)) > 3
    assert all(close(one, other, TOLERANCE[model.storage.dtype]) for one, other in zip(found, wanted, strict=True))


@needs_triton
@pytest.mark.parametrize("name", ["encoder-decoder", "everything"])
def test_what_is_not_captured_runs_all_the_same(name: str) -> None:
    """Latents, biases and encoders, which torch reads in part."""
    model = wall_model(name)
    assert not captures(model)
    encoders = [(5, 6, 7), (8, 9)] if model.has_cross_attention else []
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    there = complete(token_engine(placed(model), runner=Keeping), prompts, encoders=encoders)
    here = complete(token_engine(model, runner=Plain), prompts, encoders=encoders)
    assert there == here


@needs_triton
def test_an_engine_that_was_warmed_up_has_captured_and_answers_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ridgeline.engine.engine_builder._WARMING", (2, 3)
    )  # the interpreter takes a second for a few rows
    model = placed(small_model(LLAMA, 16))
    engine = token_engine(model, runner=Keeping)
    steps: list[StepRecord] = []
    engine.on_step = steps.append
    warm_up(engine)
    assert_nothing_held(engine)
    assert isinstance(engine.executor, Keeping)
    assert {bucket.rows for bucket in engine.executor.graphs._known} == {1, 16}  # both prompts are of one bucket
    assert steps == []
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    assert complete(engine, [[1, 2, 3]], params) == complete(token_engine(model, runner=Keeping), [[1, 2, 3]], params)
    assert steps


@needs_triton
def test_seats_are_given_up_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer seats than requests, which are taken from those that do not run: the same tokens as alone."""
    monkeypatch.setattr("ridgeline.backends.cuda.gpu_page_tables._FIRST_SEATS", 1)
    model = placed(small_model(MIXED, 38))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8], [13, 14]]
    alone = [complete(token_engine(model, runner=Keeping), [prompt], params)[0] for prompt in prompts]
    engine = token_engine(model, runner=Keeping, limits=Limits(requests=2))
    assert complete(engine, prompts, params) == alone
    assert isinstance(engine.executor, Keeping)
    assert engine.executor.graphs.replayed > 4
    assert engine.executor.graphs._tables is not None
    assert engine.executor.graphs._tables.seats > 1
    assert engine.stats.preemptions == 0  # a step that fails is made again, request by request


@needs_triton
def test_a_hook_sees_steps_that_were_captured_before() -> None:
    model = placed(small_model(LLAMA))
    engine, seen = token_engine(model, runner=Keeping), list[object]()
    engine.add(GenerationRequest([1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True)))
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
    with pytest.raises(ValueError, match="torch finds 2 CUDA devices"):
        device_named("cuda:2")
    for wrong in ("gpu", "cuda:x", "h100-sxm"):
        with pytest.raises(ValueError, match="give cpu, cuda, cuda:N"):
            device_named(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(device_named("auto")) == "cpu"
    with pytest.raises(ValueError, match="finds no CUDA device"):
        device_named("cuda")


def test_a_share_of_a_card_counts_what_others_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70e9, 80e9))
    device = torch.device("cuda", 0)
    assert available_gpu_memory(device, 0.5) == pytest.approx(30e9)
    assert available_gpu_memory(device, None) == pytest.approx(70e9 - (1 - placement.MEMORY_SHARE) * 80e9)
    assert available_gpu_memory(device, 0.1) == 0.0


@needs_card
def test_tokens_of_a_seed_are_those_of_the_processor() -> None:
    """The sampler on the card draws with the same uniform numbers."""
    model = small_model(LLAMA)
    params = SamplingParams(temperature=0.9, top_k=9, top_p=0.95, max_tokens=12, ignore_eos=True, seed=3)
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    there = complete(token_engine(placed(model), runner=Runner), prompts, params)
    assert there == complete(token_engine(model), prompts, replace(params))
