"""Products of few rows with a stored matrix, which read it once, and dequantisation of a matrix for many rows.

One row is multiplied element by element, with several tiles in flight on each multiprocessor, because memory bandwidth
is the limit. A few rows are one operand of the tensor cores, padded with empty rows, and the codes are the other one.
Codes are exact in the dtype of the rows, so a group's scale can be applied to its sums.

Shapes: T rows, I inputs, O outputs; tiles have BLOCK_ before their names, and G groups of SPAN inputs with one scale.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.backends.cuda.triton.codes import both, group_terms, halves, numbers
from ridgeline.backends.cuda.triton.launch import early, let_next_start, product_dtype, wait_for_last
from ridgeline.core.ops.matrix.operands import Codes, Operands

KINDS = frozenset({"int8", "int4", "fp8"})
"""The number formats that the product kernels dequantise.

w8a8 also quantises rows and is multiplied by PyTorch.
"""

ROW_TILES = ((4, 2048), (2, 1024))
"""The sizes (outputs, inputs) of a tile for one row's product with a plain matrix.

The first tile is used if it divides the inputs. On an H200 this was the best of five choices for five shapes, and
faster than cuBLAS.
"""

CODE_TILES = {"int8": (4, 1024), "fp8": (4, 1024), "int4": (8, 1024)}
"""The sizes (outputs, inputs) of a tile for one row's product with a quantised matrix."""

FEW_ROWS = 64
"""The most rows that are multiplied with quantised weights directly; for more, the weights are dequantised first."""

FEW_INPUTS = 128
"""The maximum number of inputs in a tile of quantised weights that is multiplied with a few rows."""

_MULTIPROCESSORS = 132  # of the largest GPUs: if there are fewer tiles, they are halved

_WIDEN_TILE = (16, 256)


