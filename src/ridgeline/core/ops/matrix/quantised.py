"""Quantised matrices: codes (integers of 8 or 4 bits, or fp8) with a scale for each group of inputs.

Shapes: N rows of a table, O outputs, I inputs, G groups of inputs, B bytes of a row of codes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.matrix.interleaved import codes_side_by_side, in_rows, scales_side_by_side
from ridgeline.core.ops.matrix.matrix import Matrix, MatrixBackend, MatrixSpec
from ridgeline.core.ops.matrix.operands import MAX_INTEGERS, UNIT, Codes, Operands
from ridgeline.core.ops.matrix.packed_words import bytes_of, integers
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.stored_module import StorageShare, dtype_mismatch, weight

MIDDLE = {"int8": 128, "int4": 8, "fp8": 0}
"""The code that stands for zero where a format has no zeros."""

_LARGEST = {"int8": 127, "int4": 7, "fp8": 448}
_PIECE = 1 << 18  # numbers that are quantised at a time: what that takes in fp32 is little beside a matrix


class QuantisedMatrixBackend(MatrixBackend):
    """The part of a backend that quantised matrices call, in PyTorch."""

    def gather_coded(self, table: "QuantisedMatrix", numbers_N: Tensor) -> Tensor:
        """Return the rows of a table of codes that have these numbers, int64 [N], in the model's dtype: [N, I]."""
        return table.dense(numbers_N).to(table.spec.dtype)


