"""The patch embedding of images (Dosovitskiy et al., arXiv:2010.11929).

A convolution of non-overlapping patches is a matrix product with the numbers of each patch.
"""

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec


class PatchEmbedding(Linear):
    """The projection of an image's patches to the model's hidden size.

    Patches arrive in fp32 and are cast to the dtype of the matrix.
    """

    def __init__(self, channels: int, size: int, outputs: int, dtype: torch.dtype) -> None:
        """Create the projection of an image's patches to the hidden size.

        Args:
            channels: The channels of a pixel.
            size: The side of a patch in pixels.
            outputs: The entries of a row.
            dtype: The model's dtype.
        """
        super().__init__(MatrixSpec(channels * size**2, outputs, dtype, bias=True, kernel=size), exempt=True)
        self.dtype = dtype

    @override
    def forward(self, x_EI: Tensor) -> Tensor:
        """Return the projection of patches x_EI fp32 [patches, channels x lines x columns]: [patches, outputs]."""
        return super().forward(x_EI if x_EI.is_meta else x_EI.to(self.dtype))
