"""A step on a device that is not there: torch's fake tensors on `cuda:0`, which have shapes and a place, no numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from engine.small_models import DELTA, LLAMA, MAMBA, MIXED, SLIDING
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from support.wall_models import HEADLESS, MODELS, wall_model

CUDA = torch.device("cuda:0")
TO_HOST = (Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__)
GEMMA2 = LLAMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 8,
    "sliding_window": 4,
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 5.0,
}
MINISTRAL3 = {name: value for name, value in LLAMA.items() if name != "rope_theta"} | {
    "architectures": ["Ministral3ForCausalLM"],
    "head_dim": 8,
    "rope_parameters": {"original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.1},
}
LLAMA4 = LLAMA | {
    "architectures": ["Llama4ForCausalLM"],
    "head_dim": 8,
    "moe_layers": [],  # experts are counted on the host
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 3,
}


class OnTheDevice(TorchFunctionMode):
    """Lets nothing of the device cross to the host, and does on meta what a torch that was built without CUDA cannot:
    indexing asks for the device's guard even of a fake tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fakes = [x for x in args if isinstance(x, FakeTensor) and x.device.type == "cuda"]
        assert not (fakes and func in TO_HOST), f"{func} waits for the device"
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if "not linked with support for cuda" not in str(error):
                raise
        out = func(*tree_map(_on("meta"), args), **(kwargs or {}))
        mode = fakes[0].fake_mode
        return tree_map(lambda x: FakeTensor(mode, x, CUDA) if isinstance(x, Tensor) else x, out)


def _on(device: str) -> Any:
    return lambda x: x.to(device) if isinstance(x, Tensor) else x


@contextmanager
def faked(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a model's weights on the device that is not there, where every new tensor may go too."""
    monkeypatch.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)  # small ones would be kept for real
    with FakeTensorMode():
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=CUDA)  # type: ignore[union-attr]
            for name, weight in module._parameters.items():
                if weight is not None:
                    empty = torch.empty(weight.shape, dtype=weight.dtype, device=CUDA)
                    module._parameters[name] = nn.Parameter(empty, requires_grad=False)
        model.tie()
        with OnTheDevice():
            yield


@pytest.mark.parametrize(
    "config",
    [LLAMA, SLIDING, MIXED, GEMMA2, MINISTRAL3, LLAMA4, DELTA, MAMBA],
    ids=lambda config: config["architectures"][0],
)
def test_a_forward_stays_on_the_device(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A first chunk, a later one, and two sequences that decode: every op sees only tensors of the device, and nothing
    crosses to the host before the logits are there."""
    model = build(Fields(config, "test"))
    places: set[str] = set()

    def look(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> None:
        places.update(x.device.type for x in inputs if isinstance(x, Tensor))

    for _, op in model.ops():
        op.register_forward_hook(look)
    layout = kv_layout(model, 1e9, 4, most_tokens=100)
    tables = [tuple((page,) for page in range(first, first + len(layout.groups))) for first in (1, 4, 7, 10)]
    with faked(model, monkeypatch):
        runner = Runner(model, layout)
        runner.forward(StepPlan(0, (PlanItem(1, 0, (1, 2, 3), tables[0], True, ()),)))
        items = (
            PlanItem(1, 3, (7,), tuple((page + 20,) for (page,) in tables[0]), False, (0,)),
            PlanItem(2, 0, (1, 2, 3), tables[1], True, (0, 2)),
            PlanItem(3, 2, (3, 4), tables[2], True, ()),
            PlanItem(4, 3, (9,), tables[3], True, (0,)),
        )
        logits_RV = runner.forward(StepPlan(1, items, blank=(22,)))
    assert logits_RV.device == CUDA
    assert logits_RV.shape == (4, 41)
    assert places == {"cuda"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HEADLESS])
def test_a_forward_of_models_that_only_tests_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents, chunks, sinks and biases, an encoder that runs and one that has run."""
    model = wall_model(name)
    layout = kv_layout(model, 1e9, 4, most_tokens=100)
    table = tuple((2 * group + 1, 2 * group + 2) for group in range(len(layout.groups)))
    encoder, encoded = ((1, 2, 3, 4, 5), 5) if model.has_cross_attention else ((), 0)
    with faked(model, monkeypatch):
        runner = Runner(model, layout)
        for start in range(3):
            items = (
                PlanItem(1, start, (7,), table if start == 0 else ((),) * len(table), start == 0, (0,), (), encoded),
                PlanItem(2 + start, 0, (1, 2, 3), table, True, (0, 2), encoder, encoded),
            )
            logits_RV = runner.forward(StepPlan(start, items))
    assert logits_RV.device == CUDA
    assert logits_RV.shape == (3, model.vocabulary)
