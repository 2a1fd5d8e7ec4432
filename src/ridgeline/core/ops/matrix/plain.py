"""Matrices in the model's dtype, and those whose narrower form is only priced."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from ridgeline.core.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.stored_module import weight


class PlainMatrix(Matrix):
    """A matrix in the model's dtype: `weight` [out, in], or [in, out] where the checkpoint stores it transposed."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat | None = None) -> None:
        super().__init__(spec, stored)
        shape = (self.inputs, self.outputs) if spec.transposed else (self.outputs, self.inputs)
        self.weight = weight(*shape, dtype=spec.dtype)

    @property
    def operands(self) -> Operands | None:
        """What our kernels multiply with; None where the checkpoint stores the weight transposed."""
        return None if self.spec.transposed else Operands(self.weight, self.own_bias)

    def values(self) -> Tensor:
        """As Matrix.values."""
        return self.weight.t() if self.spec.transposed else self.weight

    def computed(self, x_TI: Tensor) -> Tensor:
        """As Matrix.computed."""
        return functional.linear(x_TI, self.values(), self.own_bias)

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take."""
        return {name: self.own(name, full)}


class PricedMatrix(PlainMatrix):
    """A matrix in a form that is priced, not run: it has the shape of a plain one and the bytes of its format."""

    @property
    def runs(self) -> bool:
        """As Stored.runs."""
        return False
