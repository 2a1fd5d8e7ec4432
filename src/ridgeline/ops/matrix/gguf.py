"""Matrices in the blocks of GGUF files, which ggml's types are made of (ggml/src/ggml-common.h): taken apart into codes
and scales as they are loaded, every number the same.

Shapes: O outputs, G groups of inputs, S blocks of 256 inputs, B bytes of a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.kernels import Codes
from ridgeline.ops.matrix.matrix import MatrixSpec
from ridgeline.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape
from ridgeline.ops.matrix.quantised import packed
from ridgeline.ops.shard import Indivisible
from ridgeline.ops.stored import weight

# A number of so many bits, and what its group takes beside them, as the file has it. Of q4_k a scale and a minimum of 6
# bits each a group and two of 16 bits for 8 groups; of q6_k a scale of 8 bits and one of 16 for 16 groups.
BLOCKS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "Q8_0": WeightFormat("q8_0", 8, (1, 32), 16, code="int8", layout="Q8_0"),
        "Q4_0": WeightFormat("q4_0", 4, (1, 32), 16, code="int4", layout="Q4_0"),
        "Q4_K": WeightFormat("q4_k", 4, (1, 32), 16, code="int4", layout="Q4_K"),
        "Q6_K": WeightFormat("q6_k", 6, (1, 16), 9, code="int8", layout="Q6_K"),
    }
)
"""The types that are read, by ggml's names."""
_ROWS = 1 << 22  # bytes of blocks that are taken apart at a time
_ZERO = {"Q8_0": 128, "Q4_0": 8, "Q4_K": 0, "Q6_K": 32}  # the code of zero; of q4_k a group's own, which is no code


class _Parts(NamedTuple):
    """Blocks taken apart: codes uint8 [O, I] from 0 on; scale and, where zero has no code, what is added to all numbers
    of a group [O, G]."""

    codes: Tensor
    scale: Tensor
    low: Tensor | None = None


def _halves(blocks: Tensor) -> Tensor:
    """The numbers of fp16 that the last dimension, 2 bytes, is."""
    return blocks.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(blocks: Tensor) -> Tensor:
    """Bytes [..., n] -> their low halves, then their high ones [..., 2 n]."""
    return torch.cat((blocks & 15, blocks >> 4), dim=-1)


def _q8_0(raw_OB: Tensor) -> _Parts:
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 34)
    return _Parts((blocks_OG[..., 2:] ^ 128).flatten(1), _halves(blocks_OG[..., :2]))


def _q4_0(raw_OB: Tensor) -> _Parts:
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 18)
    return _Parts(_nibbles(blocks_OG[..., 2:]).flatten(1), _halves(blocks_OG[..., :2]))


def _q4_k(raw_OB: Tensor) -> _Parts:
    """Scales and minima of 6 bits: of the first four groups each in a byte of its own, whose two highest bits are those
    of the other four's, which have their other bits in halves of the last four bytes."""
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 144)
    first, second, rest = blocks_OS[..., 4:8], blocks_OS[..., 8:12], blocks_OS[..., 12:16]
    scales_OS8 = torch.cat((first & 63, (rest & 15) | (first >> 6 << 4)), dim=-1)
    minima_OS8 = torch.cat((second & 63, (rest >> 4) | (second >> 6 << 4)), dim=-1)
    scale, low = (
        (_halves(blocks_OS[..., at : at + 2]).float()[..., None] * own.float()).flatten(1)
        for at, own in ((0, scales_OS8), (2, minima_OS8))
    )
    return _Parts(_nibbles(blocks_OS[..., 16:].reshape(*blocks_OS.shape[:2], 4, 32)).flatten(1), scale, -low)


def _q6_k(raw_OB: Tensor) -> _Parts:
    """Of each 128 numbers the low four bits in 64 bytes, the numbers 64 apart in one, and the high two in 32."""
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 210)
    shape = blocks_OS.shape[:2]
    low = _nibbles(blocks_OS[..., :128].reshape(*shape, 2, 64)).view(*shape, 2, 4, 32)
    high = blocks_OS[..., 128:192].reshape(*shape, 2, 1, 32)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=3)
    scales = blocks_OS[..., 192:208].contiguous().view(torch.int8).float()
    scale = _halves(blocks_OS[..., 208:]).float()[..., None] * scales
    return _Parts((low | high << 4).flatten(1), scale.flatten(1))


_TAKEN_APART: Mapping[str, tuple[int, int, Callable[[Tensor], _Parts]]] = MappingProxyType(
    {"Q8_0": (32, 34, _q8_0), "Q4_0": (32, 18, _q4_0), "Q4_K": (256, 144, _q4_k), "Q6_K": (256, 210, _q6_k)}
)
"""Of each type the numbers and the bytes of a block, and what takes blocks apart."""


class GGUFMatrix(PrequantisedMatrix):
    """`weight` in blocks, as bytes [O, B].

    Scales are held as the numbers that they are: those of 16 bits as they are stored, those that are products in fp32,
    which has all their digits, and so has `low`, what is added to the numbers of a group of q4_k.
    """

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.low = weight(*self.scale.shape, dtype=torch.float32) if stored.layout == "Q4_K" else None

    def layout_names(self) -> tuple[str, ...]:
        """As PrequantisedMatrix.layout_names."""
        return ("weight",)

    @property
    def scale_dtype(self) -> torch.dtype:
        """As QuantisedMatrix.scale_dtype."""
        return torch.float32 if self.stored.layout.endswith("_K") else torch.float16

    @property
    def _codes(self) -> Codes:
        return replace(super()._codes, zeros_OG=float(_ZERO[self.stored.layout]), lows_OG=self.low)

    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As PrequantisedMatrix.put: blocks are taken apart."""
        numbers, nbytes, _ = _TAKEN_APART[self.stored.layout]
        check_dtype(full, torch.uint8)
        check_shape(full, self.spec.outputs, self.spec.inputs // numbers * nbytes)
        codes, scale, low = taken_apart(self.of_inputs(self.of_outputs(full)), self.stored.layout)
        if not torch.isfinite(scale).all() or not (low is None or torch.isfinite(low).all()):
            raise ValueError("has scales that are NaN or infinity; the file is broken, fetch it again")
        taken = {"codes": packed(codes, self.kind), "scale": scale}
        return taken if low is None else {**taken, "low": low}

    def refuse_division(self) -> None:
        """As PrequantisedMatrix.refuse_division, of blocks that are longer than a group."""
        super().refuse_division()
        spec, (numbers, *_) = self.spec, _TAKEN_APART[self.stored.layout]
        if spec.split == "row" and self.inputs % numbers:
            raise Indivisible(
                f"weights stored as {self.stored.name} do not divide over {spec.shard.size} devices without cutting "
                f"blocks of {numbers} ({spec.inputs} inputs); give --devices 1"
            )


def taken_apart(raw_OB: Tensor, layout: str) -> _Parts:
    """Rows of blocks of a type, uint8 [O, B], taken apart."""
    own = _TAKEN_APART[layout][2]
    pieces = [own(piece) for piece in torch.split(raw_OB, max(1, _ROWS // raw_OB.shape[1]))]
    codes, scale, low = (None if column[0] is None else torch.cat(column) for column in zip(*pieces, strict=True))
    assert codes is not None
    assert scale is not None
    return _Parts(codes, scale, low)
