"""Products of few rows with a stored matrix, which read it once; and a matrix of codes as numbers, for many rows.

One row is multiplied number by number, with several tiles under way on each multiprocessor: what counts is that memory
never waits. A few rows are a tile of the tensor cores, filled up with rows of nothing.

Shapes: T rows, I inputs, O outputs; tiles have BLOCK_ before their names.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.ops.kernels.operands import Operands
from ridgeline.ops.kernels.triton.codes import tile
from ridgeline.ops.kernels.triton.launch import number_of, product_dtype

KINDS = frozenset({"int8", "int4", "fp8"})
"""Codes that are widened here; of w8a8 rows are codes too, which torch multiplies."""

ROW_TILE = (4, 1024)
"""Outputs and inputs of a tile that is multiplied with one row."""

FEW_TILE = (16, 32, 256)
"""Rows, outputs and inputs of a tile that is multiplied with a few; no more rows than these."""

_WIDEN_TILE = (16, 256)


@triton.jit
def _one_row(
    x, weights, bias, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups, group,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    o_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row_O = o_O.to(tl.int64) * weight_stride
    scale_row_O = o_O // sharers * groups
    sum_OI = tl.zeros((BLOCK_O, BLOCK_I), tl.float32)
    step: tl.constexpr = 2 if KIND == "int4" else 1
    for start in range(0, inputs, BLOCK_I * step):
        for part in tl.static_range(step):
            i_I = start + tl.arange(0, BLOCK_I) * step + part
            keep_OI = (o_O < outputs)[:, None] & ((i_I < inputs)[None, :] | EVEN)
            x_I = tl.load(x + i_I, mask=(i_I < inputs) | EVEN, other=0.0).to(tl.float32)
            w_OI = tile(
                weights, row_O, i_I, keep_OI, scales, zeros, lows, zero, scale_row_O, group,
                KIND, part == 1, HAS_ZEROS, HAS_LOWS, DTYPE,
            )  # fmt: skip
            sum_OI += w_OI.to(tl.float32) * x_I[None, :]
    y_O = tl.sum(sum_OI, axis=1)
    if HAS_BIAS:
        y_O += tl.load(bias + o_O, mask=o_O < outputs, other=0.0).to(tl.float32)
    tl.store(y + o_O, y_O.to(y.dtype.element_ty), mask=o_O < outputs)


@triton.jit
def _few_rows(
    x, x_stride, rows, weights, bias, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups,
    group,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    o_O, t_T = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_T)
    row_O = o_O.to(tl.int64) * weight_stride
    scale_row_O = o_O // sharers * groups
    sum_TO = tl.zeros((BLOCK_T, BLOCK_O), tl.float32)
    step: tl.constexpr = 2 if KIND == "int4" else 1
    for start in range(0, inputs, BLOCK_I * step):
        for part in tl.static_range(step):
            i_I = start + tl.arange(0, BLOCK_I) * step + part
            keep_OI = (o_O < outputs)[:, None] & (i_I < inputs)[None, :]
            keep_TI = (t_T < rows)[:, None] & (i_I < inputs)[None, :]
            x_TI = tl.load(x + t_T[:, None] * x_stride + i_I[None, :], mask=keep_TI, other=0.0).to(DTYPE)
            w_OI = tile(
                weights, row_O, i_I, keep_OI, scales, zeros, lows, zero, scale_row_O, group,
                KIND, part == 1, HAS_ZEROS, HAS_LOWS, DTYPE,
            )  # fmt: skip
            sum_TO = tl.dot(x_TI, tl.trans(w_OI), sum_TO, input_precision="ieee")
    if HAS_BIAS:
        sum_TO += tl.load(bias + o_O, mask=o_O < outputs, other=0.0).to(tl.float32)[None, :]
    keep_TO = (t_T < rows)[:, None] & (o_O < outputs)[None, :]
    tl.store(y + t_T[:, None] * outputs + o_O[None, :], sum_TO.to(y.dtype.element_ty), mask=keep_TO)


@triton.jit
def _widen(
    weights, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups, group,
    KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    o_O = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    row_O, scale_row_O = o_O.to(tl.int64) * weight_stride, o_O // sharers * groups
    step: tl.constexpr = 2 if KIND == "int4" else 1
    for part in tl.static_range(step):
        i_I = tl.program_id(0) * BLOCK_I * step + tl.arange(0, BLOCK_I) * step + part
        keep_OI = (o_O < outputs)[:, None] & (i_I < inputs)[None, :]
        w_OI = tile(
            weights, row_O, i_I, keep_OI, scales, zeros, lows, zero, scale_row_O, group,
            KIND, part == 1, HAS_ZEROS, HAS_LOWS, DTYPE,
        )  # fmt: skip
        at_OI = o_O.to(tl.int64)[:, None] * inputs + i_I[None, :]
        tl.store(y + at_OI, w_OI.to(y.dtype.element_ty), mask=keep_OI)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A matrix as the kernels take it: their arguments for its codes, and the constants that they are compiled for."""

    scales: Tensor
    zeros: Tensor
    lows: Tensor
    zero: float
    sharers: int
    groups: int
    group: int
    constants: dict[str, Any]

    @classmethod
    def of(cls, own: Operands) -> "_Stored":
        codes, unused = own.codes, own.weight
        if codes is None:
            return cls(unused, unused, unused, 0.0, 1, 1, 1, {"KIND": "plain", "HAS_ZEROS": False, "HAS_LOWS": False})
        zeros, lows = codes.zeros_OG, codes.lows_OG
        return cls(
            codes.scales_OG,
            zeros if isinstance(zeros, Tensor) else unused,
            unused if lows is None else lows,
            0.0 if isinstance(zeros, Tensor) else zeros,
            codes.outputs,
            codes.scales_OG.shape[1],
            codes.group,
            {"KIND": codes.kind, "HAS_ZEROS": isinstance(zeros, Tensor), "HAS_LOWS": lows is not None},
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.scales, self.zeros, self.lows, self.zero, self.sharers, self.groups, self.group


def few_products(x_TI: Tensor, own: Operands, out: torch.dtype) -> Tensor:
    """x W^T + b of at most FEW_TILE rows -> [T, O] in a dtype."""
    rows, inputs = x_TI.shape
    outputs, stored = len(own.weight), _Stored.of(own)
    y_TO = x_TI.new_empty(rows, outputs, dtype=out)
    bias, has_bias = (own.weight, False) if own.bias is None else (own.bias, True)
    if rows == 1:
        block_o, block_i = ROW_TILE
        width = block_i * (2 if stored.constants["KIND"] == "int4" else 1)
        _one_row[(triton.cdiv(outputs, block_o),)](
            x_TI, own.weight, bias, y_TO, outputs, inputs, own.weight.stride(0), *stored.arguments, **stored.constants,
            HAS_BIAS=has_bias, EVEN=inputs % width == 0, DTYPE=number_of(x_TI.dtype), BLOCK_O=block_o, BLOCK_I=block_i,
            num_warps=4,
        )  # fmt: skip
        return y_TO
    block_t, block_o, block_i = FEW_TILE
    assert rows <= block_t, "few rows are a tile"
    _few_rows[(triton.cdiv(outputs, block_o),)](
        x_TI, x_TI.stride(0), rows, own.weight, bias, y_TO, outputs, inputs, own.weight.stride(0), *stored.arguments,
        **stored.constants, HAS_BIAS=has_bias, DTYPE=product_dtype(x_TI.dtype), BLOCK_T=block_t, BLOCK_O=block_o,
        BLOCK_I=block_i, num_warps=4,
    )  # fmt: skip
    return y_TO


def widened(own: Operands, inputs: int, dtype: torch.dtype) -> Tensor:
    """What the codes of a matrix stand for [O, I], in a dtype."""
    outputs, stored = len(own.weight), _Stored.of(own)
    w_OI = own.weight.new_empty(outputs, inputs, dtype=dtype)
    block_o, block_i = _WIDEN_TILE
    width = block_i * (2 if stored.constants["KIND"] == "int4" else 1)
    _widen[(triton.cdiv(inputs, width), triton.cdiv(outputs, block_o))](
        own.weight, w_OI, outputs, inputs, own.weight.stride(0), *stored.arguments, **stored.constants,
        DTYPE=number_of(dtype), BLOCK_O=block_o, BLOCK_I=block_i, num_warps=4,
    )  # fmt: skip
    return w_OI
