"""Dequantisation of matrix codes in registers.

Shapes: x any shape of a tile; B bytes of a tile's row.
"""

import triton
import triton.language as tl

_EXPONENT = tl.constexpr(0x4B000000)
_SHIFT = tl.constexpr(8388608.0)
"""2^23: fp32 numbers of this size hold an integer in their lowest bits.

Setting these bits is several times faster than a conversion.
"""


@triton.jit
def _whole(code_x):
    """Convert a tile of small integers to fp32."""
    return (code_x.to(tl.int32) | _EXPONENT).to(tl.float32, bitcast=True) - _SHIFT


@triton.jit
def numbers(held_x, KIND: tl.constexpr):
    """Convert the codes of quantised weights, one byte each, to fp32, without their scales."""
    if KIND == "fp8":
        return held_x.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return _whole(held_x)


@triton.jit
def halves(held_x):
    """Return the two 4-bit codes of each byte as fp32, without their scales; the first is in the low half."""
    return _whole(held_x & 15), _whole(held_x >> 4)


@triton.jit
def both(held_OGB, BLOCK_O: tl.constexpr, BLOCK_G: tl.constexpr, SPAN: tl.constexpr):
    """Return the two 4-bit codes of each byte in order, as fp32 [O, G, SPAN], without their scales."""
    low_OGB, high_OGB = halves(held_OGB)
    return tl.reshape(tl.join(low_OGB, high_OGB), (BLOCK_O, BLOCK_G, SPAN))


@triton.jit
def group_terms(scales, zeros, lows, zero, at_x, keep_x, HAS_ZEROS: tl.constexpr, HAS_LOWS: tl.constexpr):
    """Return the fp32 factor and offset that dequantise each group of weights; at_x are the indices of their scales."""
    scale_x = tl.load(scales + at_x, mask=keep_x, other=0.0).to(tl.float32)
    if HAS_LOWS:
        low_x = tl.load(lows + at_x, mask=keep_x, other=0.0)
    elif HAS_ZEROS:
        low_x = -scale_x * tl.load(zeros + at_x, mask=keep_x, other=0).to(tl.float32)
    else:
        low_x = -scale_x * zero
    return scale_x, low_x
