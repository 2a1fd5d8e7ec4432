"""The base class of weight matrices, y = x W^T + b, in any storage format.

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
"""The dimension along which tensor parallelism divides a matrix: its outputs ("column") or its inputs ("row")."""


@dataclass(frozen=True, slots=True)
class MatrixSpec:
    """The shape, dtype and tensor-parallel split of a matrix, independent of its storage format."""

    inputs: int
    """The number of a matrix's inputs over all ranks."""
    outputs: int
    """The number of a matrix's outputs over all ranks."""
    dtype: torch.dtype
    bias: bool = False
    split: Split | None = None
    """The dimension that tensor parallelism divides: "column" for the outputs, "row" for the inputs.

    After a row split, an AllReduce adds up the ranks' products.
    """
    shard: Shard = WHOLE
    """The share of this rank among those that divide the matrix."""
    parts: tuple[int, ...] = ()
    """The output count of each matrix that the checkpoint fused into this one; empty or one entry if it fused none."""
    transposed: bool = False
    """Whether the checkpoint stores the weight as [in, out]."""
    kernel: int = 0
    """The kernel size in pixels, if the checkpoint stores the matrix as a convolution; 0 otherwise.

    It is a convolution of patches that do not overlap. The stored shape is [out, channels, kernel, kernel], or [out,
    channels, 1, kernel, kernel] for video frames.
    """

    @property
    def local_inputs(self) -> int:
        """The number of a matrix's inputs on this rank."""
        return self.shard.part(self.inputs, "inputs") if self.split == "row" else self.inputs

    @property
    def own_parts(self) -> tuple[int, ...]:
        """The number of outputs on this rank of each matrix that is fused into one."""
        parts = self.parts or (self.outputs,)
        return tuple(self.shard.part(n, "outputs") for n in parts) if self.split == "column" else parts

    @property
    def local_outputs(self) -> int:
        """The number of a matrix's outputs on this rank."""
        return sum(self.own_parts)

    def place(self, kind: WeightSlotKind, name: str = "") -> WeightSlot:
        """Return the slot of a matrix in an op, for which a quantisation recipe chooses the weight format.

        Args:
            kind: The kind of slot, by which recipes choose a format.
            name: The path of the matrix within the op; "" if the op itself has the matrix's name.
        """
        return WeightSlot(name, kind, self.inputs, self.outputs)


class MatrixBackend(LowRankBackend):
    """The methods of a backend that matrices call, implemented in PyTorch."""

    def product(self, matrix: "Matrix", x_TI: Tensor) -> Tensor:
        """Return the product x W^T + b [T, O] of rows with a stored matrix."""
        return matrix.reference_product(x_TI)


class Matrix(StoredModule, ABC):
    """The base class of weight matrices in any format, which Linear, Projections, Experts and other ops multiply by.

    Attributes:
        stored: The weight format; None for the model's dtype.
    """

    backend: MatrixBackend = MatrixBackend()

    def __init__(self, spec: MatrixSpec, stored: WeightFormat | None = None) -> None:
        super().__init__()
        self.spec, self.stored = spec, stored
        self.inputs, self.outputs = spec.local_inputs, spec.local_outputs
        self.bias = weight(self.outputs, dtype=spec.dtype) if spec.bias else None

    def product(self, x_TI: Tensor) -> Tensor:
        """Return the product of rows x_TI [rows, inputs] with the matrix: [rows, outputs].

        If the inputs are split over ranks, it is this rank's summand.
        """
        return x_TI.new_empty(len(x_TI), self.outputs) if x_TI.is_meta else self.backend.product(self, x_TI)

    @property
    def operands(self) -> Operands | None:
        """The weight, bias and quantisation parameters for our kernels; None if these do not support the format."""
        return None

    def for_kernel(self, x_TI: Tensor) -> tuple[Tensor, Operands | None]:
        """Return rows with their inputs in the order that a kernel needs, and the matrix's operands, if supported."""
        return x_TI, self.operands

    def low_rank(self, number: int) -> LoraWeights | None:
        """Return the low-rank weights of an adapter for this matrix, or None if the adapter does not change it."""
        return None

    @property
    def has_no_adapter_rows(self) -> bool:
        """Whether the product with `operands` is a matrix's whole result in the running step, without LoRA adapters."""
        return True

    @abstractmethod
    def dequantised(self) -> Tensor:
        """Return a matrix's weights without the bias [O, I], in the model's dtype."""

    @abstractmethod
    def reference_product(self, x_TI: Tensor) -> Tensor:
        """Compute a matrix product in PyTorch, for rows that are not on the meta device."""

    @property
    def number_format(self) -> str:
        """The number format whose arithmetic units a matrix product uses."""
        return arithmetic(self.spec.dtype, self.stored)

    @override
    def storage_shares(self) -> tuple[StorageShare, ...]:
        """Return the parameter count and bytes of a weight and of its bias, which is in the model's dtype."""
        count, stored, bias = self.inputs * self.outputs, self.stored, self.bias
        nbytes = count * self.spec.dtype.itemsize if stored is None else stored.nbytes(self.outputs, self.inputs)
        weights = StorageShare(stored, count, float(nbytes))
        return (weights,) if bias is None else (weights, StorageShare(None, bias.numel(), float(bias.nbytes)))

    @override
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.spec.bias else ("weight",)

    def shard_of(self, name: str, full: Tensor) -> Tensor:
        """Return this rank's part of a matrix's weight or bias from the checkpoint."""
        spec = self.spec
        if name == "bias" and full.dim() == 2 and len(full) == 1:  # BART checkpoints store the bias of the logits so
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
        """The bias that this rank adds to a product; None except on rank 0 if ranks divide the inputs.

        The sum over ranks then contains the bias once.
        """
        return None if self.spec.split == "row" and self.spec.shard.rank > 0 else self.bias

    @override
    def unfilled_copy(self) -> "Matrix":
        other = type(self)(self.spec, self.stored)
        other.unnamed = self.unnamed
        return other

    @override
    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}"


def stored_alike(matrices: Iterable[Matrix]) -> bool:
    """Return whether all matrices have the same weight format, as one call of our kernels requires."""
    return len({matrix.stored for matrix in matrices}) == 1
