"""Matrices of random codes, beside the numbers that numpy says they stand for."""

import numpy as np
import torch
from torch import Tensor

from ridgeline.core.ops.matrix.operands import Codes, Operands
from support.layouts import e4m3


def stand_for(
    codes_OB: np.ndarray, kind: str, inputs: int, group: int, scales: np.ndarray, zeros: np.ndarray
) -> np.ndarray:
    """The numbers of a matrix of bytes, in float64."""
    if kind == "int4":
        numbers = np.zeros((len(codes_OB), codes_OB.shape[1] * 2))
        numbers[:, 0::2], numbers[:, 1::2] = codes_OB % 16, codes_OB // 16
    else:
        numbers = e4m3()[codes_OB] if kind == "fp8" else codes_OB
    groups = np.arange(inputs) // group
    return scales[:, groups] * numbers[:, :inputs] - lows(scales, zeros)[:, groups]


def lows(scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """zero x scale as fp32 has it: of numbers rounded to bf16 any other way would have other ties."""
    return (scales * zeros).astype(np.float32).astype(float)


def operands(
    kind: str, size: tuple[int, int, int], scale_dtype: torch.dtype, dtype: torch.dtype, block: int = 1
) -> tuple[Operands, Tensor]:
    """Random codes with random scales and zeros, and the numbers that they stand for. block: outputs that share a
    scale."""
    outputs, inputs, group = size
    random = np.random.default_rng(outputs * inputs)
    row = -(-inputs // 32) * (16 if kind == "int4" else 32)
    codes = random.integers(0, 256, (outputs, row), dtype=np.uint8)
    if kind == "fp8":
        codes[codes % 128 == 127] = 0  # NaN
    shape = -(-outputs // block), -(-inputs // group)
    scales = torch.from_numpy(random.uniform(-1, 1, shape) * 0.01).to(scale_dtype)
    zeros = torch.from_numpy(random.integers(0, 16 if kind == "int4" else 256, shape, dtype=np.uint8))
    own = zeros if kind != "fp8" else 0.0
    by_output = np.arange(outputs) // block
    known_zeros = np.zeros(shape) if kind == "fp8" else zeros.numpy().astype(float)
    exact = stand_for(codes, kind, inputs, group, scales.double().numpy()[by_output], known_zeros[by_output])
    bias = torch.linspace(-1, 1, outputs).to(dtype)
    return Operands(torch.from_numpy(codes), bias, Codes(kind, group, scales, own, block)), torch.from_numpy(exact)


def rows_of(count: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, inputs + 3, generator=torch.Generator().manual_seed(count)).to(dtype)[:, :inputs]


def off(ours: Tensor, exact: Tensor) -> float:
    """The largest difference, in parts of the largest result."""
    return float((ours.double() - exact).abs().max() / exact.abs().max())
