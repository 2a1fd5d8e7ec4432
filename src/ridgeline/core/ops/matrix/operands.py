"""The operands of a matrix product, as the project's own kernels read them: plain weights or quantised codes.

Shapes: I inputs, O outputs, G groups of inputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The dtypes that the project's own kernels read, each with its number in `DType` of backends/cpu/native/kernels.h."""

UNIT = 32
"""The number of codes (quantised weights) that kernels read at once; matrix rows are padded to a multiple."""

MAX_INTEGERS = 1 << 16
"""The number of products int8 x byte that can be added up in 32 bits: 127 x 255 x 65,536 is below 2^31."""


@dataclass(frozen=True, slots=True)
class Codes:
    """The quantisation parameters of a matrix, by which a code stands for code x scale - zero x scale."""

    kind: str
    """The type of the codes: int8, int4, fp8 (e4m3) or w8a8.

    Codes of int8 and int4 are unsigned. Two of int4 share a byte, the first in the low half. w8a8 is int8 with
    activations that are rounded to int8 too, with one scale per row.
    """
    group: int
    """The number of inputs that share a scale: a multiple of 32 (UNIT), 16, or all inputs, as in w8a8."""
    scales_OG: Tensor
    """The scales of a matrix in fp32, bf16 or fp16, with one row for every `outputs_per_scale` outputs."""
    zeros_OG: Tensor | float = 0.0
    """The zero points of a matrix: uint8, one per scale, or one number for all."""
    outputs_per_scale: int = 1
    """The number of outputs that share a scale."""
    minima_OG: Tensor | None = None
    """The minima of GGUF formats such as Q4_K, fp32, one per scale; code x scale + minimum replaces the zero point."""
    interleaved: bool = False
    """Whether a matrix's codes, scales and zero points are interleaved as in core/ops/matrix/interleaved.py.

    Their shapes do not show it.
    """


class Operands(NamedTuple):
    """A weight matrix and its bias in the form in which the project's own kernels multiply rows with them."""

    weight: Tensor
    """The weights [O, I] of a matrix in the dtype of the rows; if quantised, uint8 [O, bytes of a row]."""
    bias: Tensor | None
    """The bias [O] of a matrix, or None."""
    codes: Codes | None = None
    """The quantisation parameters of a quantised matrix; None for plain weights."""
