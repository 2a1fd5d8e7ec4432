"""What ops state is what aten does: each product inside an op, its FLOPs those declared, its weights those read once.

Attention is the exception: aten counts what a kernel computes under its mask, an op what the mask leaves. Its pairs are
counted here one by one, and in test_attention.py as the weights that are not zero. What is checked is in
support/audit.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.configs import CONFIGS, ENCODER_DECODERS
from models.covered import check_covered
from ridgeline.core.models import FAMILIES, Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import ENCODER, LOGITS, TOKENS, StepSegment, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.scheduler import Limits
from support.audit import Run, audited, check_attention, check_bytes, check_products, routed
from support.checkpoints import random_ours
from support.engines import AuditedRunner, complete, token_engine
from support.wall_models import HEADLESS, MODELS, wall_model

pytestmark = pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels


def whole_sequences(model: Model, device: str) -> Run:
    """One forward of three whole sequences, without a cache, with the logits of three rows."""
    lengths = [9, 4, 1]
    segments = [StepSegment(n, n) for n in lengths]
    ids_T = torch.arange(14, device=device) % model.vocabulary
    positions_T = torch.cat([torch.arange(n, device=device) for n in lengths])
    with routed(model) as routers, audited(model) as audit, torch.no_grad():
        model(ids_T, positions_T, Uncached(segments), torch.tensor([8, 3, 13], device=device))
    return Run(model, audit, Work.of(segments, model.attention_patterns, 3), segments, routers)


def test_every_family_is_audited() -> None:
    """A family that is not in the list would not be."""
    check_covered(CONFIGS, FAMILIES, "CONFIGS in tests/models/configs.py")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_whole_sequences(family: str, dtype: str) -> None:
    """Prefill without a cache."""
    run = whole_sequences(random_ours(CONFIGS[family] | {"torch_dtype": dtype}), "cpu")
    assert sum(run.audit.flops.values()) > 0
    check_products(run)
    check_attention(run)
    check_bytes(run)


@pytest.mark.parametrize("family", CONFIGS)
def test_on_meta(family: str) -> None:
    """Without weights the same ops run in the same order and give the same shapes."""
    values = CONFIGS[family]
    traced = shapes_of(build(Fields(values, "config.json")), "meta")
    assert traced == shapes_of(random_ours(values), "cpu")
    assert {path for path, _ in traced} == {path for path, _ in random_ours(values).ops()}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_trace_uses_no_weights_and_leaves_them(family: str) -> None:
    """Trace a loaded model on meta throughout, its buffers too; afterwards it has its own tensors again."""
    model = random_ours(CONFIGS[family])
    held = dict(tensors_of(model))
    results: list[tuple[str, Any]] = []
    with model.on_meta(lambda path, _op, _inputs, out: results.append((path, out))):
        inside = [tensor.is_meta for _, tensor in tensors_of(model)]
        model._run_on_meta({TOKENS: 7, LOGITS: 2})
    assert len(inside) == len(held)
    assert all(inside)
    assert results
    assert all(x.is_meta for _, out in results for x in (out if isinstance(out, list | tuple) else (out,)))
    after = dict(tensors_of(model))
    assert after.keys() == held.keys()
    assert all(after[name] is tensor for name, tensor in held.items())
    assert not any(tensor.is_meta for tensor in held.values())


def tensors_of(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's parameters and buffers by name, those that several modules share once for each."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def shapes_of(model: Model, device: str) -> list[tuple[str, list[torch.Size]]]:
    """What each op gives in a forward of seven positions, with the logits of two."""
    shapes: list[tuple[str, list[torch.Size]]] = []

    def note(path: str) -> Callable[..., None]:
        def hook(_: object, __: object, out: Any) -> None:
            shapes.append((path, [x.shape for x in (out if isinstance(out, list | tuple) else (out,))]))

        return hook

    for path, op in model.ops():
        op.register_forward_hook(note(path))
    ids_T, rows_R = (torch.zeros(count, dtype=torch.int64, device=device) for count in (7, 2))
    with torch.inference_mode():
        model(ids_T, ids_T, Uncached([StepSegment(7, 7)]), rows_R)
    return shapes


@pytest.mark.parametrize("family", CONFIGS)
def test_steps_of_the_engine(family: str) -> None:
    """Chunked prefill beside decode over pages: every step of three requests."""
    engine: Engine = token_engine(random_ours(CONFIGS[family]), runner=AuditedRunner, limits=Limits(tokens=12, chunk=5))
    complete(engine, [list(range(13)), [5, 3], list(range(7, 15))])
    check_steps(engine)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_steps_of_encoder_decoders(family: str) -> None:
    """The same with an encoder's rows in a request's first step alone."""
    model = random_ours(ENCODER_DECODERS[family])
    engine = token_engine(model, runner=AuditedRunner, limits=Limits(tokens=18, chunk=5))
    inputs = ([6, 2, 8], list(range(11)), [7])
    complete(engine, [list(range(13)), [5, 3], list(range(7, 15))], encoders=inputs)
    encoded = [run.work.rows.get(ENCODER, 0) for run in check_steps(engine)]
    assert sum(encoded) == sum(map(len, inputs))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HEADLESS])
def test_steps_of_models_that_only_tests_have(name: str) -> None:
    """The same; of an encoder-decoder's encoder in a request's first step alone."""
    model = wall_model(name)
    engine = token_engine(
        model, runner=AuditedRunner, limits=Limits(tokens=18 if model.has_cross_attention else 12, chunk=5)
    )
    inputs = ([6, 2, 8], list(range(11)), [7]) if model.has_cross_attention else ((), (), ())
    complete(engine, [list(range(13)), [5, 3], list(range(7, 15))], encoders=inputs)
    encoded = [run.work.rows.get(ENCODER, 0) for run in check_steps(engine)]
    assert sum(encoded) == sum(map(len, inputs))
    assert not any(encoded[3:])


def check_steps(engine: Engine) -> list[Run]:
    """Assert that every step is what it says, and that there were steps of every sort; they are returned."""
    assert isinstance(engine.executor, AuditedRunner)
    runs = engine.executor.runs
    works = [run.work for run in runs]
    assert len(runs) > 16
    assert any(work.tokens > work.sequences > 1 for work in works), "no step mixes chunks and decodes"
    assert any(work.tokens == work.sequences == work.logit_rows == 3 for work in works), "no step decodes alone"
    assert any(work.logit_rows < work.sequences for work in works), "no step has a sequence without a logit row"
    assert works[-1].tokens == 1
    for run in runs:
        check_products(run)
        check_attention(run)
        check_bytes(run)
    return runs


def test_the_audit_sees_what_is_outside() -> None:
    """A model that computes between its ops is caught, and so is an op that computes other than it says."""

    class Leaky(nn.Module):
        """Multiplies on the way to the head."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x @ torch.eye(x.shape[1]))

    model = random_ours(CONFIGS["llama"])
    check_products(whole_sequences(model, "cpu"))
    model.model.layers[0].mlp = Leaky(model.model.layers[0].mlp)
    with pytest.raises(AssertionError, match="a product outside of all ops"):
        check_products(whole_sequences(model, "cpu"))

    model = random_ours(CONFIGS["llama"])
    model.model.layers[1].mlp.down_proj.matrix.outputs += 1
    with pytest.raises(AssertionError, match=r"model\.layers\.1\.mlp\.down_proj"):
        check_products(whole_sequences(model, "cpu"))
