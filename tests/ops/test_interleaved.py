"""Integers side by side: products against numbers that numpy makes of the same codes in rows and of rows of x that it
rounds, a row alone against itself in any batch, bit for bit, and what becomes of a model's matrices."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.backends import priced_backend
from ridgeline.backends.cpu.cpu_weight_layout import interleaves, settle
from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import (
    AdaptedMatrix,
    AdapterRows,
    LoraWeights,
    Matrix,
    MatrixSpec,
    QuantisedMatrix,
    matrix_of,
)
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS
from ridgeline.core.ops.matrix.interleaved import codes_side_by_side, in_rows, scales_side_by_side
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.work import TOKENS, Work
from support.codes import off, operands, rows_of
from support.kernels import BF16_SETS, SETS, back_to_the_best, load
from support.quantised import take_weight

needs_bytes = pytest.mark.skipif(not BF16_SETS, reason="no kernels here read codes side by side")
# Outputs, inputs and the group: a unit of codes, several, with a last one that is not whole, all inputs, two blocks.
SIZES = [
    (16, 96, 32), (48, 544, 64), (32, 480, 96), (16, 1100, 128), (80, 1056, 1056), (16, 40, 40), (144, 33, 32),
    (32, 2080, 32),
]  # fmt: skip
ROWS = [1, 2, 3, 7, 9, 17, 97]
SCALES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["int8", "int4", "w8a8"]
BOTH = [torch.float32, torch.bfloat16]
ROUNDING = 2e-6
BEST = SETS[-1:] == BF16_SETS[-1:] != ()


@pytest.fixture(params=BF16_SETS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Those that multiply bytes, on one thread."""
    yield load(request.param)
    back_to_the_best()


def with_zero(own: Operands, exact: Tensor, zero: float) -> tuple[Operands, Tensor]:
    """The same codes with one zero for all, and what they stand for then."""
    codes = own.codes
    assert codes is not None
    assert isinstance(codes.zeros_OG, Tensor)
    apart = codes.scales_OG.double() * (codes.zeros_OG.double() - zero)
    return Operands(own.weight, own.bias, replace(codes, zeros_OG=zero)), exact + apart.repeat_interleave(
        codes.group, 1
    )[:, : exact.shape[1]]


def integers(
    kind: str, size: tuple[int, int, int], scale_dtype: torch.dtype, dtype: torch.dtype
) -> tuple[Operands, Tensor]:
    """Random codes in rows, and the numbers that they stand for; the zero of those of 8 bits is 128, and a row of W8A8
    has one group."""
    outputs, inputs, group = size
    own, exact = operands(kind, (outputs, inputs, inputs if kind == "w8a8" else group), scale_dtype, dtype)
    return (own, exact) if kind == "int4" else with_zero(own, exact, 128.0)


def side_by_side(own: Operands) -> Operands:
    """The same, interleaved."""
    assert own.codes is not None

    def moved(scales_OG: Tensor) -> Tensor:
        return scales_side_by_side(scales_OG).contiguous().view(scales_OG.shape)

    zeros = own.codes.zeros_OG
    zeros = moved(zeros) if isinstance(zeros, Tensor) else zeros
    codes = replace(own.codes, scales_OG=moved(own.codes.scales_OG), zeros_OG=zeros, interleaved=True)
    return Operands(codes_side_by_side(own.weight).contiguous().view(own.weight.shape), own.bias, codes)


