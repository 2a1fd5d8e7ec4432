"""Matrices of int8 rows."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.formats import WeightFormat
from ridgeline.ops.matrix.matrix import Matrix, MatrixSpec
from ridgeline.ops.stored import Share, weight


class Int8Matrix(Matrix):
    """Rows of int8 with a scale each (symmetric, the largest magnitude at 127), widened to the model's dtype on the way
    into the product. A checkpoint's plain weight is quantised when it is taken."""

    def __init__(self, spec: MatrixSpec, stored: WeightFormat) -> None:
        super().__init__(spec, stored)
        self.weight = weight(self.outputs, self.inputs, dtype=torch.int8)
        self.scale = weight(self.outputs, dtype=spec.dtype)

    def shares(self) -> tuple[Share, ...]:
        """As Stored.shares; its scales are in the model's dtype, as wide as that is."""
        _, *bias = super().shares()
        return Share(self.stored, self.weight.numel(), float(self.weight.nbytes + self.scale.nbytes)), *bias

    def computed(self, x_TI: Tensor) -> Tensor:
        """As Matrix.computed."""
        y_TO = functional.linear(x_TI, self.weight.to(x_TI.dtype)) * self.scale
        bias = self.own_bias
        return y_TO if bias is None else y_TO + bias

    def take(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        """As Stored.take."""
        own = self.own(name, full)
        if name == "bias":
            return {name: own}
        if full.dtype != self.spec.dtype:
            raise ValueError(f"is {full.dtype}, the config says {self.spec.dtype}; correct its torch_dtype")
        rows_OI = (own.t() if self.spec.transposed else own).float()
        scale_O = rows_OI.abs().amax(dim=1) / 127
        # The scale is rounded to the model's dtype first, so that what is divided by is what is multiplied with.
        kept_O = scale_O.to(self.spec.dtype)
        kept_O[kept_O == 0] = 1  # a row of zeros
        quantised = (rows_OI / kept_O.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return {"weight": quantised, "scale": kept_O}
