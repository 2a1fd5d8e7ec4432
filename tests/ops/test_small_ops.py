"""Linear, embedding, norms, activations and additions against formulas in float64 and against transformers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, Gemma2TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm

from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.linear import Linear, LMHead, Projections
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import AddLayerNorm, AddRMSNorm, LayerNorm, RMSNorm, UnweightedRMSNorm
from ridgeline.core.ops.number_formats import WeightFormat, weight_format_named
from ridgeline.core.ops.stored_module import StoredModule

FP32 = torch.float32


def filled(op: StoredModule, **tensors: Tensor) -> StoredModule:
    """An op whose parameters, or whose matrix's, are these."""
    for name, tensor in tensors.items():
        setattr(getattr(op, "matrix", op), name, nn.Parameter(tensor, requires_grad=False))
    return op


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, fp32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_linear_by_hand() -> None:
    """Seed number 23: [1,2,3] . [4,5,6] = 32, and x W^T = [4, 5]."""
    one = filled(Linear(MatrixSpec(3, 1, FP32)), weight=torch.tensor([[4.0, 5.0, 6.0]]))
    assert one(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[32.0]]
    two = filled(Linear(MatrixSpec(2, 2, FP32)), weight=torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert two(torch.tensor([[1.0, 2.0]])).tolist() == [[4.0, 5.0]]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(transposed: bool, bias: bool) -> None:
    """y = x W^T + b, whichever way round the checkpoint stores W."""
    op = Linear(MatrixSpec(5, 3, FP32, bias, transposed=transposed))
    weight, offset, x = random(3, 5), random(3, seed=1), random(7, 5, seed=2)
    assert op.matrix.weight.shape == ((5, 3) if transposed else (3, 5))
    assert (op.matrix.bias is not None) == bias
    filled(op, weight=weight.t().contiguous() if transposed else weight, **({"bias": offset} if bias else {}))
    reference = x.double() @ weight.double().t() + (offset.double() if bias else 0)
    assert torch.allclose(op(x).double(), reference, atol=1e-5)


def test_head_gives_fp32() -> None:
    """Logits of a bf16 model are fp32 numbers, and over the rows that are wanted."""
    head = filled(LMHead(MatrixSpec(4, 9, torch.bfloat16)), weight=random(9, 4).bfloat16())
    logits = head(random(2, 4).bfloat16())
    assert logits.dtype == FP32
    assert logits.shape == (2, 9)


def test_embedding_gathers_rows() -> None:
    """Row by id, repeated ids included."""
    op = filled(Embedding(6, 3, FP32), weight=random(6, 3))
    assert torch.equal(op(torch.tensor([5, 0, 5])), op.weight[[5, 0, 5]])


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16, torch.float16])
def test_embedding_is_scaled_as_gemmas(dtype: torch.dtype) -> None:
    """Bit for bit: the scale is rounded to the table's dtype before the product (sqrt(7) is no number of any)."""
    weight, ids = random(6, 7).to(dtype), torch.tensor([5, 0, 5])
    theirs = Gemma2TextScaledWordEmbedding(6, 7, 0, embed_scale=math.sqrt(7)).to(dtype)
    theirs.weight = nn.Parameter(weight)
    assert torch.equal(filled(Embedding(6, 7, dtype, scale=math.sqrt(7)), weight=weight)(ids), theirs(ids))


@pytest.mark.parametrize("dtype", [FP32, torch.bfloat16, torch.float16])
def test_rms_norm_from_one_is_gemmas(dtype: torch.dtype) -> None:
    """The weight is added to 1 and multiplied in fp32, before the cast: bf16's rounding shows another order."""
    x, weight = random(5, 3, 16).to(dtype) * 3, (0.2 * random(16, seed=1)).to(dtype)
    theirs = Gemma2RMSNorm(16, 1e-2)
    theirs.weight = nn.Parameter(weight)
    out = filled(RMSNorm(16, 1e-2, dtype, from_one=True), weight=weight)(x)
    assert out.dtype == dtype
    assert torch.allclose(out, theirs(x), rtol=1e-6) if dtype == FP32 else (out != theirs(x)).float().mean() <= 0.01


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
def test_norm_without_a_weight_is_llama_4s(dtype: torch.dtype) -> None:
    """Each head's vector by itself; nothing to load, nothing read but the vectors."""
    x = random(5, 3, 16).to(dtype) * 3
    op = UnweightedRMSNorm(16, 1e-2, dtype, per_token=3)
    assert torch.allclose(op(x).float(), Llama4TextL2Norm(1e-2)(x).float(), rtol=1e-6 if dtype == FP32 else 2**-7)
    assert (list(op.parameters()), op.parameter_count(), op.cost_of(5).weight_bytes) == ([], 0, 0)
    assert op.cost_of(5).total_flops == 3 * 5 * 3 * 16
    assert op.cost_of(5).activation_bytes == RMSNorm(16, 1e-2, dtype, per_token=3).cost_of(5).activation_bytes


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


