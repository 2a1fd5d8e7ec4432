"""Keys and values as codes of 8 bits: what is written to a page, and what is read back.

int8: each vector of a head has a scale, its largest magnitude over 127, kept as bf16; a number is the nearest multiple
of that, and its code 128 more. fp8: e4m3 (arXiv:2209.05433), of the number over a scale of the whole layer, saturated.

A code times its scale has at most 16 significant bits, so that fp32 holds it exactly: whoever widens the same codes
reads the same numbers.
"""

import torch
from torch import Tensor

NO_SCALES = (1.0, 1.0)
"""The scales of a layer's keys and values where no checkpoint states any."""

_INT8_MIDDLE, _INT8_MOST = 128, 127
_FP8_MOST = 448.0


def quantise(x_xD: Tensor, code: str, scale: float) -> tuple[Tensor, Tensor | None]:
    """Vectors [..., D] as codes uint8 [..., D] and, of int8, their scales bf16 [..., 1].

    code: int8 or fp8. scale: of the layer, by which numbers of fp8 are divided. A vector of int8 with a number that is
    not finite gets NaN as its scale; in fp8 NaN stays NaN, and infinity becomes the largest number.
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
    """The numbers [..., D] that codes stand for, in the model's dtype; scales as `quantise` gives them."""
    if scales_x1 is None:
        return (codes_xD.view(torch.float8_e4m3fn).float() * scale).to(dtype)
    return ((codes_xD.float() - _INT8_MIDDLE) * scales_x1.float()).to(dtype)