def rounded(x_TI: Tensor, kind: str = "int8") -> Tensor:
    """Rows to the nearest of 255 steps, ties to even, 32 inputs at a time or whole, in float64 but for the scale."""
    count, inputs = x_TI.shape
    x = np.zeros((count, -(-inputs // 32), 32), dtype=np.float32)
    x.reshape(count, -1)[:, :inputs] = x_TI.float().numpy()
    scale = np.abs(x).max((1, 2) if kind == "w8a8" else 2, keepdims=True) / np.float32(127)
    by = np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))
    steps = np.rint(x * by).astype(float) * scale
    return torch.from_numpy(steps.reshape(count, -1)[:, :inputs].copy())


@needs_bytes
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_products(kernels: Library, kind: str, dtype: torch.dtype) -> None:
    """Of any number of rows; two matrices with groups of their own in a call; scales of every dtype; rounded once."""
    for place, size in enumerate(SIZES):
        first, exact = integers(kind, size, SCALES[place % 3], dtype)
        second, other = integers(kind, (size[0] + 16, size[1], size[1]), SCALES[(place + 1) % 3], dtype)
        for rows in ROWS:
            x_TI = rows_of(rows, size[1], dtype)
            both = [side_by_side(first), side_by_side(second)]
            wide = kernels.products(x_TI, both, torch.float32)
            for found, numbers, own in zip(wide, (exact, other), (first, second), strict=True):
                assert own.bias is not None
                assert off(found, rounded(x_TI, kind) @ numbers.T + own.bias.double()) < ROUNDING
            narrow = kernels.products(x_TI, both)
            assert all(torch.equal(one, each.to(dtype)) for one, each in zip(narrow, wide, strict=True))


@needs_bytes
@pytest.mark.parametrize("zero", [0.0, 5.0, 16.0])
def test_one_zero_for_all(kernels: Library, zero: float) -> None:
    """Up to 16, which GPTQ's first version has."""
    own, exact = with_zero(*operands("int4", (32, 160, 32), torch.bfloat16, torch.bfloat16), zero)
    x_TI = rows_of(3, 160, torch.bfloat16)
    found = kernels.products(x_TI, [side_by_side(Operands(own.weight, None, own.codes))], torch.float32)[0]
    assert off(found, rounded(x_TI) @ exact.T) < ROUNDING


@needs_bytes
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_size(kernels: Library, kind: str) -> None:
    """Of zeros, of numbers that are next to nothing and of large ones; what is not finite stays so."""
    own, exact = integers(kind, (32, 96, 32), torch.float32, torch.float32)
    own = Operands(own.weight, None, own.codes)
    x_TI = rows_of(6, 96, torch.float32).clone()
    x_TI[0], x_TI[1], x_TI[3, 40], x_TI[4, 7] = 0, x_TI[1] * 1e-37, torch.nan, torch.inf
    x_TI[2] *= 1e30
    x_TI[5, :32] = 0
    found = kernels.products(x_TI, [side_by_side(own)])[0]
    assert torch.equal(found[0], torch.zeros(32))
    assert found[1].abs().max() < 1e-34
    assert off(found[[2]], rounded(x_TI[[2]], kind) @ exact.T) < ROUNDING
    assert off(found[[5]], rounded(x_TI[[5]], kind) @ exact.T) < ROUNDING
    assert not found[3:5].isfinite().any()


@needs_bytes
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kernels: Library, kind: str) -> None:
    """Alone, in any batch, on one thread or two, also with a gate."""
    for size in SIZES:
        own = side_by_side(integers(kind, size, torch.float16, torch.bfloat16)[0])
        x_TI = rows_of(2 * max(ROWS), size[1], torch.bfloat16)
        alone = torch.cat([kernels.products(x_I[None], [own])[0] for x_I in x_TI])
        gated = torch.cat([kernels.gated_products(x_I[None], own, own, "silu") for x_I in x_TI])
        for rows in (*ROWS, len(x_TI)):
            kernels.threads(1 + rows % 2)
            assert torch.equal(kernels.products(x_TI[:rows], [own])[0], alone[:rows])
            assert torch.equal(kernels.gated_products(x_TI[:rows], own, own, "silu"), gated[:rows])


