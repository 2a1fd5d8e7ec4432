"""Matrices in the block formats of GGUF files (ggml/src/ggml-common.h), unpacked while loading.

The unpacked codes and scales stand for exactly the numbers of the file.

Shapes: O outputs, G groups of inputs, S blocks of 256 inputs, B bytes of a row.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.matrix import MatrixSpec
from ridgeline.core.ops.matrix.operands import Codes
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix, check_dtype, check_shape
from ridgeline.core.ops.matrix.quantised import packed
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.shard import Indivisible
from ridgeline.core.ops.stored_module import weight

_ROWS = 1 << 22  # the bytes of blocks that are unpacked at a time


class _Parts(NamedTuple):
    """The codes and scales of unpacked GGUF blocks."""

    codes: Tensor
    """The unsigned integers of unpacked GGUF weights, uint8 [O, I]."""
    scale: Tensor
    """The scale of each group of inputs [O, G]."""
    low: Tensor | None = None
    """The number added to code x scale in each group of inputs [O, G]; None if a fixed code stands for zero."""


def _halves(blocks: Tensor) -> Tensor:
    """Return the fp16 numbers that the two bytes of the last dimension encode."""
    return blocks.contiguous().view(torch.float16).squeeze(-1)


def _times(blocks_OS: Tensor, numbers_OS: Tensor) -> Tensor:
    """Return the fp16 number in each block's two bytes, multiplied by each of the block's numbers: fp32 [O, G]."""
    return (_halves(blocks_OS).float()[..., None] * numbers_OS.float()).flatten(1)


def _nibbles(blocks: Tensor) -> Tensor:
    """Return the low halves of bytes [..., n], followed by their high halves: [..., 2 n]."""
    return torch.cat((blocks & 15, blocks >> 4), dim=-1)


def _q8_0(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q8_0: 32 signed bytes after an fp16 scale."""
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 34)
    return _Parts((blocks_OG[..., 2:] ^ 128).flatten(1), _halves(blocks_OG[..., :2]))


def _q4_0(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q4_0: 32 codes of 4 bits after an fp16 scale."""
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 18)
    return _Parts(_nibbles(blocks_OG[..., 2:]).flatten(1), _halves(blocks_OG[..., :2]))


def _q4_1(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q4_1: 32 codes of 4 bits after an fp16 scale and minimum."""
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 20)
    return _Parts(_nibbles(blocks_OG[..., 4:]).flatten(1), *_scale_and_low(blocks_OG))


def _fifths(blocks_OG: Tensor) -> Tensor:
    """Return the 5-bit codes of blocks [O, G, 20], which store the high bit of 32 numbers, then their low four bits."""
    bits = torch.arange(8, dtype=torch.uint8)
    high = (blocks_OG[..., :4, None] >> bits & 1).flatten(2)
    return (_nibbles(blocks_OG[..., 4:]) | high << 4).flatten(1)


