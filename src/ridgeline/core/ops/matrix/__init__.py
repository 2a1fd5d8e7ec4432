"""The weight matrices, one file per storage format; `matrix.py` has their common interface."""

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.core.ops.matrix.awq import AwqMatrix
from ridgeline.core.ops.matrix.compressed_tensors_matrix import PackedMatrix, SignedMatrix
from ridgeline.core.ops.matrix.fp8 import Fp8Matrix
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS, GGUFMatrix
from ridgeline.core.ops.matrix.gptq import GptqMatrix, GptqV1Matrix
from ridgeline.core.ops.matrix.lora import AdaptedMatrix, AdapterRows
from ridgeline.core.ops.matrix.low_rank import LoraWeights
from ridgeline.core.ops.matrix.matrix import Matrix, MatrixSpec, stored_alike
from ridgeline.core.ops.matrix.plain import PlainMatrix, PricedMatrix
from ridgeline.core.ops.matrix.prequantised import PrequantisedMatrix
from ridgeline.core.ops.matrix.quantised import QuantisedMatrix
from ridgeline.core.ops.number_formats import WeightFormat

__all__ = [
    "AdaptedMatrix",
    "AdapterRows",
    "Fp8Matrix",
    "GGUFMatrix",
    "LoraWeights",
    "Matrix",
    "MatrixSpec",
    "PlainMatrix",
    "PrequantisedMatrix",
    "PricedMatrix",
    "QuantisedMatrix",
    "matrix_of",
    "stored_alike",
]

_BY_NAME: dict[str, type[PrequantisedMatrix]] = {
    "fp8": Fp8Matrix, "gptq": GptqV1Matrix, "gptq_v2": GptqMatrix, "awq": AwqMatrix, "pack-quantized": PackedMatrix,
    "int-quantized": SignedMatrix, **dict.fromkeys(BLOCKS, GGUFMatrix),
}  # fmt: skip
LAYOUTS: Mapping[str, type[PrequantisedMatrix]] = MappingProxyType(_BY_NAME)
"""The matrix class for each checkpoint layout, by `WeightFormat.layout`."""


def matrix_of(spec: MatrixSpec, stored: WeightFormat | None = None) -> Matrix:
    """Return a new matrix for a spec, in the given weight format, or in the model's dtype if that is None."""
    if stored is None:
        return PlainMatrix(spec)
    if stored.layout:
        return LAYOUTS[stored.layout](spec, stored)
    return QuantisedMatrix(spec, stored) if stored.code else PricedMatrix(spec, stored)
