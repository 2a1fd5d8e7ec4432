"""Our kernels for cards against torch on the processor, in fp32, on sizes that no tile divides."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.ops.matrix import MatrixSpec, matrix_of
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.matrix.quantised import QuantisedMatrix
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.number_formats import INT8, WeightFormat, weight_format_named
from support.cards import DEVICE, DTYPES, TOLERANCE, close, needs_triton

pytestmark = needs_triton


@pytest.fixture(scope="module")
def cards():  # type: ignore[no-untyped-def]
    from ridgeline.backends.cuda.triton import TritonKernels

    return TritonKernels()


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("from_one", [False, True])
@pytest.mark.parametrize(("shape", "adds"), [((3, 1, 100), True), ((5, 3, 24), False), ((2, 1, 4100), True)])
def test_norms(shape: tuple[int, int, int], adds: bool, from_one: bool, dtype: torch.dtype, cards) -> None:  # type: ignore[no-untyped-def]
    """Of rows and of heads within wider rows; what is added is added in place."""
    rows, heads, width = shape
    op = RMSNorm(width, 1e-5, dtype, from_one=from_one)
    op.weight = torch.nn.Parameter(numbers(width, dtype=dtype, seed=1), requires_grad=False)
    wide = numbers(rows, heads * width + 7, dtype=dtype)
    x_THD, more_THD = wide[:, : heads * width].view(rows, heads, width), numbers(*shape, dtype=dtype, seed=2)
    there = wide.clone().to(DEVICE)[:, : heads * width].view(rows, heads, width)
    x, more = (there[:, 0], more_THD[:, 0].to(DEVICE)) if heads == 1 else (there, None)
    found = cards.norm(x, op.weight.to(DEVICE), 1e-5, from_one=from_one, added_ND=more if adds else None)
    summed = (x_THD.float() + more_THD.float()).to(dtype) if adds else x_THD
    normed = summed.float() * torch.rsqrt(summed.float().square().mean(-1, keepdim=True) + 1e-5)
    wanted = normed * (op.weight.float() + 1) if from_one else op.weight.float() * normed.to(dtype).float()
    assert close(found.reshape(shape), wanted, TOLERANCE[dtype])
    if adds:
        assert close(x.reshape(shape), summed, 2**-7 if dtype == torch.bfloat16 else 1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_new"])
def test_gates(activation: str, dtype: torch.dtype, cards) -> None:  # type: ignore[no-untyped-def]
    both = (3 * numbers(3, 2 * 1300 + 1, dtype=dtype)).to(DEVICE)
    gate, up = both[:, :1300], both[:, 1300:2600]
    wanted = ACTIVATIONS[activation](gate.float()) * up.float()
    assert close(cards.gated(gate, up, activation), wanted, TOLERANCE[dtype])
    assert cards.gated(gate, up, "relu") is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize(("inputs", "outputs", "bias"), [(1024, 9, False), (1500, 37, True), (40, 3, True)])
def test_plain_products(inputs: int, outputs: int, bias: bool, rows: int, dtype: torch.dtype, cards) -> None:  # type: ignore[no-untyped-def]
    x, weight = numbers(rows, inputs, dtype=dtype), numbers(outputs, inputs, dtype=dtype, seed=1)
    added = numbers(outputs, dtype=dtype, seed=2) if bias else None
    own = Operands(weight.to(DEVICE), None if added is None else added.to(DEVICE))
    wanted = functional.linear(x.double(), weight.double(), None if added is None else added.double())
    (found,) = cards.products(x.to(DEVICE), (own,), torch.float32)
    assert found.dtype == torch.float32
    assert close(found, wanted, TOLERANCE[dtype])
    assert cards.products(x.to(DEVICE), (own,))[0].dtype == dtype


FORMATS = {
    "int8": INT8,
    "int4": weight_format_named("int4"),
    "int4 of 32": weight_format_named("int4-g32"),
    "fp8": weight_format_named("fp8"),
    "fp8 blocks": WeightFormat("fp8 32x64", 8, (32, 64), 32, code="fp8"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 18])
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_codes(name: str, rows: int, dtype: torch.dtype, cards) -> None:  # type: ignore[no-untyped-def]
    """One row, a few, and many, for which the matrix is widened first: always what torch widens it to."""
    inputs, outputs = 192, 41
    matrix = matrix_of(MatrixSpec(inputs, outputs, dtype), FORMATS[name])
    assert isinstance(matrix, QuantisedMatrix)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, 256, matrix.codes.shape, dtype=torch.uint8, generator=generator)
    drawn = drawn & 0x77 if matrix.kind == "fp8" else drawn  # no NaN
    matrix.codes = torch.nn.Parameter(drawn, requires_grad=False)
    scale = torch.rand(matrix.scale.shape, generator=generator).to(matrix.scale.dtype)
    matrix.scale = torch.nn.Parameter(scale, requires_grad=False)
    if matrix.zero is not None:
        zero = torch.randint(0, 16, matrix.zero.shape, dtype=torch.uint8, generator=generator)
        matrix.zero = torch.nn.Parameter(zero, requires_grad=False)
    x, dense = numbers(rows, inputs, dtype=dtype), matrix.dense().to(dtype)
    matrix = matrix.to(DEVICE)
    operands = matrix.operands
    assert operands is not None
    assert cards.takes(operands)
    (found,) = cards.products(x.to(DEVICE), (operands,))
    assert close(found, functional.linear(x.double(), dense.double()), TOLERANCE[dtype])


def test_codes_of_rows_are_not_taken(cards) -> None:  # type: ignore[no-untyped-def]
    matrix = matrix_of(MatrixSpec(64, 8, torch.float32), weight_format_named("w8a8"))
    assert matrix.operands is not None
    assert not cards.takes(matrix.operands)


@pytest.mark.parametrize("columns", [1, 5, 2048, 5000])
def test_the_largest_of_a_row_is_torchs(columns: int, cards, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """The first of equals, rows of nothing but -inf, NaN wherever it is, and rows with something between them."""
    monkeypatch.setattr("ridgeline.backends.cuda.triton.likeliest._BLOCK", 1024)
    wide_RV = torch.randn(6, columns + 3, generator=torch.Generator().manual_seed(columns)).to(DEVICE)
    x_RV = wide_RV[:, :columns]
    x_RV[1, columns // 3], x_RV[1, -1] = 9.0, 9.0
    x_RV[2], x_RV[3, columns // 2], x_RV[4, -1] = -torch.inf, torch.nan, torch.inf
    found = cards.likeliest(x_RV)
    most_R, at_R = x_RV.max(dim=1)
    assert torch.equal(found[:, 1:].nan_to_num(7), most_R.double()[:, None].expand(-1, 2).nan_to_num(7))
    sound = ~most_R.isnan()
    assert torch.equal(found[sound, 0], at_R[sound].double())
    assert cards.likeliest(x_RV[:0]).shape == (0, 3)
