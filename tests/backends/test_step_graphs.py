"""Steps that are replayed, as a runner has them: whoever is asked, a step gives the same, and plans are heard once."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.small_models import LLAMA, assert_nothing_held, small_model
from ridgeline.backends import backend_of, prepared
from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.backends.cpu.cpu_graphs import CpuGraphs
from ridgeline.backends.cpu.library import library
from ridgeline.backends.cuda.cuda_backend import CudaBackend
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.backends.timed_backend import OpTimer, TimedBackend
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.kv_layout import KVLayout, group_layers
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.step_graphs import PageTables, PlannedStep, StepGraph, StepGraphs
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.ranks.leader import FollowerRanks
from ridgeline.engine.ranks.other_ranks import OtherRanks
from ridgeline.engine.ranks.rank_commands import (
    Command,
    ComputeHiddenStates,
    ComputeLogits,
    PrepareBatch,
    Rewind,
    SaveStates,
)
from ridgeline.engine.ranks.rank_processes import RankGone, RankProcesses
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from support.cards import cards_compute, needs_triton
from support.engines import EagerRunner, MakeRunner, complete, token_engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]

needs_kernels = pytest.mark.skipif(library() is None, reason="no kernels of our own here")


def tokens_of(model: Model, runner: MakeRunner) -> list[list[int]]:
    engine = token_engine(model, runner=runner)
    found = complete(engine, PROMPTS, GREEDY)
    assert engine.stats.preemptions == 0  # a step that fails is made again, request by request
    assert_nothing_held(engine)
    return found


# -- which backend ----------------------------------------------------------------------------------------------------


def test_a_device_has_a_backend(torch_only: None) -> None:
    assert isinstance(backend_of(torch.device("cpu")), ReferenceBackend)
    assert isinstance(backend_of(torch.device("meta")), ReferenceBackend)


@needs_kernels
def test_the_processor_has_our_kernels() -> None:
    """A model is prepared once."""
    model = small_model(LLAMA)
    assert model.backend is REFERENCE
    backend = prepared(model)
    assert isinstance(backend, CpuBackend)
    assert prepared(model) is model.backend is backend


@needs_triton
def test_a_gpu_has_our_kernels_for_gpus() -> None:
    with cards_compute():
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        assert isinstance(backend_of(device), CudaBackend)


def test_a_runner_has_the_backend_that_it_is_given() -> None:
    """And the model is prepared by it, if it was not prepared before."""
    model = small_model(LLAMA)
    runner = Runner(model, group_layers(model.kv_specs, 4, 64), backend=ReferenceBackend())
    assert model.backend is runner.backend
    assert type(runner.graphs) is StepGraphs
    other = Runner(model, group_layers(model.kv_specs, 4, 64))
    assert other.backend is runner.backend


# -- a step of each sort ----------------------------------------------------------------------------------------------


class Never(StepGraphs):
    """Steps that have a bucket and are not worth a graph. tables: entries of the tables that each step found."""

    def __init__(self) -> None:
        self.tables: list[list[int]] = []

    def bucket(self, step: PlannedStep) -> Hashable:
        return "any"

    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor | None:
        self.tables.append([len(table) for item in step.items for table in tables.tables(item.request)])
        return None


class Gives(ReferenceBackend):
    """Torch's backend with other step graphs."""

    def __init__(self, graphs: StepGraphs) -> None:
        self.graphs = graphs

    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        return self.graphs


def test_a_step_that_is_not_worth_a_graph_runs_plainly() -> None:
    """It is heard of once: tables have an entry for each page, and tokens are right."""
    never = Never()
    found = tokens_of(small_model(LLAMA), lambda model, layout: Runner(model, layout, backend=Gives(never)))
    assert found == tokens_of(small_model(LLAMA), EagerRunner)
    assert never.tables[0] == [1, 2, 1]  # pages of 4 positions
    assert never.tables[-1] == [3, 3, 2]


@needs_kernels
def test_a_step_that_cannot_be_recorded_after_all_gives_its_logits() -> None:
    """Where torch computes though the model says that it does not: the first such step is recorded for nothing."""

    def in_part(model: Model, layout: KVLayout) -> Runner:
        head = model.head
        model.head = lambda x_RD: head(x_RD) + 0.0  # type: ignore[method-assign]
        return Runner(model, layout)

    engine = token_engine(small_model(LLAMA), runner=in_part)
    assert complete(engine, PROMPTS, GREEDY) == tokens_of(small_model(LLAMA), EagerRunner)
    runner = engine.executor
    assert isinstance(runner, Runner)
    assert isinstance(runner.graphs, CpuGraphs)
    assert not runner.graphs._recordings
    assert not runner.graphs._records


@needs_kernels
def test_nothing_is_replayed_eagerly() -> None:
    model = small_model(LLAMA)
    layout = group_layers(model.kv_specs, 4, 64)
    layout = KVLayout(layout.page_bytes, 8, layout.page_size, layout.groups)
    decode = StepPlan(0, (PlanItem(1, 0, (3,), tuple((1,) for _ in layout.groups), True, (0,)),))
    assert Runner(model, layout).graph(decode) is not None
    assert Runner(model, layout, eager=True).graph(decode) is None
    assert Runner(model, layout, others=Noting()).graph(decode) is None


# -- watched ----------------------------------------------------------------------------------------------------------