def activated(name: str, width: int, *, gated: bool, fused: bool = False) -> ActivatedProjections:
    """The first half of an MLP over 5 inputs, unfilled."""
    one = MatrixSpec(5, width, FP32)
    if fused:
        return ActivatedProjections({"gate_up": MatrixSpec(5, 2 * width, FP32, parts=(width, width))}, name)
    return ActivatedProjections({"gate": one, "up": one} if gated else {"fc": one}, name)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_transformers(name: str) -> None:
    """Every name that a config may use, plain and gated."""
    x, up = random(7, 11) * 4, random(7, 11, seed=1)
    theirs = ACT2FN[name](x)
    plain, gated = activated(name, 11, gated=False), activated(name, 11, gated=True)
    assert torch.allclose(plain.activate(x), theirs, atol=1e-6)
    assert torch.allclose(gated.activate(x, up), theirs * up, atol=1e-5)


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
    ours = activated(name, 7, gated=False).activate(torch.tensor([points]))[0].tolist()
    assert ours == pytest.approx([FORMULAS[name](x) for x in points], abs=1e-6)


def test_projections_are_their_matrices_side_by_side() -> None:
    """Whether a checkpoint stores three matrices or one."""
    x, weights = random(4, 5), [random(n, 5, seed=n) for n in (6, 2, 2)]
    separate = Projections({name: MatrixSpec(5, len(w), FP32) for name, w in zip("qkv", weights, strict=True)})
    for name, w in zip("qkv", weights, strict=True):
        filled(getattr(separate, name), weight=w)
    fused = Projections({"qkv": MatrixSpec(5, 10, FP32, parts=(6, 2, 2))})
    filled(fused.qkv, weight=torch.cat(weights))
    for w, one, other in zip(weights, separate(x), fused(x), strict=True):
        assert torch.allclose(one, x @ w.t(), atol=1e-6)
        assert torch.allclose(other, x @ w.t(), atol=1e-6)
    assert separate.cost_of(4) == fused.cost_of(4)
    assert [op.launches_of(4)[0].calls for op in (separate, fused)] == [3, 1]


def test_gate_and_up_are_one_boundary() -> None:
    """silu(x G) * (x U), stored apart or fused; the boundary moves less than its parts do."""
    x, gate, up = random(4, 5), random(3, 5, seed=1), random(3, 5, seed=2)
    apart, fused = activated("silu", 3, gated=True), activated("silu", 3, gated=True, fused=True)
    filled(apart.gate, weight=gate)
    filled(apart.up, weight=up)
    filled(fused.gate_up, weight=torch.cat([gate, up]))
    reference = nn.functional.silu(x @ gate.t()) * (x @ up.t())
    assert torch.allclose(apart(x), reference, atol=1e-5)
    assert torch.allclose(fused(x), reference, atol=1e-5)
    products, activation = apart.launches_of(4)
    assert products.cost.total_flops + activation.cost.total_flops == apart.cost_of(4).total_flops
    moved = products.cost.activation_bytes + activation.cost.activation_bytes
    assert moved - apart.cost_of(4).activation_bytes == 4 * 4 * 12  # gate and up, written and read


@pytest.mark.parametrize(("both", "norm"), [(AddRMSNorm, RMSNorm), (AddLayerNorm, LayerNorm)])
def test_add_and_norm(both: type[AddRMSNorm], norm: type[RMSNorm]) -> None:
    """The sum and its norm are those of two ops, bit for bit."""
    x, y, weight = random(3, 4), random(3, 4, seed=1), random(4, seed=2)
    own = {"weight": weight} | ({"bias": random(4, seed=3)} if norm is LayerNorm else {})
    added, normed = filled(both(4, 1e-5, FP32), **own)(x.clone(), y)
    assert torch.equal(added, x + y)
    assert torch.equal(normed, filled(norm(4, 1e-5, FP32), **own)(x + y))


def test_int8_rows_round_to_the_nearest_of_255() -> None:
    """A product with quantised rows is within half a step of each weight; zeros stay zeros, biases are not touched."""
    weight, bias, x = random(7, 33), random(7, seed=1), random(5, 33, seed=2)
    weight[3] = 0
    op = Linear(MatrixSpec(33, 7, FP32, bias=True))
    op.set_weight_formats({"matrix": weight_format_named("int8")})
    for name, full in (("weight", weight), ("bias", bias)):
        filled(op.matrix, **op.matrix.load_tensor(name, full))
    error = (op(x) - (x @ weight.t() + bias)).abs()
    assert (error <= x.abs().sum(1, keepdim=True) * (weight.abs().amax(1) / 254) * (1 + 2**-8) + 1e-5).all()
    assert torch.allclose(op(x)[:, 3], bias[3].expand(5))
    assert op.stored_bytes() == 7 * 64 + 7 * 2 + 7 * 4  # whole units of 32 codes, scales of 16 bits, the bias
    assert op.parameter_count() == 7 * 33 + 7


def test_a_block_of_a_weight_format_is_outputs_by_inputs() -> None:
    """Rows, groups of inputs, and blocks of both."""

    def form(high: int | None, wide: int | None) -> WeightFormat:
        return WeightFormat("x", 4, (high, wide), 16)

    plain = 300 * 500 * 4 / 8
    assert form(1, None).nbytes(300, 500) == plain + 300 * 2
    assert form(1, 128).nbytes(300, 500) == plain + 300 * 4 * 2
    assert form(128, 128).nbytes(300, 500) == plain + 3 * 4 * 2
    assert form(None, None).nbytes(300, 500) == plain + 2
