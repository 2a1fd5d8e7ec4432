"""The sampler that a runner has: chosen once, by the backend of its model and the device."""

from dataclasses import replace

import pytest
import torch

from engine.small_models import LLAMA, small_model
from ridgeline.backends import backend_of
from ridgeline.backends.cuda.cuda_backend import CudaBackend
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.backends.timed_backend import OpTimer, TimedBackend
from ridgeline.core.ops.backend import Backend, SamplingKernel
from ridgeline.core.ops.kv_layout import group_layers
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Sampled, SampleRow, sampler_of
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.native import NativeSampler
from ridgeline.engine.sampling.on_device import DeviceSampler
from support.cards import cards_compute, needs_triton
from support.engines import complete, token_engine
from support.kernels import SETS
from support.samplers import CPU

needs_kernels = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
GREEDY, DRAWN = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_p=0.9)


class Counts(ReferenceBackend):
    """A backend that counts the calls of its kernels for sampling. The first of them chooses nothing."""

    def __init__(self) -> None:
        self.sampled: list[tuple[int, int]] = []
        self.searched = 0

    @property
    def sampling_kernel(self) -> SamplingKernel:
        return lambda _, count, vocabulary: self.sampled.append((count, vocabulary))

    def likeliest(self, logits_RV: torch.Tensor) -> torch.Tensor:
        self.searched += 1
        return super().likeliest(logits_RV)


def test_the_backend_and_the_device_choose() -> None:
    """Logits in this machine's memory go to the backend's kernel or to numpy; others stay where they are."""
    for backend in (ReferenceBackend(), Counts(), CudaBackend()):
        assert isinstance(sampler_of(backend, torch.device("cuda", 0)), DeviceSampler)
    assert isinstance(sampler_of(ReferenceBackend(), CPU), NumpySampler)
    assert isinstance(sampler_of(CudaBackend(), CPU), NumpySampler)
    assert isinstance(sampler_of(Counts(), CPU), NativeSampler)


@needs_kernels
def test_a_runner_has_the_sampler_of_its_model() -> None:
    """Also where its backend is watched."""
    model = small_model(LLAMA)
    layout = replace(group_layers(model.kv_specs, 4, 64), pages=8)
    plain, reference = Runner(model, layout), Runner(model, layout, backend=ReferenceBackend())
    assert isinstance(plain.sampler, NativeSampler)
    assert isinstance(reference.sampler, NumpySampler)
    watched = Runner(model, layout, backend=TimedBackend(OpTimer(model, lambda: 0.0)))
    assert isinstance(watched.sampler, NativeSampler)


def test_nothing_is_looked_up_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sampler there is, is not asked again."""
    engine = token_engine(small_model(LLAMA))

    def asked(*_: object) -> None:
        raise AssertionError("asked in a step")

    for name in (
        "cpu.library.library",
        "cpu.cpu_backend.library",
        "cuda.available.triton_on",
        "cuda.cuda_backend.triton_on",
    ):
        monkeypatch.setattr(f"ridgeline.backends.{name}", asked)
    params = replace(DRAWN, max_tokens=5, ignore_eos=True)
    assert [len(tokens) for tokens in complete(engine, [[1, 2, 3], [4]], params)] == [5, 5]


def test_the_kernels_of_a_backend_are_called() -> None:
    """The sampling kernel for rows of any kind, where the logits are in this machine's memory; on a device `likeliest`,
    for greedy rows that ask for nothing else."""
    backend, logits = Counts(), torch.randn(3, 40)
    NativeSampler(backend.sampling_kernel).score(logits, [1, 2, 3], [0, 0, 0])
    assert backend.sampled == [(3, 40)]
    device = DeviceSampler(backend)
    rows = [SampleRow(params, 1, 5) for params in (GREEDY, DRAWN, GREEDY)]
    first, _, last = device.sample(logits, rows)
    assert [first, last] == [Sampled(int(logits[row].argmax())) for row in (0, 2)]
    assert backend.searched == 1, "both greedy rows at once"
    device.sample(logits, [SampleRow(replace(GREEDY, logprobs=2), 1, 5)] * 3)
    device.sample(logits, [SampleRow(replace(GREEDY, logit_bias={3: 1.0}), 1, 5)] * 3)
    assert backend.searched == 1
    assert len(backend.sampled) == 1


def awkward_logits() -> torch.Tensor:
    """Ties, a NaN behind a larger number, infinities, and nothing but the impossible."""
    logits_RV = torch.randn(8, 3000, generator=torch.Generator().manual_seed(4))
    logits_RV[1, [7, 2999]] = 9.0
    logits_RV[2, 5], logits_RV[2, [77, 78]] = 50.0, torch.nan
    logits_RV[3, 11], logits_RV[4] = torch.inf, -torch.inf
    logits_RV[5] = 1.0
    return logits_RV


def test_the_likeliest_token_is_the_first_of_equals() -> None:
    found = Backend().likeliest(awkward_logits())
    assert found.dtype == torch.float64
    assert found[1].tolist() == [7, 9, 9]
    assert found[2, 0] == 77
    assert found[2, 1:].isnan().all()
    assert found[3].tolist() == [11, torch.inf, torch.inf]
    assert found[4].tolist() == [0, -torch.inf, -torch.inf]
    assert found[5].tolist() == [0, 1, 1]


@needs_triton
def test_the_likeliest_token_is_the_same_on_the_kernel_for_gpus() -> None:
    """Bit for bit but of a row with NaN, whose token nobody reads."""
    logits_RV = awkward_logits()
    with cards_compute():
        found, expected = backend_of(CPU).likeliest(logits_RV), Backend().likeliest(logits_RV)
    assert torch.equal(found[:, 1:].isnan(), expected[:, 1:].isnan())
    whole = ~expected[:, 1].isnan()
    assert torch.equal(found[whole], expected[whole])
