"""Models that were prepared, and then copied, pickled, prepared again, or given other weights."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from models.configs import CONFIGS
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.backends.cpu.library import library
from ridgeline.backends.cuda.cuda_backend import CudaBackend
from ridgeline.backends.model_loader import prepare_on_cpu
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models import build_to_run
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.group_norm import GroupNorm
from ridgeline.core.ops.norm import AddRMSNorm
from support.engines import uncached_logits

IDS = [(5 * position + 3) % 97 for position in range(11)]
FAMILIES = ["llama", "qwen3_moe", "gpt_oss"]


def unprepared(family: str, weights: str | None, seed: int = 0, **config: Any) -> Model:
    """A model with random weights that no backend has."""
    model = build_to_run(Fields({**CONFIGS[family], **config}, family), weights=weights)
    fill_dummy(model, seed)
    return model


def logits(model: Model) -> Tensor:
    """Of a prompt, without an engine."""
    (logits_TV,) = uncached_logits(model, [IDS])
    return logits_TV.clone()


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_computes_the_same(family: str, weights: str | None) -> None:
    """A deep copy and a pickle of a model that has run, and a model that is prepared a second time."""
    model = unprepared(family, weights)
    prepare_on_cpu(model)
    wanted = logits(model)
    assert torch.equal(logits(copy.deepcopy(model)), wanted)
    again = pickle.loads(pickle.dumps(model))
    assert again.backend.name == model.backend.name
    assert again.backend is not model.backend
    assert torch.equal(logits(again), wanted)
    prepare_on_cpu(model)
    assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_weights_are_read(family: str, weights: str | None) -> None:
    """Parameters that were put into the place of those that a model was prepared with, after it has run."""
    model, other = (unprepared(family, weights, seed) for seed in (0, 1))
    prepare_on_cpu(model)
    before = logits(model)
    model.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    model.tie()
    prepare_on_cpu(other)
    assert torch.equal(logits(model), logits(other))
    assert not torch.equal(logits(model), before)


@pytest.mark.parametrize("backend", [CpuBackend, CudaBackend, ReferenceBackend])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_dropped_is_gone(family: str, backend: type[Backend]) -> None:
    """Its memory is free at once: nothing waits for the garbage collector."""
    model = unprepared(family, None)
    backend().prepare(model)
    if backend is not CudaBackend and (backend is ReferenceBackend or library() is not None):
        logits(model)
    held = [weakref.ref(parameter) for parameter in model.parameters()]
    gc.collect()
    gc.disable()
    try:
        del model
        assert not any(each() is not None for each in held)
    finally:
        gc.enable()


@pytest.mark.parametrize(("silu", "parts"), [(True, ("normalise", "activate")), (False, ("normalise",))])
def test_an_op_that_is_bound_again_keeps_its_parts(silu: bool, parts: tuple[str, ...]) -> None:
    """Those of a group norm are its own, not its class's: calibration and traces time them."""
    op = GroupNorm(8, 2, 1e-6, torch.float32, silu=silu)
    for _ in range(2):
        backend_of(torch.device("cpu")).bind(op)
        assert op.parts == parts == tuple(launch.method for launch in op.launches_of(3))


def test_an_op_that_was_fused_runs_in_parts_again() -> None:
    op = AddRMSNorm(8, 1e-6, torch.float32)
    CpuBackend().bind(op)
    assert (op.fused, op.parts) == (True, ("forward",))
    REFERENCE.bind(op)
    assert (op.fused, op.parts) == (False, ("add", "normalise"))
