"""How matrices are stored: `matrix.py` is the contract, then a file a form."""

from ridgeline.ops.formats import INT8, WeightFormat
from ridgeline.ops.matrix.adapted import AdaptedMatrix, AdapterRows, LowRank
from ridgeline.ops.matrix.int8 import Int8Matrix
from ridgeline.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.ops.matrix.plain import PlainMatrix, PricedMatrix

__all__ = [
    "AdaptedMatrix",
    "AdapterRows",
    "Int8Matrix",
    "LowRank",
    "Matrix",
    "MatrixSpec",
    "PlainMatrix",
    "PricedMatrix",
    "matrix_of",
]


def matrix_of(spec: MatrixSpec, stored: WeightFormat | None = None) -> Matrix:
    """The matrix of a spec, its numbers stored in a format; None for the model's dtype."""
    if stored is None:
        return PlainMatrix(spec)
    return Int8Matrix(spec, stored) if stored == INT8 else PricedMatrix(spec, stored)
