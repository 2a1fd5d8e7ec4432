"""Matrices in the model's dtype, and matrices in a narrower format that is only priced, not run."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.stored_module import weight


class PlainMatrix(Matrix):
    """A weight matrix in the model's dtype: [out, in], or [in, out] if the checkpoint stores it transposed."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat | None = None) -> None:
        super().__init__(spec, stored)
        shape = (self.inputs, self.outputs) if spec.transposed else (self.outputs, self.inputs)
        self.weight = weight(*shape, dtype=spec.dtype)

    @property
    @override
    def operands(self) -> Operands | None:
        """The plain weight and bias for our own kernels; None if the weight is stored transposed."""
        return None if self.spec.transposed else Operands(self.weight, self.own_bias)

    @override
    def dequantised(self) -> Tensor:
        return self.weight.t() if self.spec.transposed else self.weight

    @override
    def reference_product(self, x_TI: Tensor) -> Tensor:
        return functional.linear(x_TI, self.dequantised(), self.own_bias)

    @override
    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        return {name: self.shard_of(name, full)}


class PricedMatrix(PlainMatrix):
    """A weight matrix in a format that no op runs on, so that it is only priced.

    It has the shape of a plain matrix and the byte count of its format.
    """

    is_runnable = False