class QuantisedMatrix(Matrix):
    """A matrix of numbers code x scale - zero x scale, which are widened on the way into the product.

    `codes`: uint8 [O, B], each row filled up to a whole number of UNITs: unsigned integers of 8 bits, or of 4, two a
    byte, the first in the low half, or fp8 (e4m3). `scale`: [O, G]; [O / rows, G] where blocks of `rows` outputs share
    one. `zero`: uint8, as many as scales, where the format has zeros; else zero is the MIDDLE of the codes. A plain
    weight is quantised when it is taken; codes of a checkpoint are a PrequantisedMatrix's. All three may be interleaved
    for good once they are there (core/ops/matrix/interleaved.py), which their shapes then say.
    """

    stored: WeightFormat
    backend: QuantisedMatrixBackend = QuantisedMatrixBackend()

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        rows, group = stored.block[0] or self.outputs, stored.block[1]
        self.kind = stored.code
        self.group = min(group or self.inputs, self.inputs)
        blocks = -(-self.outputs // rows), -(-self.inputs // self.group)
        self.codes = weight(self.outputs, row_bytes(self.inputs, self.kind), dtype=torch.uint8)
        self.scale = weight(*blocks, dtype=self.scale_dtype)
        self.zero = weight(*blocks, dtype=torch.uint8) if stored.zero_bits else None

    @property
    def scale_dtype(self) -> torch.dtype:
        """As wide as the format says. Scales of 16 bits are in the model's dtype, of a model in fp32 in bf16: those of
        small weights would be subnormal in fp16.
        """
        if self.stored.scale_bits == 32:
            return torch.float32
        return self.spec.dtype if self.spec.dtype.itemsize == 2 else torch.bfloat16

    @property
    @override
    def operands(self) -> Operands | None:
        """As Matrix.operands; None where groups are of a size that our kernels do not take."""
        if self.group % UNIT and self.group not in (UNIT // 2, self.inputs):
            return None
        if self.rounds_rows and self.inputs > min(self.group, MAX_INTEGERS):
            return None
        return Operands(self.codes.view(self.outputs, -1), self.own_bias, self._codes)

    @property
    def _codes(self) -> Codes:
        sharers = self.stored.block[0] or self.outputs
        zeros: Tensor | float = float(MIDDLE[self.kind]) if self.zero is None else self.zero
        scales_OG: Tensor = self.scale
        if self.interleaved:
            scales_OG = scales_OG.view(self.outputs, -1)
            zeros = zeros.view(self.outputs, -1) if isinstance(zeros, Tensor) else zeros
        return Codes(self.stored.kind, self.group, scales_OG, zeros, sharers, interleaved=self.interleaved)

    @property
    def interleaved(self) -> bool:
        """Whether codes, scales and zeros are."""
        return self.codes.dim() > 2

    @property
    @override
    def number_format(self) -> str:
        """As Matrix.number_format; of codes that are interleaved int8, to which rows are rounded."""
        return "int8" if self.interleaved else super().number_format

    @property
    def rounds_units(self) -> bool:
        """Whether rows may be rounded to int8 on their way into the product, UNIT inputs at a time: those of a model
        that rounds them to bf16, and those that are rounded anyway.
        """
        return self.spec.dtype == torch.bfloat16 or self.rounds_rows

    @property
    @override
    def quantises(self) -> bool:
        return True

    @override
    def interleaved_parameters(self) -> Iterable[Tensor]:
        return self.held().values() if self.interleaved else ()

    def held(self, *, interleaved: bool = False) -> dict[str, Tensor]:
        """Codes, scales and zeros by name; views of those of a matrix that is not interleaved as if it were."""
        found: dict[str, Tensor] = {"codes": self.codes, "scale": self.scale}
        if self.zero is not None:
            found["zero"] = self.zero
        if not interleaved:
            return found
        assert not self.interleaved, "codes are interleaved once"
        return {
            name: (codes_side_by_side if name == "codes" else scales_side_by_side)(own) for name, own in found.items()
        }

    @property
    def middle(self) -> int:
        """The code in the middle of those that there are, of which a format may have fewer than it is held in bits."""
        return 0 if self.kind == "fp8" else 1 << self.stored.bits - 1

    @property
    def rounds_rows(self) -> bool:
        """Whether rows are rounded to int8 on their way into the product (W8A8)."""
        return self.stored.kind == "w8a8"

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares; of codes, scales and zeros as they are held."""
        _, *bias = super().shares()
        held = self.codes.nbytes + self.scale.nbytes + (0 if self.zero is None else self.zero.nbytes)
        return StorageShare(self.stored, self.outputs * self.inputs, float(held)), *bias

    @override
    def values(self) -> Tensor:
        return self.dense().to(self.spec.dtype)

    def rows(self, picked_R: Tensor) -> Tensor:
        """The numbers of some outputs (int64) in the model's dtype [R, I]."""
        return self.backend.gather_coded(self, picked_R)

    def dense(self, picked_R: Tensor | None = None) -> Tensor:
        """What the codes stand for: fp32 [O, I], or of the outputs that are picked (int64) [R, I]."""
        own = self._codes
        every_R = torch.arange(self.outputs, device=self.codes.device) if picked_R is None else picked_R
        codes_OB: Tensor = self.codes
        if self.interleaved:
            codes_OB = in_rows(self.codes)
            zeros_OG = float(MIDDLE[self.kind]) if self.zero is None else in_rows(self.zero)
            own = replace(own, scales_OG=in_rows(self.scale), zeros_OG=zeros_OG)
        codes_RB = codes_OB if picked_R is None else codes_OB[picked_R]

        def of_rows(each_OG: Tensor) -> Tensor:
            return each_OG[every_R // own.outputs].float()

        scale_RG, zeros = of_rows(own.scales_OG), own.zeros_OG
        if own.lows_OG is not None:
            low_RG = of_rows(own.lows_OG)
        else:
            low_RG = -scale_RG * (of_rows(zeros) if isinstance(zeros, Tensor) else zeros)
        scale_RI, low_RI = (
            each_RG.repeat_interleave(self.group, 1)[:, : self.inputs] for each_RG in (scale_RG, low_RG)
        )
        return unpacked(codes_RB, self.kind)[:, : self.inputs] * scale_RI + low_RI

    @override
    def drawn(self, block: Tensor) -> dict[str, Tensor]:
        """As Stored.drawn, but for the bias: a block of numbers, quantised with one scale and repeated."""
        largest = _LARGEST[self.kind] if self.kind == "fp8" else self.middle - 1
        scale = float(block.float().abs().max()) / largest
        steps = block.float().view(1, -1) / scale
        codes = steps.to(torch.float8_e4m3fn) if self.kind == "fp8" else (steps + self.middle).round()
        bytes_B = packed(codes, self.kind).view(-1)
        filled = bytes_B.repeat(-(-self.codes.numel() // len(bytes_B)))[: self.codes.numel()].view(self.codes.shape)
        made = {"codes": filled, "scale": torch.full(self.scale.shape, scale, dtype=self.scale.dtype)}
        if self.zero is not None:
            made["zero"] = torch.full(self.zero.shape, self.middle, dtype=torch.uint8)
        return made

    @override
    def computed(self, x_TI: Tensor) -> Tensor:
        if self.rounds_rows:
            y_TO = functional.linear(rounded_rows(x_TI), self.dense()).to(x_TI.dtype)
            return y_TO if self.own_bias is None else y_TO + self.own_bias
        return functional.linear(x_TI, self.dense().to(x_TI.dtype), self.own_bias)

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """As Stored.dtype_of: a plain weight is quantised from the model's dtype."""
        return self.spec.dtype

    @override
    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take: a plain weight is quantised."""
        own = self.own(name, full)
        if name == "bias":
            return {name: own}
        if full.dtype != self.spec.dtype:
            raise ValueError(dtype_mismatch(full.dtype, self.spec.dtype))
        assert self.stored.block[0] == 1, "a plain weight is quantised with scales for each output"
        rows_OI = own.t() if self.spec.transposed else own
        if rows_OI.shape != (self.outputs, self.inputs):
            wanted = [self.inputs, self.outputs] if self.spec.transposed else [self.outputs, self.inputs]
            raise ValueError(f"is {list(own.shape)}, the config wants {wanted}")
        made = quantised(rows_OI, self.kind, self.group, self.scale_dtype, zeros=self.zero is not None)
        if not torch.isfinite(made["scale"]).all():
            raise ValueError("holds NaN or infinity; the checkpoint is broken, fetch it again")
        return made


def rounded_rows(x_TI: Tensor) -> Tensor:
    """Rows rounded to int8, each with a scale of its own (its largest magnitude over 127), as the fp32 numbers that the
    codes stand for.
    """
    scale_T1 = x_TI.float().abs().amax(dim=-1, keepdim=True) / 127
    steps_TI = x_TI.float() * torch.where(scale_T1 == 0, 0, 1 / scale_T1)
    return steps_TI.round().clamp(-127, 127) * scale_T1


def row_bytes(inputs: int, kind: str) -> int:
    """Bytes of a row of so many codes."""
    whole = -(-inputs // UNIT) * UNIT
    return whole // 2 if kind == "int4" else whole


def packed(codes_OI: Tensor, kind: str) -> Tensor:
    """Unsigned integers, or numbers of fp8, [O, I] -> uint8 [O, B], filled up with zeros."""
    own = codes_OI.contiguous().view(torch.uint8) if kind == "fp8" else codes_OI.to(torch.uint8).contiguous()
    missing = -own.shape[1] % UNIT
    full = functional.pad(own, (0, missing)) if missing else own  # whole units stay where they are, mapped
    return bytes_of(full, 4) if kind == "int4" else full


def unpacked(codes_OB: Tensor, kind: str) -> Tensor:
    """The codes of `packed`, as fp32 numbers [O, whole units of I]."""
    match kind:
        case "int4":
            return integers(codes_OB, 4).float()
        case "fp8":
            return codes_OB.view(torch.float8_e4m3fn).float()
        case _:
            return codes_OB.float()


def quantised(rows_OI: Tensor, kind: str, group: int, dtype: torch.dtype, *, zeros: bool) -> dict[str, Tensor]:
    """Numbers [O, I] to the nearest codes, and the scales of their groups in a dtype: `codes`, `scale`, and `zero` if
    there are to be zeros.

    A group's largest magnitude, or with zeros its range (0 included), takes all codes. The scale is rounded to its
    dtype first, so that what is divided by is what is multiplied with.
    """
    pieces = [
        _quantised(piece_OI.float(), kind, group, dtype, zeros=zeros)
        for piece_OI in torch.split(rows_OI, max(1, _PIECE // rows_OI.shape[1]))
    ]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _quantised(rows_OI: Tensor, kind: str, group: int, dtype: torch.dtype, *, zeros: bool) -> dict[str, Tensor]:
    """As `quantised`, of fp32, at once."""
    outputs, inputs = rows_OI.shape
    grouped_OGI = functional.pad(rows_OI, (0, -inputs % group)).view(outputs, -1, group)
    largest = _LARGEST[kind]
    if zeros:
        assert kind == "int4", "zeros are of integers of 4 bits"
        low_OG, high_OG = grouped_OGI.amin(-1).clamp(max=0), grouped_OGI.amax(-1).clamp(min=0)
        scale_OG = _nonzero(((high_OG - low_OG) / 15).to(dtype))
        zero_OG = (-low_OG / scale_OG.float()).round().clamp(0, 15)
    else:
        scale_OG = _nonzero((grouped_OGI.abs().amax(-1) / largest).to(dtype))
        zero_OG = torch.full_like(scale_OG, MIDDLE[kind], dtype=torch.float32)
    steps_OI = (grouped_OGI / scale_OG.float()[..., None] + zero_OG[..., None]).view(outputs, -1)[:, :inputs]
    if kind == "fp8":
        codes_OI = steps_OI.clamp(-largest, largest).to(torch.float8_e4m3fn)
    else:
        codes_OI = steps_OI.round().clamp(0, 2 * MIDDLE[kind] - 1)
    made = {"codes": packed(codes_OI, kind), "scale": scale_OG}
    return {**made, "zero": zero_OG.to(torch.uint8)} if zeros else made


def _nonzero(scale_OG: Tensor) -> Tensor:
    """Scales, 1 of groups of zeros."""
    return torch.where(scale_OG == 0, torch.ones_like(scale_OG), scale_OG)
