"""C structures of rows and matrices that the C++ library reads.

Shapes: T rows of a step, I inputs, O outputs.
"""

from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p, pointer

import torch
from torch import Tensor

from ridgeline.core.ops.matrix.operands import DTYPES, MAX_INTEGERS, UNIT, Codes, Operands

CODES = {"int8": 0, "int4": 1, "fp8": 2, "w8a8": 3}
"""The number of each format of quantised weights, as in Code of native/kernels.h."""

_SCALE_DTYPES = {**DTYPES, torch.float16: 2}


class CodesStruct(Structure):
    """The C structure of a matrix's quantisation codes."""

    _fields_ = (
        ("code", c_int), ("scale_type", c_int), ("group", c_int64), ("outputs", c_int64), ("groups", c_int64),
        ("scales", c_void_p), ("zeros", c_void_p), ("lows", c_void_p), ("zero", c_float),
        ("interleaved", c_int),
    )  # fmt: skip


class MatrixStruct(Structure):
    """The C structure of a matrix and of the memory for its results."""

    _fields_ = (
        ("weight", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("y", c_void_p), ("y_stride", c_int64),
        ("weight_stride", c_int64), ("codes", POINTER(CodesStruct)),
    )  # fmt: skip


class RowsStruct(Structure):
    """The C structure that describes rows of numbers to kernels."""

    _fields_ = (("type", c_int), ("at", c_void_p), ("count", c_int64), ("width", c_int64), ("stride", c_int64))


def rows_of(x_TI: Tensor) -> RowsStruct:
    """Return the C structure that describes rows [T, I], each of which is contiguous."""
    assert x_TI.stride()[1:] == (1,), "each row must be contiguous"
    return RowsStruct(DTYPES[x_TI.dtype], x_TI.data_ptr(), x_TI.shape[0], x_TI.shape[1], x_TI.stride(0))


def matrix_of(own: Operands, dtype: torch.dtype, inputs: int, y_TO: Tensor | None = None) -> MatrixStruct:
    """Return the C structure of a matrix for rows of `inputs` numbers in this dtype.

    `y_TO` is the memory for results, or None if the kernel chooses it.
    """
    weight, bias, codes = own
    if codes is None:
        assert weight.dtype == dtype, "a matrix must have the dtype of its rows"
        assert weight.shape[1] == inputs, "a matrix must have as many columns as the rows have numbers"
    assert weight.stride(1) == 1, "each row of a matrix must be contiguous"
    assert bias is None or bias.dtype == dtype, "a bias must have the dtype of the rows"
    assert bias is None or bias.shape == weight.shape[:1], "a bias must have a number for each output"
    found = MatrixStruct(
        weight=weight.data_ptr(), bias=None if bias is None else bias.data_ptr(), outputs=weight.shape[0],
        weight_stride=weight.stride(0),
    )  # fmt: skip
    if codes is not None:
        found.codes = pointer(_codes_of(codes, weight, inputs))
    if y_TO is not None:
        found.y, found.y_stride = y_TO.data_ptr(), y_TO.stride(0)
    return found


def _codes_of(codes: Codes, weight: Tensor, inputs: int) -> CodesStruct:
    """Return the C structure of the codes of a quantised matrix with `inputs` inputs, whose bytes are `weight`."""
    scales, zeros = codes.scales_OG, codes.zeros_OG
    row = -(-inputs // UNIT) * UNIT
    assert weight.dtype == torch.uint8, "codes must be uint8"
    assert weight.shape[1] == (row // 2 if codes.kind == "int4" else row), "a row must have a whole number of units"
    assert codes.group % UNIT == 0 or codes.group in (UNIT // 2, inputs), (
        "a group must be a whole number of units, half a unit, or a whole row"
    )
    most = min(codes.group, MAX_INTEGERS)
    assert codes.kind != "w8a8" or inputs <= most, "w8a8 needs one group, whose sum fits in 32 bits"
    assert scales.is_contiguous(), "scales must be contiguous"
    assert scales.shape == (-(-len(weight) // codes.outputs_per_scale), -(-inputs // codes.group)), (
        "each group must have a scale"
    )
    found = CodesStruct(
        code=CODES[codes.kind], scale_type=_SCALE_DTYPES[scales.dtype], outputs=codes.outputs_per_scale,
        groups=scales.shape[1],
        group=max(codes.group, row) if codes.group >= inputs else codes.group, scales=scales.data_ptr(),
        interleaved=codes.interleaved,
    )  # fmt: skip
    if isinstance(zeros, Tensor):
        assert zeros.shape == scales.shape, "each scale must have a zero point"
        assert zeros.dtype == torch.uint8, "zero points must be uint8"
        assert zeros.is_contiguous(), "zero points must be contiguous"
        found.zeros = zeros.data_ptr()
    else:
        found.zero = zeros
    if (lows := codes.minima_OG) is not None:
        assert lows.shape == scales.shape, "each scale must have a minimum"
        assert lows.dtype == torch.float32, "minimums must be fp32"
        assert lows.is_contiguous(), "minimums must be contiguous"
        found.lows = lows.data_ptr()
    return found
