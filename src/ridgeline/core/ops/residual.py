"""The residual addition alone: where a norm does not follow it, or what is added is a sum itself."""

from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.elementwise import Elementwise


class ResidualAdd(Elementwise):
    """x + y, in the place of x."""

    kernel_name = "elementwise.add"
    FLOPS_PER_ELEMENT = 1

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Two of [rows, width] -> their sum."""
        return x_TD if x_TD.is_meta else x_TD.add_(y_TD)
