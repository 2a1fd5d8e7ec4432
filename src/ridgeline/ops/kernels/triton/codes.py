"""Tiles of stored matrices as the numbers that they stand for: plain ones as they lie, codes widened in registers.

Shapes: O outputs and I inputs of a tile, G groups of inputs.
"""

import triton
import triton.language as tl


@triton.jit
def group_terms(
    scales, zeros, lows, zero, scale_row_O, i_I, keep_OI, group,
    HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr,
):  # fmt: skip
    """What a tile's codes are multiplied with, and what is added then, each fp32 [O, I]. scale_row_O: where the scales
    of each output begin."""
    at_OI = scale_row_O[:, None] + (i_I // group)[None, :]
    scale_OI = tl.load(scales + at_OI, mask=keep_OI, other=0.0).to(tl.float32)
    if HAS_LOWS:
        low_OI = tl.load(lows + at_OI, mask=keep_OI, other=0.0)
    elif HAS_ZEROS:
        low_OI = -scale_OI * tl.load(zeros + at_OI, mask=keep_OI, other=0).to(tl.float32)
    else:
        low_OI = -scale_OI * zero
    return scale_OI, low_OI


@triton.jit
def tile(
    weights, row_O, i_I, keep_OI, scales, zeros, lows, zero, scale_row_O, group,
    KIND: tl.constexpr, HIGH: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """A tile [O, I] of a matrix in the dtype of the rows. row_O: where each output's row begins. i_I: inputs; of int4
    those in the low halves of their bytes, or, where HIGH, in the high ones."""
    if KIND == "plain":
        return tl.load(weights + row_O[:, None] + i_I[None, :], mask=keep_OI, other=0.0).to(DTYPE)
    if KIND == "int4":
        held_OI = tl.load(weights + row_O[:, None] + (i_I // 2)[None, :], mask=keep_OI, other=0)
        code_OI = (held_OI >> 4 if HIGH else held_OI & 15).to(tl.float32)
    else:
        held_OI = tl.load(weights + row_O[:, None] + i_I[None, :], mask=keep_OI, other=0)
        if KIND == "fp8":  # noqa: SIM108 - a branch that is compiled or not
            code_OI = held_OI.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            code_OI = held_OI.to(tl.float32)
    scale_OI, low_OI = group_terms(
        scales, zeros, lows, zero, scale_row_O, i_I, keep_OI, group, HAS_ZEROS, HAS_LOWS
    )  # fmt: skip
    return (code_OI * scale_OI + low_OI).to(DTYPE)
