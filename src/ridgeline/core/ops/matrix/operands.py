"""The operands of a product: a matrix that is plain or of codes, as kernels multiply rows with it.

Shapes: I inputs, O outputs, G groups of inputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The dtypes that our kernels read, each with its number in DType of backends/cpu/native/kernels.h."""

UNIT = 32
"""Codes that kernels read at once: a row of them is a whole number of these."""

MAX_INTEGERS = 1 << 16
"""How many products of an int8 and a byte have a sum within 32 bits: 127 x 255 x so many is below 2^31."""


@dataclass(frozen=True, slots=True)
class Codes:
    """What the codes of a matrix stand for: code x scale - zero x scale.

    kind: int8 or int4 (both unsigned; of 4 bits two a byte, the first in the low half) or fp8 (e4m3); w8a8 is int8 with
    rows that are rounded to int8 too, each with a scale of its own. group: inputs that share a scale, a multiple of
    UNIT, or half of one, or all of them, as in w8a8. scales_OG: fp32, bf16 or fp16, a row for each output, or for each
    `outputs` of them. zeros_OG: uint8, one a scale, or one number for all. lows_OG: fp32, one a scale: what is added to
    code x scale instead of - zero x scale (the minima of GGUF's Q4_K). interleaved: bytes, scales and zeros are in
    memory as core/ops/matrix/interleaved.py lays them, whatever their shapes say.
    """

    kind: str
    group: int
    scales_OG: Tensor
    zeros_OG: Tensor | float = 0.0
    outputs: int = 1
    lows_OG: Tensor | None = None
    interleaved: bool = False


class Operands(NamedTuple):
    """A matrix and its bias [O], as our kernels multiply rows with them. weight: [O, I] in the dtype of the rows, or,
    where there are codes, uint8 [O, bytes of a row].
    """

    weight: Tensor
    bias: Tensor | None
    codes: Codes | None = None
