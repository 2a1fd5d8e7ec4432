"""Matrices of codes: our kernels and torch's way against numbers that numpy makes of the same bytes; a row alone
against itself in any batch, bit for bit; and how near a plain weight its codes are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix
from ridgeline.core.ops.matrix.operands import Codes
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.number_formats import WeightFormat
from support.codes import off, operands, rows_of
from support.kernels import BF16_SETS, SETS
from support.quantised import take_weight

needs_kernels = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
KINDS = ["int8", "int4", "fp8"]
# Outputs, inputs and the group: half a unit of codes, a unit, several, with a last one that is not whole, all inputs.
SIZES = [
    (1, 48, 16), (9, 80, 16), (6, 304, 16), (37, 96, 32), (8, 544, 64), (7, 480, 96), (5, 1100, 128), (13, 1056, 1056),
    (3, 40, 40),
]  # fmt: skip
ROWS = [1, 2, 3, 4, 5, 17, 97]
BOTH = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
SCALES = [torch.float32, torch.bfloat16, torch.float16]


@needs_kernels
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_products(kernels: Library, kind: str, dtype: torch.dtype) -> None:
    """Of any number of rows; two matrices in a call; scales of every dtype, of a row each or of blocks of three."""
    for place, size in enumerate(SIZES):
        first, exact = operands(kind, size, SCALES[place % 3], dtype)
        second, other = operands(kind, size, SCALES[(place + 1) % 3], dtype, block=3)
        for rows in ROWS:
            x_TI = rows_of(rows, size[1], dtype)
            wide = kernels.products(x_TI, [first, second], torch.float32)
            for found, numbers, own in zip(wide, (exact, other), (first, second), strict=True):
                rounded = numbers.to(dtype).double() if kernels.name in BF16_SETS else numbers
                assert off(found, x_TI.double() @ rounded.T + own.bias.double()) < ROUNDING[torch.float32]
            narrow = kernels.products(x_TI, [first, second])
            assert all(torch.equal(one, each.to(dtype)) for one, each in zip(narrow, wide, strict=True))


@needs_kernels
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kernels: Library, kind: str, dtype: torch.dtype) -> None:
    """Alone, in any batch, on one thread or two."""
    for size in SIZES:
        own, _ = operands(kind, size, torch.float16, dtype)
        x_TI = rows_of(max(ROWS), size[1], dtype)
        alone = torch.cat([kernels.products(x_I[None], [own])[0] for x_I in x_TI])
        for rows in ROWS:
            kernels.threads(1 + rows % 2)
            assert torch.equal(kernels.products(x_TI[:rows], [own])[0], alone[:rows])


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_gated_products(kernels: Library, kind: str) -> None:
    """A gate and what it gates, of codes."""
    gate, of_gate = operands(kind, (37, 96, 32), torch.float32, torch.float32)
    up, of_up = operands(kind, (37, 96, 96), torch.float16, torch.float32)
    for rows in ROWS:
        x_TI = rows_of(rows, 96, torch.float32)
        x, bias = x_TI.double(), gate.bias.double()
        exact = ACTIVATIONS["silu"](x @ of_gate.T + bias) * (x @ of_up.T + bias)
        assert off(kernels.gated_products(x_TI, gate, up, "silu"), exact) < 4 * ROUNDING[torch.float32]


def rounded_to_int8(x_TI: Tensor) -> Tensor:
    """Rows to the nearest of 255 steps, ties to even, in float64 but for the scale."""
    scale = (x_TI.float().abs().amax(-1, keepdim=True) / 127).numpy()
    by = np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))
    return torch.from_numpy(np.rint(np.clip(x_TI.float().numpy() * by, -127, 127)).astype(float) * scale)


@needs_kernels
@pytest.mark.parametrize("dtype", BOTH)
def test_products_of_integers(kernels: Library, dtype: torch.dtype) -> None:
    """Rows are rounded as numpy rounds them; one of zeros gives the bias, one of NaN gives NaN; a row alone as in any
    batch, on one thread or two; a gate too."""
    for outputs, inputs in ((1, 1), (37, 96), (9, 40), (5, 1100), (130, 544), (12, 4000)):
        own, exact = operands("int8", (outputs, inputs, inputs), torch.float32, dtype)
        assert own.codes is not None
        assert own.bias is not None
        own = own._replace(codes=replace(own.codes, kind="w8a8"))
        x_TI = rows_of(max(ROWS), inputs, dtype)
        x_TI[1] = 0
        wanted = rounded_to_int8(x_TI) @ exact.T + own.bias.double()
        alone = torch.cat([kernels.products(x_I[None], [own], torch.float32)[0] for x_I in x_TI])
        assert off(alone, wanted) < ROUNDING[torch.float32]
        assert torch.equal(alone[1], own.bias.float())
        for rows in ROWS:
            kernels.threads(1 + rows % 2)
            assert torch.equal(kernels.products(x_TI[:rows], [own], torch.float32)[0], alone[:rows])
        gated = ACTIVATIONS["silu"](wanted) * wanted
        assert off(kernels.gated_products(x_TI, own, own, "silu"), gated) < 4 * ROUNDING[dtype]
        x_TI[0, -1] = float("nan")
        assert kernels.products(x_TI, [own])[0][0].isnan().all()


@needs_kernels
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kind", [*KINDS, "w8a8"])
def test_gather(kernels: Library, kind: str, dtype: torch.dtype) -> None:
    """Rows of a table of codes, in any order, on two threads; one that is not there is a row of NaN."""
    kernels.threads(2)
    for size in SIZES if kind != "w8a8" else SIZES[-2:]:
        own, exact = operands("int8" if kind == "w8a8" else kind, size, torch.float16, dtype)
        assert own.codes is not None
        own = own._replace(codes=replace(own.codes, kind=kind))
        numbers = torch.tensor([size[0] - 1, 0, size[0] // 2, 0])
        torch.testing.assert_close(
            kernels.gather_codes(own, size[1], dtype, numbers).double(),
            exact[numbers],
            rtol=2**-8 if dtype == torch.bfloat16 else 1e-6,
            atol=1e-6,
        )
        assert kernels.gather_codes(own, size[1], dtype, torch.tensor([-1, size[0]])).isnan().all()


@needs_kernels
def test_what_kernels_do_not_take_is_refused(kernels: Library) -> None:
    """Codes that are too short for their row, groups of no whole units, a call of several kinds."""
    own, _ = operands("int8", (4, 64, 32), torch.float32, torch.float32)
    other, _ = operands("int4", (4, 64, 32), torch.float32, torch.float32)
    x_TI = rows_of(2, 64, torch.float32)
    assert own.codes is not None
    wrong = [
        own._replace(weight=own.weight[:, :32]),
        own._replace(codes=Codes("int8", 24, own.codes.scales_OG)),
        own._replace(codes=Codes("int8", 64, own.codes.scales_OG)),
        own._replace(codes=Codes("w8a8", 32, own.codes.scales_OG)),
    ]
    for each in wrong:
        with pytest.raises(AssertionError):
            kernels.products(x_TI, [each])
    with pytest.raises(AssertionError):
        kernels.products(x_TI, [own, other])


FORMATS = [
    (WeightFormat("w8a8", 8, (1, None), 32, activations="int8", code="int8"), 1 / 254),
    (WeightFormat("int8", 8, (1, None), 16, code="int8"), 1 / 254),
    (WeightFormat("int8 g48", 8, (1, 48), 16, code="int8"), 1 / 254),
    (WeightFormat("int4", 4, (1, 32), 16, code="int4"), 1 / 14),
    (WeightFormat("int4 z", 4, (1, 64), 16, 8, code="int4"), 1 / 15),
    (WeightFormat("fp8", 8, (1, 16), 16, code="fp8"), 2**-4),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stored", "most"), FORMATS)
def test_a_plain_weight_becomes_the_nearest_codes(stored: WeightFormat, most: float, *, transposed: bool) -> None:
    """No number is farther from its own than half a step of its group (of fp8, of its size); the product is that
    of these numbers; a group of zeros stays zero."""
    outputs, inputs, group = 21, 144, stored.block[1] or 144
    matrix = QuantisedMatrix(MatrixSpec(inputs, outputs, torch.float32, transposed=transposed), stored)
    plain = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3))
    plain[4] = 0
    take_weight(matrix, plain.t() if transposed else plain)
    found = matrix.dequantised()
    whole = nn.functional.pad(plain, (0, -inputs % group)).view(outputs, -1, group)
    largest = whole.abs().amax(-1)
    if stored.zero_bits:
        largest = whole.amax(-1).clamp(min=0) - whole.amin(-1).clamp(max=0)
    step = largest.repeat_interleave(group, 1)[:, :inputs] * most
    bound = (
        plain.abs() * most + largest.repeat_interleave(group, 1)[:, :inputs] / 448 / 512
        if stored.code == "fp8"
        else step
    )
    rounded = 1 + 2**-8  # scales of 16 bits are bf16
    assert ((found - plain).abs() <= bound * rounded + 1e-7).all()
    assert (found[4] == 0).all()
    x_TI = rows_of(5, inputs, torch.float32)
    rows = rounded_to_int8(x_TI) if stored.activations else x_TI.double()
    assert off(matrix.product(x_TI), rows @ found.double().T) < ROUNDING[torch.float32]
    assert matrix.stored_bytes() == sum(p.nbytes for p in matrix.parameters())
