"""The residual addition alone, if no norm follows or the summand is itself a sum."""

from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.elementwise import Elementwise


class ResidualAdd(Elementwise):
    """The residual addition x + y, written over x."""

    kernel_name = "elementwise.add"
    FLOPS_PER_ELEMENT = 1

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Add y_TD to x_TD [rows, width] in place, and return x_TD."""
        return x_TD if x_TD.is_meta else x_TD.add_(y_TD)