class Ticks:
    """A clock that goes on by one at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


def watched_tokens(model: Model, backend: Backend) -> tuple[list[list[int]], OpTimer]:
    backend.prepare(model)
    watch = OpTimer(model, Ticks())
    with watch.on():
        found = tokens_of(model, lambda model, layout: Runner(model, layout, backend=TimedBackend(watch)))
    return found, watch


@pytest.mark.parametrize("name", ["reference", pytest.param("cpu", marks=needs_kernels)])
def test_a_watch_times_each_part_once_a_step_with_any_backend(name: str) -> None:
    """Replayed or not: the same tokens, as many calls of each part as there are steps of it, nothing left behind."""
    backend = ReferenceBackend() if name == "reference" else backend_of(torch.device("cpu"))
    model = small_model(LLAMA)
    found, watch = watched_tokens(model, backend)
    assert found == tokens_of(small_model(LLAMA), EagerRunner)
    steps = GREEDY.max_tokens
    assert {len(seconds) for seconds in watch.seconds.values()} == {steps}
    assert watch.inside == 1.0
    assert all(seconds >= 1.0 for own in watch.seconds.values() for seconds in own)
    assert not any(part in vars(op) for op, part in watch.seconds)


class AsOne(StepGraph):
    def __init__(self, result: Tensor) -> None:
        self.result = result

    def replay(self) -> Tensor:
        return self.result


class Replays(StepGraphs):
    """Replays each step as one, on a device that does not say what its calls take."""

    def bucket(self, step: PlannedStep) -> Hashable:
        return 1

    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor:
        return self.graph(step, bucket, tables).replay()[: step.logit_rows]

    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> StepGraph:
        return AsOne(torch.eye(41)[:4])


def test_a_step_that_is_replayed_as_one_is_not_timed_by_its_calls() -> None:
    model = small_model(LLAMA, 41)
    found, watch = watched_tokens(model, Gives(Replays()))
    assert found == [[row] * 7 for row in range(3)]
    assert watch.calls == 0


# -- ranks ------------------------------------------------------------------------------------------------------------


class Noting(OtherRanks):
    """Notes what other ranks are to do, and when this one has done it."""

    several = True

    def __init__(self) -> None:
        self.noted: list[str] = []

    @contextmanager
    def _note(self, what: str) -> Iterator[None]:
        self.noted.append(what)
        yield
        self.noted.append(f"{what} done")

    def prepare(self, plan: StepPlan) -> AbstractContextManager[None]:
        return self._note(f"prepare {plan.step}")

    def hidden(self) -> AbstractContextManager[None]:
        return self._note("hidden")

    def head(self, first: int, count: int) -> AbstractContextManager[None]:
        return self._note(f"head {first} {count}")

    def save_states(self) -> AbstractContextManager[None]:
        return self._note("save")

    def rewind(self) -> AbstractContextManager[None]:
        return self._note("rewind")


def with_others(others: OtherRanks) -> tuple[Runner, StepPlan]:
    model = small_model(LLAMA)
    layout = group_layers(model.kv_specs, 4, 64)
    layout = KVLayout(layout.page_bytes, 8, layout.page_size, layout.groups)
    plan = StepPlan(5, (PlanItem(1, 0, (1, 2, 3), tuple((1,) for _ in layout.groups), True, (1, 2)),))
    return Runner(model, layout, others=others), plan


def test_other_ranks_do_what_a_runner_does_whoever_drives_it() -> None:
    """Each part of a step, in order, while the runner does its own."""
    noting = Noting()
    runner, plan = with_others(noting)
    runner.save_states()
    runner.step_logits(plan)
    runner.rewind()
    wanted = ["save", "prepare 5", "hidden", "head 0 2", "rewind"]
    assert noting.noted == [word for what in wanted for word in (what, f"{what} done")]


class Told(RankProcesses):
    """Processes that are not there, and what they are told. lost: the order at which they are gone."""

    def __init__(self, lost: type[Any] | None = None) -> None:
        super().__init__(2)
        self.orders: list[Command] = []
        self.lost = lost

    def send(self, order: Command) -> None:
        self.orders.append(order)
        if self.lost is not None and isinstance(order, self.lost):
            raise BrokenPipeError("gone")


def test_orders_are_those_of_a_step() -> None:
    """A head that is whole on each rank is nobody else's."""
    told, model = Told(), small_model(LLAMA)
    runner, plan = with_others(FollowerRanks(model, told))
    runner.save_states()
    runner.forward(plan)
    runner.rewind()
    kinds: Sequence[type[Any]] = [type(order) for order in told.orders]
    assert kinds == [SaveStates, PrepareBatch, ComputeHiddenStates, Rewind]
    assert ComputeLogits not in kinds


@pytest.mark.parametrize("lost", [PrepareBatch, ComputeHiddenStates])
def test_what_fails_on_another_rank_ends_the_engine(lost: type[Any]) -> None:
    runner, plan = with_others(FollowerRanks(small_model(LLAMA), Told(lost)))
    with pytest.raises(RankGone, match="a step of 2 ranks failed: gone; start the engine again"):
        runner.forward(plan)


def test_what_fails_here_ends_the_other_ranks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, plan = with_others(FollowerRanks(small_model(LLAMA), Told()))

    def broken(*_: Any) -> Tensor:
        raise RuntimeError("something broke")

    monkeypatch.setattr(runner.model, "hidden", broken)
    with pytest.raises(RankGone, match="something broke"):
        runner.step_logits(plan)
