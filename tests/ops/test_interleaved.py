"""Codes of 4 bits side by side: products against numbers that numpy makes of the same codes in rows, a row alone
against itself in any batch, bit for bit, and what becomes of a model's matrices."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ridgeline.ops.activation import ACTIVATIONS
from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.kernels import Library, Operands
from ridgeline.ops.matrix import (
    AdaptedMatrix,
    AdapterRows,
    LowRank,
    Matrix,
    MatrixSpec,
    QuantisedMatrix,
    matrix_of,
    settle,
)
from ridgeline.ops.matrix.interleaved import codes_side_by_side, in_rows, scales_side_by_side
from support.codes import off, operands, rows_of
from support.kernels import SETS
from support.quantised import take_weight

needs_bf16 = pytest.mark.skipif("avx512_bf16" not in SETS, reason="kernels that read codes side by side multiply bf16")
# Outputs, inputs and the group: a unit of codes, several, with a last one that is not whole, all inputs.
SIZES = [(16, 96, 32), (48, 544, 64), (32, 480, 96), (16, 1100, 128), (80, 1056, 1056), (16, 40, 40), (144, 33, 32)]
ROWS = [1, 2, 3, 7, 9, 17, 97]
SCALES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = 2e-6
BEST = SETS[-1:] == ("avx512_bf16",)


@pytest.fixture
def kernels() -> Library:
    """Those that multiply bf16, on one thread."""
    own = Library(name="avx512_bf16")
    own.threads(1)
    return own


def side_by_side(own: Operands) -> Operands:
    """The same, interleaved."""
    assert own.codes is not None
    assert isinstance(own.codes.zeros_OG, Tensor)
    scales, zeros = (
        scales_side_by_side(x).contiguous().view(x.shape) for x in (own.codes.scales_OG, own.codes.zeros_OG)
    )
    codes = replace(own.codes, scales_OG=scales, zeros_OG=zeros, interleaved=True)
    return Operands(codes_side_by_side(own.weight).contiguous().view(own.weight.shape), own.bias, codes)


@needs_bf16
def test_products(kernels: Library) -> None:
    """Of any number of rows; two matrices with groups of their own in a call; scales of every dtype; rounded once."""
    for place, size in enumerate(SIZES):
        first, exact = operands("int4", size, SCALES[place % 3], torch.bfloat16)
        second, other = operands("int4", (size[0] + 16, size[1], size[1]), SCALES[(place + 1) % 3], torch.bfloat16)
        for rows in ROWS:
            x_TI = rows_of(rows, size[1], torch.bfloat16)
            both = [side_by_side(first), side_by_side(second)]
            wide = kernels.products(x_TI, both, torch.float32)
            for found, numbers, own in zip(wide, (exact, other), (first, second), strict=True):
                assert own.bias is not None
                assert off(found, x_TI.double() @ numbers.T + own.bias.double()) < ROUNDING
            narrow = kernels.products(x_TI, both)
            assert all(torch.equal(one, each.bfloat16()) for one, each in zip(narrow, wide, strict=True))


@needs_bf16
def test_one_zero_for_all(kernels: Library) -> None:
    own, exact = operands("int4", (32, 160, 32), torch.bfloat16, torch.bfloat16)
    assert own.codes is not None
    assert isinstance(own.codes.zeros_OG, Tensor)
    scales = own.codes.scales_OG.double().repeat_interleave(32, 1)
    exact = exact + scales * (own.codes.zeros_OG.double().repeat_interleave(32, 1) - 5)
    side = side_by_side(own)
    assert side.codes is not None
    side = Operands(side.weight, None, replace(side.codes, zeros_OG=5.0))
    x_TI = rows_of(3, 160, torch.bfloat16)
    assert off(kernels.products(x_TI, [side], torch.float32)[0], x_TI.double() @ exact.T) < ROUNDING


@needs_bf16
def test_a_row_does_not_depend_on_its_neighbours(kernels: Library) -> None:
    """Alone, in any batch, on one thread or two, also with a gate."""
    for size in SIZES:
        own = side_by_side(operands("int4", size, torch.float16, torch.bfloat16)[0])
        x_TI = rows_of(2 * max(ROWS), size[1], torch.bfloat16)
        alone = torch.cat([kernels.products(x_I[None], [own])[0] for x_I in x_TI])
        gated = torch.cat([kernels.gated_products(x_I[None], own, own, "silu") for x_I in x_TI])
        for rows in (*ROWS, len(x_TI)):
            kernels.threads(1 + rows % 2)
            assert torch.equal(kernels.products(x_TI[:rows], [own])[0], alone[:rows])
            assert torch.equal(kernels.gated_products(x_TI[:rows], own, own, "silu"), gated[:rows])


@needs_bf16
def test_gated_products(kernels: Library) -> None:
    """A gate with other groups than what it gates."""
    gate, of_gate = operands("int4", (48, 96, 32), torch.float32, torch.bfloat16)
    up, of_up = operands("int4", (48, 96, 96), torch.float16, torch.bfloat16)
    assert gate.bias is not None
    for rows in ROWS:
        x_TI = rows_of(rows, 96, torch.bfloat16)
        x, bias = x_TI.double(), gate.bias.double()
        exact = ACTIVATIONS["silu"](x @ of_gate.T + bias) * (x @ of_up.T + bias)
        assert off(kernels.gated_products(x_TI, side_by_side(gate), side_by_side(up), "silu"), exact) < 2**-8


@needs_bf16
def test_gather(kernels: Library) -> None:
    """The rows of a table are those of the one in rows, to the bit."""
    for size in SIZES:
        own, _ = operands("int4", size, torch.float16, torch.bfloat16)
        numbers = torch.tensor([size[0] - 1, 0, size[0] // 2, 0])
        wanted = kernels.gather_codes(own, size[1], torch.bfloat16, numbers)
        assert torch.equal(kernels.gather_codes(side_by_side(own), size[1], torch.bfloat16, numbers), wanted)
        assert kernels.gather_codes(side_by_side(own), size[1], torch.bfloat16, torch.tensor([size[0]])).isnan().all()


@pytest.mark.parametrize("zero_bits", [0, 8])
def test_settled_matrices_stand_for_the_same_numbers(zero_bits: int) -> None:
    """Whether kernels want them interleaved or not; those that are multiplied at once are interleaved all or none, a
    matrix that shares its parameters shares those that it has then, and plain ones stay where they are."""
    stored = WeightFormat("int4", 4, (1, 32), 16, zero_bits, code="int4")
    weight = torch.randn(48, 80, generator=torch.Generator().manual_seed(1)).bfloat16()

    def made(outputs: int, own: WeightFormat | None = stored) -> Matrix:
        matrix = matrix_of(MatrixSpec(80, outputs, torch.bfloat16), own)
        take_weight(matrix, weight[:outputs])
        return matrix

    alone, wide, odd, shared, plain = made(48), made(32), made(40), made(48), made(48, None)
    for name, parameter in alone.named_parameters():
        setattr(shared, name, parameter)
    every = (alone, wide, odd, shared, plain)
    before = [matrix.values() for matrix in every]
    rows = [matrix.rows(torch.tensor([31, 2])) for matrix in every if isinstance(matrix, QuantisedMatrix)]
    kept = plain.get_parameter("weight")
    settle(every, [(alone,), (wide, odd), (plain,)])
    assert all(torch.equal(matrix.values(), values) for matrix, values in zip(every, before, strict=True))
    after = [matrix.rows(torch.tensor([31, 2])) for matrix in every if isinstance(matrix, QuantisedMatrix)]
    assert all(torch.equal(one, each) for one, each in zip(after, rows, strict=True))
    assert plain.get_parameter("weight") is kept
    assert shared.get_parameter("codes") is alone.get_parameter("codes")
    interleaved = [matrix.interleaved for matrix in every if isinstance(matrix, QuantisedMatrix)]
    assert interleaved == [BEST, False, False, BEST]


def test_adapters_leave_a_matrix_what_it_is_without_them() -> None:
    """The base of an adapted matrix is settled as it would be alone, and so are those that it is multiplied with; what
    the adapter adds is the same."""
    stored = WeightFormat("int4", 4, (1, 32), 16, 0, code="int4")
    bases = [QuantisedMatrix(MatrixSpec(64, outputs, torch.bfloat16), stored) for outputs in (32, 48)]
    for base in bases:
        take_weight(base, torch.randn(base.outputs, 64, generator=torch.Generator().manual_seed(2)).bfloat16())
    rows, added = AdapterRows(), LowRank(64, 32, 4, 2.0, torch.bfloat16)
    added.fill(rows_of(4, 64, torch.bfloat16).contiguous(), rows_of(32, 4, torch.bfloat16).contiguous())
    adapted = AdaptedMatrix(bases[0], rows)
    adapted.adapt(1, added)
    rows.choose([1, 0], [2, 1], torch.device("cpu"))
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
