"""Kernels with AMX tiles, emulated or real: the order of their sums, the same bits in all sets that have them, and a
system that refuses tiles."""

import ctypes
import errno
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.backends.cpu import library as library_module
from ridgeline.backends.cpu.library import Library, library, state
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from support.kernels import EMULATED_PATH, EMULATED_SETS, SETS, back_to_the_best, load

TILED = [name for name in (*EMULATED_SETS, *SETS) if name.startswith("amx")]
SMALLEST = 2.0**-126
"""The smallest normal number of fp32."""

pytestmark = pytest.mark.skipif(not EMULATED_SETS, reason="the emulated kernels were not compiled: run make emulated")


@pytest.fixture(autouse=True)
def the_best_afterwards() -> Iterator[None]:
    yield
    back_to_the_best()


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return random bf16 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounded(exact: Fraction) -> Fraction:
    """Round to the nearest fp32 number, ties to even; numbers below the normal ones become 0."""
    double = float(exact)
    if Fraction(double) != exact:  # round to odd first, so that the second rounding sees no tie that is none
        bits = np.float64(double).view(np.int64)
        beyond = abs(Fraction(double)) > abs(exact)
        double = float(np.int64((bits - beyond) | 1).view(np.float64))
    single = float(np.float32(double))
    return Fraction(single) if abs(single) >= SMALLEST else Fraction(0)


def summed(x_I: Tensor, w_I: Tensor) -> float:
    """Return a product in the order of the instruction: per 32 inputs one chain of even places and one of odd ones."""
    total = Fraction(0)
    for first in range(0, len(x_I), 32):
        chains = [Fraction(0), Fraction(0)]
        for place in range(first, min(first + 32, len(x_I))):
            x, w = (Fraction(float(own[place])) for own in (x_I, w_I))
            x, w = (own if abs(own) >= SMALLEST else Fraction(0) for own in (x, w))
            chains[place % 2] = rounded(chains[place % 2] + x * w)
        total = rounded(total + rounded(chains[0] + chains[1]))
    return float(total)


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("rows", [1, 3, 5, 17])
def test_sums_are_in_the_order_of_the_instruction(name: str, rows: int) -> None:
    """Compare bits with exact fractions that are rounded at each step, with numbers near the smallest ones too."""
    x_TI, w_OI = normal(rows, 1100), normal(3, 1100, seed=1)
    x_TI[:, 40:300] *= 2.0**-70
    w_OI[:, 40:300] *= 2.0**-58
    x_TI[:, 35], w_OI[:, 36] = 2.0**-130, -(2.0**-128)
    found = load(name).products(x_TI, [Operands(w_OI, None)], torch.float32)[0]
    for row in {0, rows - 1}:
        for output in range(3):
            assert float(found[row, output]) == summed(x_TI[row], w_OI[output])


@pytest.mark.skipif(len(TILED) < 2, reason="only one set has tiles here")
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (33, 15), (1024, 31), (1100, 130), (512, 64), (31, 48)])
def test_all_sets_with_tiles_have_the_same_bits(inputs: int, outputs: int) -> None:
    """Compare the bits of products. Gated products differ by the instructions of their activation."""
    first, second, bias = normal(outputs, inputs), normal(outputs, inputs, seed=2), normal(outputs, seed=3)
    for rows in (1, 4, 5, 16, 33, 130):
        x_TI = normal(rows, inputs, seed=rows)
        found, gated = [], []
        for name in TILED:
            kernels = load(name)
            found.append(kernels.products(x_TI, [Operands(first, bias), Operands(second, None)], torch.float32))
            gated.append(kernels.gated_products(x_TI, Operands(first, bias), Operands(second, None), "silu"))
        x = x_TI.double()
        exact = ACTIVATIONS["silu"](x @ first.double().T + bias.double()) * (x @ second.double().T)
        for own in found[1:]:
            assert all(torch.equal(one, other) for one, other in zip(found[0], own, strict=True))
        for numbers in gated:
            assert float((numbers.double() - exact).abs().max() / exact.abs().max()) < 2**-7


@pytest.mark.parametrize(("depth", "count"), [(32, 32), (32, 128), (64, 64), (64, 96), (64, 1024)])
def test_products_of_bytes(depth: int, count: int) -> None:
    """Compare 64 rows and 16 outputs with torch, with the largest bytes, from rows that do not touch."""
    random = torch.Generator().manual_seed(count)
    x_RI = torch.randint(-128, 128, (64, count + 64), generator=random, dtype=torch.int8)
    codes_IOP = torch.randint(0, 256, (count // 4, 16, 4), generator=random, dtype=torch.uint8)
    x_RI[0, :count], codes_IOP[:, 0] = -128, 255
    found_RO = torch.full((64, 16), 7, dtype=torch.int32)
    ctypes.CDLL(str(EMULATED_PATH)).ridgeline_multiply_bytes(
        ctypes.c_void_p(x_RI.data_ptr()), ctypes.c_int64(x_RI.stride(0)), ctypes.c_void_p(codes_IOP.data_ptr()),
        ctypes.c_int64(count), depth, ctypes.c_void_p(found_RO.data_ptr()),
    )  # fmt: skip
    codes_IO = codes_IOP.transpose(1, 2).reshape(count, 16)
    assert torch.equal(found_RO.long(), x_RI[:, :count].long() @ codes_IO.long())


def refuse(error: int) -> None:
    """Let the emulated library's system refuse tiles with an error number; 0 permits them."""
    ctypes.CDLL(str(EMULATED_PATH)).ridgeline_refuse_tiles(error)


@pytest.fixture
def refusal() -> Iterator[None]:
    refuse(errno.ENOSPC)
    yield
    refuse(0)


@pytest.mark.usefixtures("refusal")
def test_without_permission_the_next_set_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the description that `ridgeline env` prints: it gives the reason."""
    assert Library(EMULATED_PATH).name == "plain"
    monkeypatch.setattr(library_module, "PATH", EMULATED_PATH)
    monkeypatch.delenv("RIDGELINE_KERNELS", raising=False)
    library.cache_clear()
    assert state() == (
        "plain, because the system refuses this process AMX tiles (No space left on device; a thread's signal stack is "
        "too small for them)"
    )


@pytest.mark.usefixtures("refusal")
def test_a_set_without_permission_is_refused_with_the_reason() -> None:
    why = r"is amx_emulated, but the system refuses .* signal stack is too small.*; unset it"
    with pytest.raises(ValueError, match=why):
        Library(EMULATED_PATH, "amx_emulated")


@pytest.mark.skipif("amx" in SETS, reason="this CPU has AMX")
def test_amx_on_a_cpu_without_it_is_refused() -> None:
    with pytest.raises(ValueError, match="RIDGELINE_KERNELS is amx, which this CPU does not support; unset it"):
        Library(name="amx")
