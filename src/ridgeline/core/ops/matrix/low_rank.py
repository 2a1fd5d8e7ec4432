"""The two low-rank matrices with which a LoRA adapter extends a weight matrix (Hu et al., arXiv:2106.09685).

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
    """The methods of a backend that adapter matrices call, implemented in PyTorch."""

    def linear(self, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        """Return x W^T [N, O], for a weight in the dtype of the rows."""
        return functional.linear(x_NI, weight_OI)


class LoraWeights(StoredModule):
    """The low-rank weights of one adapter for one matrix, which add s (x A^T) B^T, in the model's dtype."""

    is_adapter = True
    backend: LowRankBackend = LowRankBackend()

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs, self.outputs, self.rank, self.scale = inputs, outputs, rank, scale
        self.lora_A, self.lora_B = weight(rank, inputs, dtype=dtype), weight(outputs, rank, dtype=dtype)

    @override
    def tensors(self) -> tuple[str, ...]:
        """Return no tensor names: LoRA weights come from the adapter, not from the model's checkpoint."""
        return ()

    def fill(self, first: Tensor, second: Tensor) -> None:
        """Set the low-rank weights A [K, I] and B [O, K] of a LoRA adapter."""
        self.lora_A, self.lora_B = (nn.Parameter(each, requires_grad=False) for each in (first, second))

    def added(self, x_NI: Tensor) -> Tensor:
        """Return the contribution of a LoRA adapter, s (x A^T) B^T [N, O], to a matrix's product with x_NI."""
        narrow_NK = self.backend.linear(x_NI, self.lora_A)
        return self.backend.linear(narrow_NK, self.lora_B).mul_(self.scale)

    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a LoRA adapter for `rows` rows: 2 x rows x rank x (inputs + outputs) FLOPs.

        A and B are read once, however many rows share them. The rows that enter and leave are counted with the base
        matrix.
        """
        numbers = self.rank * (self.inputs + self.outputs)
        flops = {format_of(self.lora_A.dtype).name: 2.0 * rows * numbers}
        return Cost(flops=flops, weight_bytes=numbers * self.lora_A.dtype.itemsize)

    def moved_by(self, rows: int) -> Cost:
        """Return a LoRA adapter's cost for `rows` rows, including activations that its kernels read and write."""
        moved = rows * (self.inputs + 2 * self.rank + 3 * self.outputs) * self.lora_A.dtype.itemsize
        return self.cost_of(rows) + Cost(activation_bytes=moved)

    @override
    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.rank} -> {self.outputs}"