@triton.jit
def _one_row(
    x, weights, bias, y, outputs, inputs, weight_stride,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply one row with a plain matrix; the first weights are loaded before the row is ready."""
    let_next_start(EARLY)
    o_O, i_I = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_I)
    row_O = o_O.to(tl.int64) * weight_stride
    keep_OI = (o_O < outputs)[:, None] & ((i_I < inputs)[None, :] | EVEN)
    w_OI = tl.load(weights + row_O[:, None] + i_I[None, :], mask=keep_OI, other=0.0)
    wait_for_last(EARLY)
    x_I = tl.load(x + i_I, mask=(i_I < inputs) | EVEN, other=0.0).to(tl.float32)
    sum_OI = w_OI.to(tl.float32) * x_I[None, :]
    for start in range(BLOCK_I, inputs, BLOCK_I):
        i_I = start + tl.arange(0, BLOCK_I)
        keep_OI = (o_O < outputs)[:, None] & ((i_I < inputs)[None, :] | EVEN)
        x_I = tl.load(x + i_I, mask=(i_I < inputs) | EVEN, other=0.0).to(tl.float32)
        w_OI = tl.load(weights + row_O[:, None] + i_I[None, :], mask=keep_OI, other=0.0)
        sum_OI += w_OI.to(tl.float32) * x_I[None, :]
    y_O = tl.sum(sum_OI, axis=1)
    if HAS_BIAS:
        y_O += tl.load(bias + o_O, mask=o_O < outputs, other=0.0).to(tl.float32)
    tl.store(y + o_O, y_O.to(y.dtype.element_ty), mask=o_O < outputs)


@triton.jit
def _one_row_of_codes(
    x, weights, bias, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups, group,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, EVEN: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply one row with a quantised matrix."""
    let_next_start(EARLY)
    wait_for_last(EARLY)
    IN_BYTE: tl.constexpr = 2 if KIND == "int4" else 1
    BLOCK_G: tl.constexpr = BLOCK_I // SPAN
    o_O = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    g_G, b_B = tl.arange(0, BLOCK_G), tl.arange(0, SPAN // IN_BYTE)
    there_O = o_O < outputs
    row_O, scale_row_O = o_O.to(tl.int64) * weight_stride, o_O // sharers * groups
    sum_OGB = tl.zeros((BLOCK_O, BLOCK_G, SPAN // IN_BYTE), tl.float32)
    for start in range(0, inputs, BLOCK_I):
        i_I, i_G = start + tl.arange(0, BLOCK_I), start + g_G * SPAN
        x_I = tl.load(x + i_I, mask=(i_I < inputs) | EVEN, other=0.0).to(tl.float32)
        byte_GB = (start // IN_BYTE + g_G * (SPAN // IN_BYTE))[:, None] + b_B[None, :]
        keep_OGB = there_O[:, None, None] & ((byte_GB * IN_BYTE < inputs)[None, :, :] | EVEN)
        held_OGB = tl.load(weights + row_O[:, None, None] + byte_GB[None, :, :], mask=keep_OGB, other=0)
        keep_OG = there_O[:, None] & ((i_G < inputs)[None, :] | EVEN)
        at_OG = scale_row_O[:, None] + (i_G // group)[None, :]
        scale_OG, low_OG = group_terms(scales, zeros, lows, zero, at_OG, keep_OG, HAS_ZEROS, HAS_LOWS)
        if KIND == "int4":
            low_OGB, high_OGB = halves(held_OGB)
            even_GB, odd_GB = tl.split(tl.reshape(x_I, (BLOCK_G, SPAN // 2, 2)))
            sum_OGB += (low_OGB * scale_OG[:, :, None] + low_OG[:, :, None]) * even_GB[None, :, :]
            sum_OGB += (high_OGB * scale_OG[:, :, None] + low_OG[:, :, None]) * odd_GB[None, :, :]
        else:
            w_OGB = numbers(held_OGB, KIND) * scale_OG[:, :, None] + low_OG[:, :, None]
            sum_OGB += w_OGB * tl.reshape(x_I, (BLOCK_G, SPAN))[None, :, :]
    y_O = tl.sum(tl.sum(sum_OGB, axis=2), axis=1)
    if HAS_BIAS:
        y_O += tl.load(bias + o_O, mask=there_O, other=0.0).to(tl.float32)
    tl.store(y + o_O, y_O.to(y.dtype.element_ty), mask=there_O)


@triton.jit(do_not_specialize=["rows"])
def _few_rows_of_codes(
    x, x_stride, rows, weights, bias, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups,
    group,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply a few rows with a quantised matrix on the tensor cores.

    A tile lies within one group. If all groups have the same zero point, it is subtracted from the codes, which stay
    exact. Other zero points are multiplied with the sum of a row.
    """
    let_next_start(EARLY)
    wait_for_last(EARLY)
    IN_BYTE: tl.constexpr = 2 if KIND == "int4" else 1
    o_O, t_T = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_T)
    there_O = o_O < outputs
    row_O, scale_row_O = o_O.to(tl.int64) * weight_stride, o_O // sharers * groups
    sum_OT = tl.zeros((BLOCK_O, BLOCK_T), tl.float32)
    for start in range(0, inputs, BLOCK_I):
        i_I, b_B = start + tl.arange(0, BLOCK_I), start // IN_BYTE + tl.arange(0, BLOCK_I // IN_BYTE)
        keep_TI = (t_T < rows)[:, None] & ((i_I < inputs)[None, :] | EVEN)
        x_TI = tl.load(x + t_T[:, None] * x_stride + i_I[None, :], mask=keep_TI, other=0.0).to(DTYPE)
        keep_OB = there_O[:, None] & ((b_B * IN_BYTE < inputs)[None, :] | EVEN)
        held_OB = tl.load(weights + row_O[:, None] + b_B[None, :], mask=keep_OB, other=0)
        scale_O, low_O = group_terms(
            scales, zeros, lows, zero, scale_row_O + start // group, there_O, HAS_ZEROS, HAS_LOWS
        )  # fmt: skip
        taken = 0.0 if HAS_ZEROS or HAS_LOWS else zero
        if KIND == "int4":
            low_OB, high_OB = halves(held_OB)
            even_TB, odd_TB = tl.split(tl.reshape(x_TI, (BLOCK_T, BLOCK_I // 2, 2)))
            part_OT = tl.dot((low_OB - taken).to(DTYPE), tl.trans(even_TB), input_precision="ieee")
            part_OT = tl.dot((high_OB - taken).to(DTYPE), tl.trans(odd_TB), part_OT, input_precision="ieee")
        else:
            part_OT = tl.dot((numbers(held_OB, KIND) - taken).to(DTYPE), tl.trans(x_TI), input_precision="ieee")
        sum_OT += part_OT * scale_O[:, None]
        if HAS_ZEROS or HAS_LOWS:
            sum_OT += low_O[:, None] * tl.sum(x_TI.to(tl.float32), axis=1)[None, :]
    if HAS_BIAS:
        sum_OT += tl.load(bias + o_O, mask=there_O, other=0.0).to(tl.float32)[:, None]
    keep_OT = there_O[:, None] & (t_T < rows)[None, :]
    tl.store(y + t_T[None, :] * outputs + o_O[:, None], sum_OT.to(y.dtype.element_ty), mask=keep_OT)


@triton.jit
def _widen(
    weights, y, outputs, inputs, weight_stride, scales, zeros, lows, zero, sharers, groups, group,
    KIND: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, EVEN: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Dequantise a tile of a quantised matrix."""
    IN_BYTE: tl.constexpr = 2 if KIND == "int4" else 1
    BLOCK_G: tl.constexpr = BLOCK_I // SPAN
    start, o_O = tl.program_id(0) * BLOCK_I, tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    there_O, i_G = o_O < outputs, start + tl.arange(0, BLOCK_G) * SPAN
    row_O, scale_row_O = o_O.to(tl.int64) * weight_stride, o_O // sharers * groups
    byte_GB = (i_G // IN_BYTE)[:, None] + tl.arange(0, SPAN // IN_BYTE)[None, :]
    keep_OGB = there_O[:, None, None] & ((byte_GB * IN_BYTE < inputs)[None, :, :] | EVEN)
    held_OGB = tl.load(weights + row_O[:, None, None] + byte_GB[None, :, :], mask=keep_OGB, other=0)
    at_OG, keep_OG = scale_row_O[:, None] + (i_G // group)[None, :], there_O[:, None] & ((i_G < inputs)[None, :] | EVEN)
    scale_OG, low_OG = group_terms(scales, zeros, lows, zero, at_OG, keep_OG, HAS_ZEROS, HAS_LOWS)
    code_OGI = both(held_OGB, BLOCK_O, BLOCK_G, SPAN) if KIND == "int4" else numbers(held_OGB, KIND)
    w_OGI = code_OGI * scale_OG[:, :, None] + low_OG[:, :, None]
    i_GI = i_G[:, None] + tl.arange(0, SPAN)[None, :]
    at_OGI = o_O.to(tl.int64)[:, None, None] * inputs + i_GI[None, :, :]
    tl.store(
        y + at_OGI, w_OGI.to(y.dtype.element_ty), mask=there_O[:, None, None] & ((i_GI < inputs)[None, :, :] | EVEN)
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A quantised matrix in the form that the Triton kernels need: their arguments and compile-time constants."""

    scales: Tensor
    zeros: Tensor
    lows: Tensor
    zero: float
    sharers: int
    groups: int
    group: int
    constants: dict[str, Any]

    @classmethod
    def of(cls, codes: Codes, unused: Tensor) -> "_Stored":
        """Return the Triton kernels' arguments for a quantised matrix; `unused` replaces missing tensors."""
        zeros, lows = codes.zeros_OG, codes.minima_OG
        return cls(
            codes.scales_OG,
            zeros if isinstance(zeros, Tensor) else unused,
            unused if lows is None else lows,
            0.0 if isinstance(zeros, Tensor) else zeros,
            codes.outputs_per_scale,
            codes.scales_OG.shape[1],
            codes.group,
            {"KIND": codes.kind, "HAS_ZEROS": isinstance(zeros, Tensor), "HAS_LOWS": lows is not None},
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments, in order, of a Triton kernel that reads a quantised matrix."""
        return self.scales, self.zeros, self.lows, self.zero, self.sharers, self.groups, self.group

    def span(self, most: int) -> int:
        """Return the number of inputs with one scale that a tile holds side by side.

        It is a power of two, at most `most`. If a row has only one scale, it is `most`.
        """
        return most if self.groups == 1 else min(most, self.group & -self.group)


def takes(own: Operands, rows: int) -> bool:
    """Return whether a Triton kernel multiplies a matrix with this many rows: one, or a few if it is quantised.

    Tensor cores need at least 16 inputs at a time, and half a tile of int4 has every second one.
    """
    if own.codes is None or rows == 1:
        return rows == 1
    return 1 < rows <= FEW_ROWS and (own.codes.kind != "int4" or own.codes.group % 32 == 0)


def few_products(x_TI: Tensor, own: Operands, out: torch.dtype) -> Tensor:
    """Return X W^T + b of a few rows, for which `takes` is true -> [T, O] in the dtype `out`."""
    rows, inputs = x_TI.shape
    outputs = len(own.weight)
    assert takes(own, rows), "the kernel does not support this number of rows"
    y_TO = x_TI.new_empty(rows, outputs, dtype=out)
    bias, has_bias = (own.weight, False) if own.bias is None else (own.bias, True)
    if own.codes is None:
        block_o, block_i = next((tile for tile in ROW_TILES if inputs % tile[1] == 0), ROW_TILES[-1])
        _one_row[(triton.cdiv(outputs, block_o),)](
            x_TI, own.weight, bias, y_TO, outputs, inputs, own.weight.stride(0),
            HAS_BIAS=has_bias, EVEN=inputs % block_i == 0, BLOCK_O=block_o, BLOCK_I=block_i, num_warps=4,
            **early(x_TI.device),
        )  # fmt: skip
        return y_TO
    stored = _Stored.of(own.codes, own.weight)
    if rows == 1:
        block_o, block_i = CODE_TILES[own.codes.kind]
        _one_row_of_codes[(triton.cdiv(outputs, block_o),)](
            x_TI, own.weight, bias, y_TO, outputs, inputs, own.weight.stride(0), *stored.arguments, **stored.constants,
            HAS_BIAS=has_bias, EVEN=inputs % block_i == 0, SPAN=stored.span(block_i), BLOCK_O=block_o, BLOCK_I=block_i,
            num_warps=4, **early(x_TI.device),
        )  # fmt: skip
        return y_TO
    block_t, block_i = max(16, triton.next_power_of_2(rows)), stored.span(FEW_INPUTS)
    block_o = 64 if outputs >= 64 * _MULTIPROCESSORS else 32
    _few_rows_of_codes[(triton.cdiv(outputs, block_o),)](
        x_TI, x_TI.stride(0), rows, own.weight, bias, y_TO, outputs, inputs, own.weight.stride(0), *stored.arguments,
        **stored.constants, HAS_BIAS=has_bias, EVEN=inputs % block_i == 0, DTYPE=product_dtype(x_TI.dtype),
        BLOCK_T=block_t, BLOCK_O=block_o, BLOCK_I=block_i, num_warps=4,
        num_stages=4 if x_TI.dtype.itemsize == 2 else 2, **early(x_TI.device),
    )  # fmt: skip
    return y_TO


def widened(own: Operands, inputs: int, dtype: torch.dtype) -> Tensor:
    """Return the dequantised weights [O, I] of a quantised matrix in a dtype."""
    assert own.codes is not None, "only quantised matrices can be dequantised"
    outputs, stored = len(own.weight), _Stored.of(own.codes, own.weight)
    w_OI = own.weight.new_empty(outputs, inputs, dtype=dtype)
    block_o, block_i = _WIDEN_TILE
    _widen[(triton.cdiv(inputs, block_i), triton.cdiv(outputs, block_o))](
        own.weight, w_OI, outputs, inputs, own.weight.stride(0), *stored.arguments, **stored.constants,
        EVEN=inputs % block_i == 0, SPAN=stored.span(block_i), BLOCK_O=block_o, BLOCK_I=block_i, num_warps=4,
    )  # fmt: skip
    return w_OI
