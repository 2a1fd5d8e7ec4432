"""The patches of an image become rows of a width (Dosovitskiy et al., arXiv:2010.11929): a convolution whose places do
not overlap is a product with the numbers of each patch.
"""

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec


class PatchEmbedding(Linear):
    """A matrix product with patches, which come in fp32 and are brought to the matrix's dtype."""

    def __init__(self, channels: int, size: int, outputs: int, dtype: torch.dtype) -> None:
        """channels: of a pixel. size: pixels of a patch's side."""
        super().__init__(MatrixSpec(channels * size**2, outputs, dtype, bias=True, kernel=size), exempt=True)
        self.dtype = dtype

    @override
    def forward(self, x_EI: Tensor) -> Tensor:
        """x_EI fp32 [patches, channels x lines x columns] -> [patches, outputs]."""
        return super().forward(x_EI if x_EI.is_meta else x_EI.to(self.dtype))