@needs_bytes
@pytest.mark.parametrize("kind", KINDS)
def test_gated_products(kernels: Library, kind: str) -> None:
    """A gate with other groups than what it gates."""
    gate, of_gate = integers(kind, (48, 96, 32), torch.float32, torch.float32)
    up, of_up = integers(kind, (48, 96, 96), torch.float16, torch.float32)
    assert gate.bias is not None
    for rows in ROWS:
        x_TI = rows_of(rows, 96, torch.float32)
        x, bias = rounded(x_TI, kind), gate.bias.double()
        exact = ACTIVATIONS["silu"](x @ of_gate.T + bias) * (x @ of_up.T + bias)
        assert off(kernels.gated_products(x_TI, side_by_side(gate), side_by_side(up), "silu"), exact) < 4 * ROUNDING


@needs_bytes
@pytest.mark.parametrize("kind", KINDS)
def test_gather(kernels: Library, kind: str) -> None:
    """The rows of a table are those of the one in rows, to the bit."""
    for size in SIZES:
        own, _ = integers(kind, size, torch.float16, torch.bfloat16)
        numbers = torch.tensor([size[0] - 1, 0, size[0] // 2, 0])
        wanted = kernels.gather_codes(own, size[1], torch.bfloat16, numbers)
        assert torch.equal(kernels.gather_codes(side_by_side(own), size[1], torch.bfloat16, numbers), wanted)
        assert kernels.gather_codes(side_by_side(own), size[1], torch.bfloat16, torch.tensor([size[0]])).isnan().all()


@pytest.mark.parametrize(("kind", "zero_bits"), [("int4", 0), ("int4", 8), ("int8", 0)])
def test_settled_matrices_stand_for_the_same_numbers(kind: str, zero_bits: int) -> None:
    """Whether kernels want them interleaved or not; those that are multiplied at once are interleaved all or none, a
    matrix that shares its parameters shares those that it has then, and plain ones stay where they are."""
    stored = WeightFormat(kind, int(kind[3:]), (1, 32), 16, zero_bits, code=kind)
    weight = torch.randn(48, 80, generator=torch.Generator().manual_seed(1)).bfloat16()

    def made(outputs: int, own: WeightFormat | None = stored) -> Matrix:
        matrix = matrix_of(MatrixSpec(80, outputs, torch.bfloat16), own)
        take_weight(matrix, weight[:outputs])
        return matrix

    alone, wide, odd, shared, plain = made(48), made(32), made(40), made(48), made(48, None)
    for name, parameter in alone.named_parameters():
        setattr(shared, name, parameter)
    every = (alone, wide, odd, shared, plain)
    before = [matrix.dequantised() for matrix in every]
    rows = [matrix.rows(torch.tensor([31, 2])) for matrix in every if isinstance(matrix, QuantisedMatrix)]
    kept = plain.get_parameter("weight")
    settle(every, [(alone,), (wide, odd), (plain,)])
    assert all(torch.equal(matrix.dequantised(), values) for matrix, values in zip(every, before, strict=True))
    after = [matrix.rows(torch.tensor([31, 2])) for matrix in every if isinstance(matrix, QuantisedMatrix)]
    assert all(torch.equal(one, each) for one, each in zip(after, rows, strict=True))
    assert plain.get_parameter("weight") is kept
    assert shared.get_parameter("codes") is alone.get_parameter("codes")
    interleaved = [matrix.interleaved for matrix in every if isinstance(matrix, QuantisedMatrix)]
    assert interleaved == [BEST, False, False, BEST]
    formats = [matrix.number_format for matrix in every]
    assert formats == ["int8" if each else "bf16" for each in (*interleaved, False)], "what a roof is of"


def test_adapters_leave_a_matrix_what_it_is_without_them() -> None:
    """The base of an adapted matrix is settled as it would be alone, and so are those that it is multiplied with; what
    the adapter adds is the same."""
    stored = WeightFormat("int4", 4, (1, 32), 16, 0, code="int4")
    bases = [QuantisedMatrix(MatrixSpec(64, outputs, torch.bfloat16), stored) for outputs in (32, 48)]
    for base in bases:
        take_weight(base, torch.randn(base.outputs, 64, generator=torch.Generator().manual_seed(2)).bfloat16())
    rows, added = AdapterRows(), LoraWeights(64, 32, 4, 2.0, torch.bfloat16)
    added.fill(rows_of(4, 64, torch.bfloat16).contiguous(), rows_of(32, 4, torch.bfloat16).contiguous())
    adapted = AdaptedMatrix(bases[0], rows)
    adapted.adapt(1, added)
    rows.set_step([1, 0], [2, 1], torch.device("cpu"))
    x_TI = rows_of(3, 64, torch.bfloat16).contiguous()
    before, plain = adapted.product(x_TI), bases[0].product(x_TI)
    assert off(plain, before) > 0.1
    settle((*bases, adapted), [(adapted, bases[1])])
    assert [base.interleaved for base in bases] == [BEST, BEST]
    assert off(adapted.product(x_TI), before) < 2**-6


def test_there_and_back() -> None:
    codes = torch.randint(0, 256, (32, 48), dtype=torch.uint8)
    scales = torch.randn(32, 3)
    assert torch.equal(in_rows(codes_side_by_side(codes)), codes)
    assert torch.equal(in_rows(scales_side_by_side(scales)), scales)


def test_what_is_laid_side_by_side() -> None:
    """Integers of models in bf16, and ggml's own types and W8A8 in any dtype; not other codes, scales of several
    outputs, groups of 16, outputs that are no multiple of 16. Each way has a class of its own among the kernels that
    are timed."""

    def kernel_of(stored: WeightFormat, dtype: torch.dtype = torch.bfloat16, outputs: int = 48) -> tuple[str, str]:
        op = Linear(MatrixSpec(64, outputs, dtype))
        op.set_weight_formats({"matrix": stored})
        (kernel,) = priced_backend("cpu").launches(op, Work({TOKENS: 4}, 1), TOKENS)
        (on_card,) = priced_backend("gpu").launches(op, Work({TOKENS: 4}, 1), TOKENS)
        assert not on_card.name.endswith("interleaved")
        assert sum(kernel.cost.flops.values()) == sum(on_card.cost.flops.values())
        assert set(kernel.cost.flops) == {"int8"} or kernel.cost == on_card.cost
        return kernel.name, kernel.number_format

    side, rows = (".interleaved", "int8") if BEST else ("", "bf16"), ("", "bf16")
    int4, int8 = (WeightFormat(kind, int(kind[3:]), (1, 32), 16, code=kind) for kind in ("int4", "int8"))
    for stored, found in (
        (int4, side),
        (int8, side),
        (replace(int8, block=(1, None)), side),
        (replace(int4, block=(1, 16)), rows),
        (replace(int4, block=(3, 32)), rows),
    ):
        assert kernel_of(stored) == (f"linear.few.{stored.kind}{found[0]}", found[1])
    w8a8 = replace(int8, block=(1, None), activations="int8")
    assert kernel_of(w8a8, torch.float32)[0] == f"linear.few.w8a8{side[0]}"
    assert not interleaves(matrix_of(MatrixSpec(64, 48, torch.float16), w8a8))  # torch computes in fp16, over rows
    assert kernel_of(WeightFormat("fp8", 8, (1, None), 32, code="fp8"))[0] == "linear.few.fp8"
    assert kernel_of(int4, outputs=40) == ("linear.few.int4", "bf16")
    assert kernel_of(int4, torch.float32) == ("linear.few.int4", "fp32")
    for layout, own in (("Q8_0", True), ("Q4_0", True), ("Q4_1", False), ("Q5_0", False)):
        name = f"linear.few.{BLOCKS[layout].kind}"
        wanted = (name + side[0], "int8") if own and BEST else (name, "fp32")
        assert kernel_of(BLOCKS[layout], torch.float32) == wanted
