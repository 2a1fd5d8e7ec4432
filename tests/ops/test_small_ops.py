"""Linear, embedding, norms, activations and additions against formulas in float64 and against transformers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ridgeline.ops.activation import ACTIVATIONS, Activation
from ridgeline.ops.embedding import Embedding
from ridgeline.ops.linear import Head, Linear
from ridgeline.ops.norm import LayerNorm, RMSNorm
from ridgeline.ops.op import Op
from ridgeline.ops.residual import Add

FP32 = torch.float32


def filled(op: Op, **tensors: Tensor) -> Op:
    """An op whose parameters are these."""
    for name, tensor in tensors.items():
        setattr(op, name, nn.Parameter(tensor, requires_grad=False))
    return op


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, fp32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_linear_by_hand() -> None:
    """Seed number 23: [1,2,3] . [4,5,6] = 32, and x W^T = [4, 5]."""
    one = filled(Linear(3, 1, FP32), weight=torch.tensor([[4.0, 5.0, 6.0]]))
    assert one(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[32.0]]
    two = filled(Linear(2, 2, FP32), weight=torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert two(torch.tensor([[1.0, 2.0]])).tolist() == [[4.0, 5.0]]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(transposed: bool, bias: bool) -> None:
    """y = x W^T + b, whichever way round the checkpoint stores W."""
    op = Linear(5, 3, FP32, bias, transposed=transposed)
    weight, offset, x = random(3, 5), random(3, seed=1), random(7, 5, seed=2)
    assert op.weight.shape == ((5, 3) if transposed else (3, 5))
    assert (op.bias is not None) == bias
    filled(op, weight=weight.t().contiguous() if transposed else weight, **({"bias": offset} if bias else {}))
    reference = x.double() @ weight.double().t() + (offset.double() if bias else 0)
    assert torch.allclose(op(x).double(), reference, atol=1e-5)


def test_head_gives_fp32() -> None:
    """Logits of a bf16 model are fp32 numbers, and over the rows that are wanted."""
    head = filled(Head(4, 9, torch.bfloat16), weight=random(9, 4).bfloat16())
    logits = head(random(2, 4).bfloat16())
    assert logits.dtype == FP32
    assert logits.shape == (2, 9)
    assert head.row_space == "logits"


def test_embedding_gathers_rows() -> None:
    """Row by id, repeated ids included."""
    op = filled(Embedding(6, 3, FP32), weight=random(6, 3))
    assert torch.equal(op(torch.tensor([5, 0, 5])), op.weight[[5, 0, 5]])


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16, torch.float16])
def test_rms_norm_is_llamas(dtype: torch.dtype) -> None:
    """Bit for bit in the narrow formats, where the order of cast and weight shows; by formula in fp32."""
    x, weight = random(5, 3, 16).to(dtype) * 3, (1 + 0.2 * random(16, seed=1)).to(dtype)
    op = filled(RMSNorm(16, 1e-2, dtype, per_token=3), weight=weight)
    theirs = LlamaRMSNorm(16, 1e-2)
    theirs.weight = nn.Parameter(weight)
    out = op(x)
    assert out.dtype == dtype
    if dtype == FP32:
        mean = (x.double() ** 2).mean(-1, keepdim=True)
        assert torch.allclose(out.double(), x.double() / (mean + 1e-2).sqrt() * weight.double(), atol=1e-6)
    else:
        differs = out != theirs(x)
        assert differs.float().mean() <= 0.01  # a rounding of fp32 on the way, never the order of the steps
        assert torch.allclose(out.float(), theirs(x).float(), rtol=2**-7)


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16])
def test_layer_norm(dtype: torch.dtype) -> None:
    """(x - mean) / sqrt(variance + eps) * weight + bias, computed in fp32."""
    x, weight, bias = (random(*shape, seed=i).to(dtype) for i, shape in enumerate([(7, 16), (16,), (16,)]))
    out = filled(LayerNorm(16, 1e-2, dtype), weight=weight, bias=bias)(x)
    wide = x.double()
    variance = ((wide - wide.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
    reference = (wide - wide.mean(-1, keepdim=True)) / (variance + 1e-2).sqrt() * weight.double() + bias.double()
    assert out.dtype == dtype
    assert torch.allclose(out.double(), reference, atol=1e-6 if dtype == FP32 else 2e-2)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_transformers(name: str) -> None:
    """Every name that a config may use, plain and gated."""
    x, up = random(7, 11) * 4, random(7, 11, seed=1)
    theirs = ACT2FN[name](x)
    assert torch.allclose(Activation(name, 11, FP32, gated=False)(x), theirs, atol=1e-6)
    assert torch.allclose(Activation(name, 11, FP32, gated=True)(x, up), theirs * up, atol=1e-5)


FORMULAS: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_by_formula(name: str) -> None:
    """And none of them is another."""
    points = [-3.0, -1.2, -0.1, 0.0, 0.3, 1.0, 2.7]
    ours = Activation(name, 7, FP32, gated=False)(torch.tensor([points]))[0].tolist()
    assert ours == pytest.approx([FORMULAS[name](x) for x in points], abs=1e-6)


def test_add() -> None:
    """x + y."""
    x, y = random(3, 4), random(3, 4, seed=1)
    assert torch.equal(Add(4, FP32)(x, y), x + y)