def _q5_0(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q5_0: 32 codes of 5 bits after an fp16 scale."""
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 22)
    return _Parts(_fifths(blocks_OG[..., 2:]), _halves(blocks_OG[..., :2]))


def _q5_1(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q5_1: 32 codes of 5 bits after an fp16 scale and minimum."""
    blocks_OG = raw_OB.reshape(len(raw_OB), -1, 24)
    return _Parts(_fifths(blocks_OG[..., 4:]), *_scale_and_low(blocks_OG))


def _scale_and_low(blocks_OG: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp16 scale and minimum with which GGUF blocks of q4_1 and q5_1 begin."""
    return _halves(blocks_OG[..., :2]), _halves(blocks_OG[..., 2:4]).float()


def _q2_k(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q2_K, in which one byte holds the 4-bit scale and minimum of each 16 numbers."""
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 84)
    scale = _times(blocks_OS[..., 80:82], blocks_OS[..., :16] & 15)
    low = _times(blocks_OS[..., 82:], blocks_OS[..., :16] >> 4)
    return _Parts(_pairs(blocks_OS[..., 16:80]).flatten(1), scale, -low)


def _q3_k(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q3_K, in which each 16 numbers have a 6-bit scale, stored plus 32.

    The low four bits of the 16 scales are in the halves of 8 bytes, and the high two bits in the quarters of 4 bytes.
    """
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 110)
    high = torch.cat([blocks_OS[..., :32] >> bit & 1 for bit in range(8)], dim=-1)
    above = torch.cat([blocks_OS[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    scales = (_nibbles(blocks_OS[..., 96:104]) | above << 4).float() - 32
    return _Parts((_pairs(blocks_OS[..., 32:96]) | high << 2).flatten(1), _times(blocks_OS[..., 108:], scales))


def _pairs(blocks_OS: Tensor) -> Tensor:
    """Unpack bytes [O, S, 64] into 2-bit codes [O, S, 256].

    Of each 32 bytes, the lowest two bits come first, then the next two, and so on.
    """
    halves = blocks_OS.reshape(*blocks_OS.shape[:2], 2, 32)
    return torch.cat([halves >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(2)


def _q4_k(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q4_K: 256 codes of 4 bits with a 6-bit scale and minimum for each 32."""
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 144)
    return _Parts(_in_groups(blocks_OS[..., 16:]).flatten(1), *_scales_and_lows(blocks_OS))


def _q5_k(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q5_K, which are like q4_K plus a high bit: one byte holds those of eight numbers 32 apart."""
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 176)
    high = torch.cat([blocks_OS[..., 16:48] >> bit & 1 for bit in range(8)], dim=-1)
    return _Parts((_in_groups(blocks_OS[..., 48:]) | high << 4).flatten(1), *_scales_and_lows(blocks_OS))


def _in_groups(blocks_OS: Tensor) -> Tensor:
    """Unpack bytes [O, S, 128] into 4-bit codes [O, S, 256]: the low halves of each 32 bytes, then the high halves."""
    return _nibbles(blocks_OS.reshape(*blocks_OS.shape[:2], 4, 32)).flatten(2)


def _scales_and_lows(blocks_OS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales and minima of blocks of q4_K and q5_K, [O, G] each.

    They are integers of 6 bits for 8 groups, multiplied by an fp16 number of the block. Those of the first four groups
    have a byte each, whose two highest bits are the high bits of the other four groups. These have their low bits in
    halves of the last four bytes.
    """
    first, second, rest = blocks_OS[..., 4:8], blocks_OS[..., 8:12], blocks_OS[..., 12:16]
    scales_OS8 = torch.cat((first & 63, (rest & 15) | (first >> 6 << 4)), dim=-1)
    minima_OS8 = torch.cat((second & 63, (rest >> 4) | (second >> 6 << 4)), dim=-1)
    return _times(blocks_OS[..., :2], scales_OS8), -_times(blocks_OS[..., 2:4], minima_OS8)


def _q6_k(raw_OB: Tensor) -> _Parts:
    """Unpack blocks of q6_K, 128 numbers at a time.

    The low four bits are in 64 bytes, each shared by two numbers 64 apart. The high two bits are in 32 bytes, each
    shared by four numbers 32 apart.
    """
    blocks_OS = raw_OB.reshape(len(raw_OB), -1, 210)
    shape = blocks_OS.shape[:2]
    low = _nibbles(blocks_OS[..., :128].reshape(*shape, 2, 64)).view(*shape, 2, 4, 32)
    high = blocks_OS[..., 128:192].reshape(*shape, 2, 1, 32)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=3)
    scales = blocks_OS[..., 192:208].contiguous().view(torch.int8)
    return _Parts((low | high << 4).flatten(1), _times(blocks_OS[..., 208:], scales))


class _Type(NamedTuple):
    """The description of one GGUF block type."""

    bits: int
    """The number of bits of a quantised weight in a GGUF block."""
    numbers: int
    """The number of weights in a GGUF block."""
    nbytes: int
    """The bytes of a GGUF block."""
    group: int
    """The number of weights that share a scale in a GGUF block."""
    code: str
    """The type in which unpacked GGUF weights are stored: int8 or int4."""
    apart: Callable[[Tensor], _Parts]
    """The function that unpacks GGUF blocks of one type."""
    zero: int | None
    """The code that stands for zero in a GGUF block type; None if each group adds a minimum instead."""

    def stored(self, layout: str) -> WeightFormat:
        """Return the weight format of a GGUF block type; all bytes besides the codes count as scales."""
        scales = (8 * self.nbytes - self.bits * self.numbers) / (self.numbers // self.group)
        return WeightFormat(layout.lower(), self.bits, (1, self.group), scales, code=self.code, layout=layout)


_TYPES: Mapping[str, _Type] = MappingProxyType(
    {
        "Q8_0": _Type(8, 32, 34, 32, "int8", _q8_0, 128),
        "Q4_0": _Type(4, 32, 18, 32, "int4", _q4_0, 8),
        "Q4_1": _Type(4, 32, 20, 32, "int4", _q4_1, None),
        "Q5_0": _Type(5, 32, 22, 32, "int8", _q5_0, 16),
        "Q5_1": _Type(5, 32, 24, 32, "int8", _q5_1, None),
        "Q2_K": _Type(2, 256, 84, 16, "int4", _q2_k, None),
        "Q3_K": _Type(3, 256, 110, 16, "int4", _q3_k, 4),
        "Q4_K": _Type(4, 256, 144, 32, "int4", _q4_k, None),
        "Q5_K": _Type(5, 256, 176, 32, "int8", _q5_k, None),
        "Q6_K": _Type(6, 256, 210, 16, "int8", _q6_k, 32),
    }
)
BLOCKS: Mapping[str, WeightFormat] = MappingProxyType({name: own.stored(name) for name, own in _TYPES.items()})
"""The weight formats of the GGUF block types that can be loaded, by ggml's names."""


class GGUFMatrix(PrequantisedMatrix):
    """A matrix from a GGUF file: `weight` in blocks, as bytes [O, B].

    Scales keep their exact values: 16-bit scales stay as stored, and scales that are products are in fp32, which holds
    all their digits. So is `low`, the minimum that is added to the numbers of a group.
    """

    names = ("weight",)
    rounds_units = True  # before the product, as in ggml, in any dtype (ggml-cpu.c, vec_dot_type)

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.low = weight(*self.scale.shape, dtype=torch.float32) if self._type.zero is None else None

    @property
    def _type(self) -> _Type:
        """The GGUF block type of a weight matrix."""
        return _TYPES[self.stored.layout]

    @property
    @override
    def scale_dtype(self) -> torch.dtype:
        return torch.float32 if self.stored.layout.endswith("_K") else torch.float16

    @property
    @override
    def _codes(self) -> Codes:
        return replace(super()._codes, zeros_OG=float(self._type.zero or 0), minima_OG=self.low)

    @override
    def random_parameters(self, block: Tensor) -> dict[str, Tensor]:
        """Return random codes and scales for a GGUF matrix, with minima that make the middle code zero."""
        made = super().random_parameters(block)
        return made if self.low is None else {**made, "low": -self.middle * made["scale"].float()}

    @override
    def put(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Unpack the GGUF blocks of this rank's rows into codes, scales and minima."""
        check_dtype(full, torch.uint8)
        check_shape(full, self.spec.outputs, self.spec.inputs // self._type.numbers * self._type.nbytes)
        codes, scale, low = unpack_blocks(self.of_inputs(self.of_outputs(full)), self.stored.layout)
        if not torch.isfinite(scale).all() or not (low is None or torch.isfinite(low).all()):
            raise ValueError("has scales that are NaN or infinity; the file is broken, fetch it again")
        taken = {"codes": packed(codes, self.kind), "scale": scale}
        return taken if low is None else {**taken, "low": low}

    @override
    def check_divisible(self) -> None:
        """Raise Indivisible if ranks would cut a group of inputs or a GGUF block, which may be longer than a group."""
        super().check_divisible()
        spec, numbers = self.spec, self._type.numbers
        if spec.split == "row" and self.inputs % numbers:
            raise Indivisible(
                f"weights stored as {self.stored.name} do not divide over {spec.shard.size} devices without cutting "
                f"blocks of {numbers} ({spec.inputs} inputs); give --devices 1"
            )


def unpack_blocks(raw_OB: Tensor, layout: str) -> _Parts:
    """Unpack rows of GGUF blocks of one type, uint8 [O, B], a few megabytes at a time."""
    own = _TYPES[layout].apart
    pieces = [own(piece) for piece in torch.split(raw_OB, max(1, _ROWS // raw_OB.shape[1]))]
    codes, scale, low = (None if column[0] is None else torch.cat(column) for column in zip(*pieces, strict=True))
    assert codes is not None
    assert scale is not None
    return _Parts(codes, scale, low)
