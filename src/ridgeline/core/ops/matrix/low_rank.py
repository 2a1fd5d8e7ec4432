"""The two narrow matrices of an adapter, whose product is added to a matrix of the model: LoRA (Hu et al.,
arXiv:2106.09685).

Shapes: N rows with the adapter, I inputs, O outputs, K rank.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.stored_module import StoredModule, weight


class LowRankBackend:
    """The part of a backend that the matrices of adapters call, in PyTorch."""

    def linear(self, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        """Return x W^T of a weight in the dtype of the rows: [N, O]."""
        return functional.linear(x_NI, weight_OI)


class LoraWeights(StoredModule):
    """What one adapter adds to a matrix: s (x A^T) B^T, in the model's dtype."""

    is_adapter = True
    backend: LowRankBackend = LowRankBackend()

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs, self.outputs, self.rank, self.scale = inputs, outputs, rank, scale
        self.lora_A, self.lora_B = weight(rank, inputs, dtype=dtype), weight(outputs, rank, dtype=dtype)

    @override
    def tensors(self) -> tuple[str, ...]:
        """As Stored.tensors: none of the model's checkpoint."""
        return ()

    def fill(self, first: Tensor, second: Tensor) -> None:
        """Take A [K, I] and B [O, K]."""
        self.lora_A, self.lora_B = (nn.Parameter(each, requires_grad=False) for each in (first, second))

    def added(self, x_NI: Tensor) -> Tensor:
        """x_NI -> [N, O]."""
        narrow_NK = self.backend.linear(x_NI, self.lora_A)
        return self.backend.linear(narrow_NK, self.lora_B).mul_(self.scale)

    def cost_of(self, rows: int) -> Cost:
        """2 x rows x rank x (inputs + outputs) FLOPs; A and B once, however many rows share them. What goes in and
        comes out is counted with the matrix.
        """
        numbers = self.rank * (self.inputs + self.outputs)
        flops = {format_of(self.lora_A.dtype).name: 2.0 * rows * numbers}
        return Cost(flops=flops, weight_bytes=numbers * self.lora_A.dtype.itemsize)

    def moved_by(self, rows: int) -> Cost:
        """The same with what its two products read and write of activations, and the addition."""
        moved = rows * (self.inputs + 2 * self.rank + 3 * self.outputs) * self.lora_A.dtype.itemsize
        return self.cost_of(rows) + Cost(activation_bytes=moved)

    @override
    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.rank} -> {self.outputs}"
