"""The quantisation of keys and values to 8-bit codes for the KV cache.

In int8, each vector of a head has a scale, its largest magnitude / 127, stored as bf16. A code is the nearest multiple
of the scale plus 128. In fp8, a code is the e4m3 number (arXiv:2209.05433) of the entry divided by a scale of the whole
layer, saturated.

A code times its scale has at most 16 significant bits, so fp32 holds it exactly. Every implementation that dequantises
the same codes therefore reads the same numbers.
"""

import torch
from torch import Tensor

NO_SCALES = (1.0, 1.0)
"""The fp8 scales of a layer's cached keys and values (1.0 each) if the checkpoint contains none."""

_INT8_MIDDLE, _INT8_MOST = 128, 127
_FP8_MOST = 448.0


def quantise(x_xD: Tensor, code: str, scale: float) -> tuple[Tensor, Tensor | None]:
    """Quantise vectors [..., D] to codes uint8 [..., D] and, for int8, scales bf16 [..., 1].

    An int8 vector with a number that is not finite gets NaN as its scale. In fp8, NaN stays NaN, and infinity becomes
    the largest number.

    Args:
        x_xD: The vectors.
        code: The type of the codes, int8 or fp8.
        scale: The layer's scale, by which fp8 numbers are divided.
    """
    wide = x_xD.float()
    if code == "fp8":
        narrow = (wide / scale).clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)
        return narrow.view(torch.uint8), None
    most_x1 = wide.abs().amax(-1, keepdim=True)
    scales_x1 = (most_x1 / _INT8_MOST).masked_fill(~most_x1.isfinite(), torch.nan).bfloat16()
    multiples = torch.where(scales_x1 > 0, wide / scales_x1, 0.0)
    codes = multiples.round().clamp(-_INT8_MOST, _INT8_MOST) + _INT8_MIDDLE
    return codes.to(torch.uint8), scales_x1


def widen(codes_xD: Tensor, scales_x1: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    """Dequantise 8-bit KV-cache codes from `quantise` to numbers [..., D] in the model's dtype.

    Args:
        codes_xD: The codes.
        scales_x1: The scales of int8 codes; None for fp8.
        scale: The layer's scale of fp8 codes.
        dtype: The model's dtype.
    """
    if scales_x1 is None:
        return (codes_xD.view(torch.float8_e4m3fn).float() * scale).to(dtype)
    return ((codes_xD.float() - _INT8_MIDDLE) * scales_x1.float()).to(dtype)
