"""Matrix: one stored matrix of a model, y = x W^T + b, in whatever form its numbers are kept.

Shapes: T rows of a step, I inputs, O outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.matrix.low_rank import LoraWeights, LowRankBackend
from ridgeline.core.ops.matrix.operands import Operands
from ridgeline.core.ops.number_formats import WeightFormat, arithmetic
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import StorageShare, StoredModule, weight
from ridgeline.core.ops.weight_slot import WeightSlot, WeightSlotKind

Split = Literal["column", "row"]


@dataclass(frozen=True, slots=True)
class MatrixSpec:
    """What a matrix is, whatever form it is stored in. inputs and outputs: of all ranks together.

    split: "column" holds a part of the outputs, "row" a part of the inputs (then an AllReduce adds the ranks up).
    parts: the outputs of each matrix that the checkpoint fused into this one; one entry where it did not.
    transposed: whether the checkpoint stores it [in, out]. kernel: pixels of a side, where the checkpoint stores it as
    a convolution whose places do not overlap, [out, channels, kernel, kernel], of frames [out, channels, 1, kernel,
    kernel]; 0 where it does not.
    """

    inputs: int
    outputs: int
    dtype: torch.dtype
    bias: bool = False
    split: Split | None = None
    shard: Shard = WHOLE
    parts: tuple[int, ...] = ()
    transposed: bool = False
    kernel: int = 0

    @property
    def own_inputs(self) -> int:
        """Inputs of this rank."""
        return self.shard.part(self.inputs, "inputs") if self.split == "row" else self.inputs

    @property
    def own_parts(self) -> tuple[int, ...]:
        """Outputs of this rank, of each part."""
        parts = self.parts or (self.outputs,)
        return tuple(self.shard.part(n, "outputs") for n in parts) if self.split == "column" else parts

    @property
    def own_outputs(self) -> int:
        """Outputs of this rank."""
        return sum(self.own_parts)

    def place(self, kind: WeightSlotKind, name: str = "") -> WeightSlot:
        """Return the place of the matrix in an op. name: its path there, "" if the op is named as the matrix."""
        return WeightSlot(name, kind, self.inputs, self.outputs)


class MatrixBackend(LowRankBackend):
    """The part of a backend that matrices call, in PyTorch."""

    def product(self, matrix: "Matrix", x_TI: Tensor) -> Tensor:
        """Return x W^T + b of a stored matrix: [T, O]."""
        return matrix.computed(x_TI)


class Matrix(StoredModule, ABC):
    """A stored matrix: what Linear, Projections, Experts and every other op that multiplies have in common.

    stored: the format of its numbers, None for the model's dtype.
    """

    backend: MatrixBackend = MatrixBackend()

    def __init__(self, spec: MatrixSpec, stored: WeightFormat | None = None) -> None:
        super().__init__()
        self.spec, self.stored = spec, stored
        self.inputs, self.outputs = spec.own_inputs, spec.own_outputs
        self.bias = weight(self.outputs, dtype=spec.dtype) if spec.bias else None

    def product(self, x_TI: Tensor) -> Tensor:
        """x_TI [rows, inputs] -> [rows, outputs]; of a row split, this rank's summand of them."""
        return x_TI.new_empty(len(x_TI), self.outputs) if x_TI.is_meta else self.backend.product(self, x_TI)

    @property
    def operands(self) -> Operands | None:
        """What our kernels multiply rows with; None where they know no such form."""
        return None

    def for_kernel(self, x_TI: Tensor) -> tuple[Tensor, Operands | None]:
        """Return rows in the order in which a kernel multiplies them, and the operands for that order, if any."""
        return x_TI, self.operands

    def low_rank(self, number: int) -> LoraWeights | None:
        """Return what the adapter of this number adds; None if it leaves the matrix alone."""
        return None

    @property
    def alone(self) -> bool:
        """Whether a product with its operands is all that is to be computed, in the step that runs."""
        return True

    @abstractmethod
    def values(self) -> Tensor:
        """The numbers that it stands for, without its bias [O, I], in the model's dtype."""

    @abstractmethod
    def computed(self, x_TI: Tensor) -> Tensor:
        """Return the product in PyTorch, for rows that have numbers."""

    @property
    def number_format(self) -> str:
        """The format whose arithmetic units a product keeps busy."""
        return arithmetic(self.spec.dtype, self.stored)

    @override
    def shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares; biases are in the model's dtype."""
        count, stored, bias = self.inputs * self.outputs, self.stored, self.bias
        nbytes = count * self.spec.dtype.itemsize if stored is None else stored.nbytes(self.outputs, self.inputs)
        weights = StorageShare(stored, count, float(nbytes))
        return (weights,) if bias is None else (weights, StorageShare(None, bias.numel(), float(bias.nbytes)))

    @override
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.spec.bias else ("weight",)

    def own(self, name: str, full: Tensor) -> Tensor:
        """This rank's part of the checkpoint's weight or bias."""
        spec = self.spec
        if name == "bias" and full.dim() == 2 and len(full) == 1:  # as BART's checkpoints store that of the logits
            full = full[0]
        square = (spec.kernel, spec.kernel)
        if name == "weight" and spec.kernel and full.shape[2:] in (square, (1, *square)):
            full = full.flatten(1)
        if spec.split is None or (name == "bias" and spec.split == "row"):
            return full
        if spec.split == "row":
            return spec.shard.slice(full, 0 if spec.transposed else 1)
        return spec.shard.slice(full, 1 if spec.transposed and name == "weight" else 0, spec.parts or None)

    @property
    def own_bias(self) -> Tensor | None:
        """The bias that this rank adds: of a row split only the first does, because the sum over ranks has one."""
        return None if self.spec.split == "row" and self.spec.shard.rank > 0 else self.bias

    @override
    def another(self) -> "Matrix":
        other = type(self)(self.spec, self.stored)
        other.unnamed = self.unnamed
        return other

    @override
    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}"


def stored_alike(matrices: Iterable[Matrix]) -> bool:
    """Whether they are all in one format, as one call of our kernels has them."""
    return len({matrix.stored for matrix in matrices}) == 1
