"""Codes of keys and values: all of them, against arithmetic by hand, and our kernels' against torch's, bit for bit."""

import math

import pytest
import torch

from ridgeline.backends.cpu.library import Library
from ridgeline.core.ops.kv_quantisation import quantise, widen
from support.kernels import SETS, back_to_the_best
from support.paged import Case, Inputs, Memory, Native

AWKWARD = [0.0, -0.0, 1e-38, 2.0**-10, 2.0**-9, 1.5 * 2**-9, 2.0**-6, 0.0146, 0.3, 1.0, 17.0, 447.0, 448.0, 463.0, 1e9]


def test_fp8_is_the_nearest_of_all_its_numbers() -> None:
    """Ties go to the even mantissa; what is larger than the largest becomes it."""
    sizes = [2.0**-9 * code for code in range(8)]
    sizes += [2.0 ** (code // 8 - 7) * (1 + code % 8 / 8) for code in range(8, 127)]
    x_D = torch.cat([torch.randn(500, generator=torch.Generator().manual_seed(0)) * 3, torch.tensor(AWKWARD)])
    codes, scales = quantise(x_D, "fp8", 0.5)
    assert scales is None
    read = widen(codes, None, 0.5, torch.float32).tolist()
    for x, code, wide in zip(x_D.tolist(), codes.tolist(), read, strict=True):
        wanted = min(abs(2 * x), 448)
        assert abs(sizes[code % 128] - wanted) == min(abs(size - wanted) for size in sizes)
        assert abs(wide) == sizes[code % 128] / 2
        assert (code >= 128) == (math.copysign(1, x) < 0) == (math.copysign(1, wide) < 0)
    (tie,) = quantise(torch.tensor([1 + 1 / 16]), "fp8", 1.0)[0].tolist()
    assert sizes[tie] == 1.0


def test_int8_is_a_multiple_of_a_vectors_largest_number() -> None:
    x_2D = torch.tensor([[254.0, -254.0, 1.0, 0.9, 3.1], [0.0] * 5])
    codes, scales = quantise(x_2D, "int8", 1.0)
    assert scales is not None
    assert scales.tolist() == [[2.0], [0.0]]
    assert codes.tolist() == [[255, 1, 128, 128, 130], [128] * 5], "ties go to the even code"
    assert widen(codes, scales, 1.0, torch.float32).tolist() == [[254.0, -254.0, 0.0, 0.0, 4.0], [0.0] * 5]


@pytest.mark.skipif(not SETS, reason="the kernels were not compiled")
@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_kernels_write_what_torch_writes(stored: str) -> None:
    """Of numbers that round either way, subnormal ones, too large ones and NaN, by every instruction set."""
    case = Case(heads=(1, 1), dim=len(AWKWARD), width=30, stored=stored)
    g = torch.Generator().manual_seed(0)
    k_LKD = torch.randn(200, 1, case.dim, generator=g) * torch.logspace(-45, 30, 200)[:, None, None]
    k_LKD[7, 0], k_LKD[8, 0] = torch.tensor(AWKWARD), -torch.tensor(AWKWARD)
    k_LKD[9, 0, 1:3] = torch.tensor([math.nan, math.inf])
    v_LKW = torch.randn(200, 1, 30, generator=g) / torch.arange(1, 31)
    for name in SETS:
        memory = Memory(Native(Library(name=name)), case, 13)
        memory.step([Inputs(torch.zeros(200, 1, case.dim), k_LKD, v_LKW)], [range(200)])
        pages_1P = torch.tensor([memory.tables[0]])
        written = [part.gather(pages_1P)[0, 0, :200] for part in memory.store.parts]
        both = [quantise(x_LKD[:, 0], stored, 1.0) for x_LKD in (k_LKD, v_LKW)]
        wanted = [codes for codes, _ in both] + [scales for _, scales in both if scales is not None]
        assert len(written) == len(wanted)
        for ours, theirs in zip(written, wanted, strict=True):
            assert torch.equal(ours.nan_to_num(-1.0), theirs.nan_to_num(-1.0)), name
    back_to_the_best()
