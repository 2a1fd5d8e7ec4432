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
"""The code that stands for zero in weight formats without zero points, by the type of codes."""

_LARGEST = {"int8": 127, "int4": 7, "fp8": 448}
"""The largest magnitude of a code relative to zero, by type of code."""
_PIECE = 1 << 18  # the numbers quantised at a time, so that fp32 copies stay small


class QuantisedMatrixBackend(MatrixBackend):
    """The methods of a backend that quantised matrices call, implemented in PyTorch."""

    def gather_coded(self, table: "QuantisedMatrix", numbers_N: Tensor) -> Tensor:
        """Return the rows of a quantised table with these indices, int64 [N], in the model's dtype: [N, I]."""
        return table.dense(numbers_N).to(table.spec.dtype)


class QuantisedMatrix(Matrix):
    """A matrix whose weights are code x scale - zero x scale, dequantised on the fly in each product.

    A plain weight is quantised when it is loaded; PrequantisedMatrix loads the codes of a checkpoint instead. Once
    loaded, codes, scales and zero points may be interleaved for good (core/ops/matrix/interleaved.py), which their
    shapes show.

    Attributes:
        codes: The codes, uint8 [O, B], each row padded to a whole number of UNITs: unsigned integers of 8 bits, or of 4
            bits, two per byte with the first in the low half, or fp8 (e4m3).
        scale: The scales [O, G], or [O / rows, G] if blocks of `rows` outputs share one.
        zero: The zero points, uint8, one per scale; None if the format has none, and zero is the MIDDLE of the codes.
    """

    stored: WeightFormat
    backend: QuantisedMatrixBackend = QuantisedMatrixBackend()
    quantises = True

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
        """The dtype of a quantised matrix's scales, as wide as the weight format defines.

        16-bit scales are in the model's dtype, or in bf16 for a model in fp32: the scales of small weights would be
        subnormal in fp16.
        """
        if self.stored.scale_bits == 32:
            return torch.float32
        return self.spec.dtype if self.spec.dtype.itemsize == 2 else torch.bfloat16

    @property
    @override
    def operands(self) -> Operands | None:
        """The operands of a quantised matrix for our own kernels; None if these do not support it.

        They lack some group sizes and, for W8A8, some input counts.
        """
        if self.group % UNIT and self.group not in (UNIT // 2, self.inputs):
            return None
        if self.rounds_rows and self.inputs > min(self.group, MAX_INTEGERS):
            return None
        return Operands(self.codes.view(self.outputs, -1), self.own_bias, self._codes)

    @property
    def _codes(self) -> Codes:
        """The quantisation parameters of a matrix, as kernels read them."""
        sharers = self.stored.block[0] or self.outputs
        zeros: Tensor | float = float(MIDDLE[self.kind]) if self.zero is None else self.zero
        scales_OG: Tensor = self.scale
        if self.interleaved:
            scales_OG = scales_OG.view(self.outputs, -1)
            zeros = zeros.view(self.outputs, -1) if isinstance(zeros, Tensor) else zeros
        return Codes(self.stored.kind, self.group, scales_OG, zeros, sharers, interleaved=self.interleaved)

    @property
    def interleaved(self) -> bool:
        """Whether a matrix's codes, scales and zero points are interleaved (core/ops/matrix/interleaved.py)."""
        return self.codes.dim() > 2

    @property
    @override
    def number_format(self) -> str:
        """The number format of a quantised product; int8 if codes are interleaved, because activations are rounded."""
        return "int8" if self.interleaved else super().number_format

    @property
    def rounds_units(self) -> bool:
        """Whether kernels may round activations to int8, UNIT inputs at a time, before the product.

        It is so in a model in bf16, which rounds activations anyway, and for W8A8.
        """
        return self.spec.dtype == torch.bfloat16 or self.rounds_rows

    @override
    def interleaved_parameters(self) -> Iterable[Tensor]:
        return self.held().values() if self.interleaved else ()

    def held(self, *, interleaved: bool = False) -> dict[str, Tensor]:
        """Return a quantised matrix's codes, scales and zero points by name.

        Args:
            interleaved: Whether to return views of a matrix in row order as if it were interleaved.
        """
        found: dict[str, Tensor] = {"codes": self.codes, "scale": self.scale}
        if self.zero is not None:
            found["zero"] = self.zero
        if not interleaved:
            return found
        assert not self.interleaved, "the codes are already interleaved"
        return {
            name: (codes_side_by_side if name == "codes" else scales_side_by_side)(own) for name, own in found.items()
        }

    @property
    def middle(self) -> int:
        """The code in the middle of a weight format's range, which may have fewer bits than a stored code."""
        return 0 if self.kind == "fp8" else 1 << self.stored.bits - 1

    @property
    def rounds_rows(self) -> bool:
        """Whether activations are rounded to int8 before a product, with one scale per row (W8A8)."""
        return self.stored.kind == "w8a8"

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return a quantised matrix's parameter count and its bytes in memory: codes, scales, zero points and bias."""
        _, *bias = super().storage_shares()
        held = sum(own.nbytes for name in ("codes", "scale", "zero") if (own := self._parameters.get(name)) is not None)
        return StorageShare(self.stored, self.outputs * self.inputs, float(held)), *bias

    @override
    def dequantised(self) -> Tensor:
        return self.dense().to(self.spec.dtype)

    def rows(self, picked_R: Tensor) -> Tensor:
        """Return the dequantised weights of the outputs with these int64 indices, in the model's dtype: [R, I]."""
        return self.backend.gather_coded(self, picked_R)

    def dense(self, picked_R: Tensor | None = None) -> Tensor:
        """Return a matrix's dequantised weights in fp32: [O, I], or [R, I] for outputs given by int64 indices."""
        own = self._codes
        every_R = torch.arange(self.outputs, device=self.codes.device) if picked_R is None else picked_R
        codes_OB: Tensor = self.codes
        if self.interleaved:
            codes_OB = in_rows(self.codes)
            zeros_OG = float(MIDDLE[self.kind]) if self.zero is None else in_rows(self.zero)
            own = replace(own, scales_OG=in_rows(self.scale), zeros_OG=zeros_OG)
        codes_RB = codes_OB if picked_R is None else codes_OB[picked_R]

        def of_rows(each_OG: Tensor) -> Tensor:
            return each_OG[every_R // own.outputs_per_scale].float()

        scale_RG, zeros = of_rows(own.scales_OG), own.zeros_OG
        if own.minima_OG is not None:
            low_RG = of_rows(own.minima_OG)
        else:
            low_RG = -scale_RG * (of_rows(zeros) if isinstance(zeros, Tensor) else zeros)
        scale_RI, low_RI = (
            each_RG.repeat_interleave(self.group, 1)[:, : self.inputs] for each_RG in (scale_RG, low_RG)
        )
        return unpacked(codes_RB, self.kind)[:, : self.inputs] * scale_RI + low_RI

    @override
    def random_parameters(self, block: Tensor) -> dict[str, Tensor]:
        """Return random parameters of a quantised matrix except the bias, from one repeated block with one scale."""
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
    def reference_product(self, x_TI: Tensor) -> Tensor:
        if self.rounds_rows:
            y_TO = functional.linear(rounded_rows(x_TI), self.dense()).to(x_TI.dtype)
            return y_TO if self.own_bias is None else y_TO + self.own_bias
        return functional.linear(x_TI, self.dense().to(x_TI.dtype), self.own_bias)

    @override
    def dtype_of(self, name: str) -> torch.dtype | None:
        """Return the model's dtype, to which a plain weight is cast before it is quantised."""
        return self.spec.dtype

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """Quantise this rank's part of a plain weight while it is loaded; keep a bias as it is."""
        own = self.shard_of(name, full)
        if name == "bias":
            return {name: own}
        if full.dtype != self.spec.dtype:
            raise ValueError(dtype_mismatch(full.dtype, self.spec.dtype))
        assert self.stored.block[0] == 1, "quantising while loading needs scales for each output"
        rows_OI = own.t() if self.spec.transposed else own
        if rows_OI.shape != (self.outputs, self.inputs):
            wanted = [self.inputs, self.outputs] if self.spec.transposed else [self.outputs, self.inputs]
            raise ValueError(f"has shape {list(own.shape)}, but the config requires {wanted}")
        made = quantised(rows_OI, self.kind, self.group, self.scale_dtype, zeros=self.zero is not None)
        if not torch.isfinite(made["scale"]).all():
            raise ValueError("holds NaN or infinity; the checkpoint is broken, fetch it again")
        return made


def rounded_rows(x_TI: Tensor) -> Tensor:
    """Return rows of activations rounded to int8 and back to fp32, each with its largest magnitude / 127 as scale."""
    scale_T1 = x_TI.float().abs().amax(dim=-1, keepdim=True) / 127
    steps_TI = x_TI.float() * torch.where(scale_T1 == 0, 0, 1 / scale_T1)
    return steps_TI.round().clamp(-127, 127) * scale_T1


def row_bytes(inputs: int, kind: str) -> int:
    """Return the bytes of a matrix row of `inputs` codes, padded to a whole number of UNITs."""
    whole = -(-inputs // UNIT) * UNIT
    return whole // 2 if kind == "int4" else whole


def packed(codes_OI: Tensor, kind: str) -> Tensor:
    """Pack unsigned integers or fp8 numbers [O, I] into bytes [O, B], padding each row with zeros."""
    own = codes_OI.contiguous().view(torch.uint8) if kind == "fp8" else codes_OI.to(torch.uint8).contiguous()
    missing = -own.shape[1] % UNIT
    full = functional.pad(own, (0, missing)) if missing else own  # whole units stay memory-mapped
    return bytes_of(full, 4) if kind == "int4" else full


def unpacked(codes_OB: Tensor, kind: str) -> Tensor:
    """Return the codes of packed bytes as fp32 numbers [O, I padded to whole UNITs], the inverse of `packed`."""
    match kind:
        case "int4":
            return integers(codes_OB, 4).float()
        case "fp8":
            return codes_OB.view(torch.float8_e4m3fn).float()
        case _:
            return codes_OB.float()


def quantised(rows_OI: Tensor, kind: str, group: int, dtype: torch.dtype, *, zeros: bool) -> dict[str, Tensor]:
    """Quantise weights [O, I] to the nearest codes, and return `codes`, `scale` and, on request, `zero`.

    The scale maps the largest magnitude of a group, or with zero points its range (0 included), to the full range of
    codes. It is rounded to its dtype first, so that quantisation divides by the same number that products multiply by.

    Args:
        rows_OI: The numbers to quantise.
        kind: The type of the codes: int8, int4 or fp8.
        group: The number of inputs that share a scale.
        dtype: The dtype of the scales.
        zeros: Whether to compute zero points; only for int4.
    """
    pieces = [
        _quantised(piece_OI.float(), kind, group, dtype, zeros=zeros)
        for piece_OI in torch.split(rows_OI, max(1, _PIECE // rows_OI.shape[1]))
    ]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _quantised(rows_OI: Tensor, kind: str, group: int, dtype: torch.dtype, *, zeros: bool) -> dict[str, Tensor]:
    """Quantise fp32 weights all at once; `quantised` calls this piece by piece to save memory."""
    outputs, inputs = rows_OI.shape
    grouped_OGI = functional.pad(rows_OI, (0, -inputs % group)).view(outputs, -1, group)
    largest = _LARGEST[kind]
    if zeros:
        assert kind == "int4", "only 4-bit integers have zero points"
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
    """Return scales with each 0 replaced by 1; groups of weights that are all 0 have that scale."""
    return torch.where(scale_OG == 0, torch.ones_like(scale_OG), scale_OG)
