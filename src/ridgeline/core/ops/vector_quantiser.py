"""The vector quantiser of a VQ-VAE: the nearest codebook row for each vector (van den Oord et al., arXiv:1711.00937).

Shapes: P vectors, N codes, C numbers of each.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.stored_module import weight

BLOCK = 1024
"""The number of vectors whose distances to all codes are in memory at a time."""


class NearestCode(Op):
    """The index of the nearest codebook row, argmin over n of |x - code n|^2, in fp32.

    |x|^2 is the same for all codes and omitted.
    """

    kind = "quantise"
    kernel_name = "quantise.nearest"
    number_format = "fp32"

    def __init__(self, entries: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.entries, self.width = entries, width
        self.weight = weight(entries, width, dtype=dtype)

    @override
    def forward(self, x_PC: Tensor) -> Tensor:
        """Return the index of the nearest codebook row for x_PC [vectors, width]: int64 [vectors].

        Of several rows at the same distance the first is chosen.
        """
        if x_PC.is_meta:
            return x_PC.new_empty(len(x_PC), dtype=torch.int64)
        codes_NC = self.weight.float()
        squares_N = codes_NC.square().sum(dim=1)
        nearest = [
            torch.addmm(squares_N, block_PC, codes_NC.t(), alpha=-2).argmin(dim=1)
            for block_PC in torch.split(x_PC.float(), BLOCK)
        ]
        return torch.cat(nearest)

    def product_flops(self, rows: int) -> float:
        """Return the FLOPs of the products of vectors with all codebook rows."""
        return 2.0 * rows * self.entries * self.width

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of finding nearest codebook rows: the products, and a sum and a comparison for each.

        Codes are read once, vectors enter, and indices leave.
        """
        each = 2.0 * rows * self.entries + 2.0 * self.entries * self.width
        moved = rows * (self.width * self.weight.element_size() + 8)
        return Cost({"fp32": self.product_flops(rows) + each}, self.stored_bytes(), activation_bytes=moved)

    @override
    def signature(self) -> Hashable:
        return self.entries, self.width, self.weight.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.width} -> one of {self.entries}"
