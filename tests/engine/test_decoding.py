"""Decode steps that are recorded: bit for bit what a forward gives; what our kernels do not compute is not recorded."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from models.configs import CONFIGS
from ridgeline.backends import backend_of
from ridgeline.backends.cpu import call_recording as recording_module
from ridgeline.backends.cpu import cpu_graphs, recorded_steps
from ridgeline.backends.cpu.call_recording import RecordingArena, record
from ridgeline.backends.cpu.cpu_graphs import CpuGraphs
from ridgeline.backends.cpu.library import library
from ridgeline.backends.cpu.recorded_steps import recorded_bytes, records
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import StepPlan
from support.checkpoints import random_ours
from support.engines import EagerRunner, token_engine

pytestmark = pytest.mark.skipif(library() is None, reason="no kernels of our own here")

RECORDED = {"llama", "mistral", "qwen2", "qwen3", "smollm3", "mixtral", "qwen3_moe", "minimax_m2", "gpt_oss"}
"""Families that compute with our kernels alone."""


def kept(runner: type[Runner]) -> type[Runner]:
    """A runner that keeps a copy of each step's logits."""

    class Keeping(runner):  # type: ignore[misc, valid-type]
        def step_logits(self, plan: StepPlan) -> Tensor:
            logits: Tensor = super().step_logits(plan)
            self.__dict__.setdefault("seen", []).append(logits.clone())
            return logits

    return Keeping


def logits_of(model: Model, runner: type[Runner], requests: int = 3) -> tuple[list[Tensor], Any]:
    """The logits of every step of some requests, one of them in two choices, which end one after the other; pages fill,
    windows pass."""
    engine = token_engine(model, runner=kept(runner), page_size=4)
    for index in range(requests):
        params = SamplingParams(max_tokens=7 + 2 * index, n=1 + (index == 1), ignore_eos=True, seed=index)
        engine.add(GenerationRequest([(7 * index + i) % model.vocabulary for i in range(3 + index)], params))
    while engine.has_work:
        engine.step()
    executor = engine.executor
    assert isinstance(executor, Runner)
    return executor.__dict__["seen"], executor.graphs


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_a_recorded_step_gives_what_a_forward_gives(family: str) -> None:
    """Whether it is recorded or not, bit for bit."""
    model = random_ours(CONFIGS[family])
    if not model.has_head or model.has_cross_attention:
        pytest.skip("nothing is decoded, or beside an encoder")
    backend_of(torch.device("cpu")).bind(model)
    expected, _ = logits_of(model, EagerRunner)
    found, recorded = logits_of(model, Runner)
    assert sorted(recorded._recordings) == ([1, 2, 3, 4] if family in RECORDED else [])
    assert records(model) == (family in RECORDED), "what is recorded is known before it runs"
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_larger_steps_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording takes memory for each row."""
    model = random_ours(CONFIGS["llama"])
    backend_of(torch.device("cpu")).bind(model)
    monkeypatch.setattr(cpu_graphs, "MAX_RECORDED_ROWS", 2)
    _, recorded = logits_of(model, Runner, requests=5)
    assert sorted(recorded._recordings) == [1, 2]


@pytest.mark.parametrize("chunk", [1 << 10, 1 << 16, 4 << 20])
@pytest.mark.parametrize("family", sorted(RECORDED))
def test_memory_of_recordings_is_known_before_there_are_any(
    family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the largest step; but for the rows that are gathered for the head, and what they leave of a chunk."""
    monkeypatch.setattr(recording_module, "CHUNK", chunk)
    for module in (cpu_graphs, recorded_steps):
        monkeypatch.setattr(module, "MAX_RECORDED_ROWS", 16)
    model = random_ours(CONFIGS[family])
    backend_of(torch.device("cpu")).bind(model)
    _, recorded = logits_of(model, Runner, requests=15)
    assert max(recorded._recordings) == 16
    assert 0 < recorded_bytes(model) <= recorded._memory.nbytes <= 1.1 * recorded_bytes(model) + chunk


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_sees_steps_that_were_recorded_before(everywhere: bool) -> None:
    """Put on between two steps, and taken off: those between are run, those after it recorded again."""
    model, seen = random_ours(CONFIGS["llama"]), list[Embedding]()
    backend_of(torch.device("cpu")).bind(model)
    (table,) = (op for _, op in model.ops() if isinstance(op, Embedding))
    engine = token_engine(model)
    engine.add(GenerationRequest([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True)))

    def note(op: nn.Module, *_: object) -> None:
        if op is table:
            seen.append(op)

    counts = []
    for step in range(8):
        if step == 3:
            handle = register_module_forward_hook(note) if everywhere else table.register_forward_pre_hook(note)
        if step == 5:
            handle.remove()
        engine.step()
        counts.append(len(seen))
    assert isinstance(engine.executor, Runner)
    assert isinstance(engine.executor.graphs, CpuGraphs)
    assert list(engine.executor.graphs._recordings) == [1]
    assert counts == [0, 0, 0, 1, 2, 2, 2, 2]


def test_what_is_not_recorded_takes_no_memory() -> None:
    assert recorded_bytes(random_ours(CONFIGS["gpt2"])) == 0


def test_what_torch_computes_is_not_recorded() -> None:
    """A call that is not ours would not be made again."""
    kernels = library()
    assert kernels is not None
    x, weight = torch.randn(2, 8), torch.randn(5, 8)
    _, recording = record(kernels, RecordingArena(), lambda: kernels.products(x, [Operands(weight, None)])[0] + 1)
    assert recording is None
    result, recording = record(
        kernels, RecordingArena(), lambda: kernels.products(x, [Operands(weight, None)])[0].view(10)
    )
    assert recording is not None
    x.fill_(1)
    assert torch.equal(recording.replay(), kernels.products(x, [Operands(weight, None)])[0].view(10))
    assert recording.replay().data_ptr() == result.data_ptr()


def test_calls_of_other_threads_are_not_recorded() -> None:
    """They would be made again over memory that is no longer theirs."""
    kernels = library()
    assert kernels is not None
    x, weight = torch.randn(2, 8), torch.randn(5, 8)

    def step() -> Tensor:
        with ThreadPoolExecutor(1) as other:
            other.submit(kernels.products, x, [Operands(weight, None)]).result()
        return kernels.products(x, [Operands(weight, None)])[0]

    _, recording = record(kernels, RecordingArena(), step)
    assert recording is not None
    assert len(recording.calls) == 1


def test_memory_is_shared_by_recordings_and_never_moves() -> None:
    """Each begins with the first byte; within one, no two tensors touch."""
    memory = RecordingArena()
    shapes = [(3, 5), (1 << 20,), (1 << 21, 2), (7,)]
    first = [memory.take(shape, torch.float32) for shape in shapes]
    for number, tensor in enumerate(first):
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in first] == [[0.0], [1.0], [2.0], [3.0]]
    memory.begin()
    second = [memory.take(shape, torch.bfloat16) for shape in shapes]
    assert second[0].data_ptr() == first[0].data_ptr()
    assert [tensor.shape for tensor in second] == [tensor.shape for tensor in first]
