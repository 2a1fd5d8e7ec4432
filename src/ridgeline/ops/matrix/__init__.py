"""How matrices are stored: `matrix.py` is the contract, then a file a form."""

from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.matrix.adapted import AdaptedMatrix, AdapterRows, LowRank
from ridgeline.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.ops.matrix.plain import PlainMatrix, PricedMatrix
from ridgeline.ops.matrix.quantised import QuantisedMatrix

__all__ = [
    "AdaptedMatrix",
    "AdapterRows",
    "LowRank",
    "Matrix",
    "MatrixSpec",
    "PlainMatrix",
    "PricedMatrix",
    "QuantisedMatrix",
    "matrix_of",
]


def matrix_of(spec: MatrixSpec, stored: WeightFormat | None = None) -> Matrix:
    """The matrix of a spec, its numbers stored in a format; None for the model's dtype."""
    if stored is None:
        return PlainMatrix(spec)
    return QuantisedMatrix(spec, stored) if stored.code else PricedMatrix(spec, stored)
