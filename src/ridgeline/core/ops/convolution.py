"""One-dimensional convolutions over time with an activation, the front end of a speech encoder.

Shapes: E rows, S rows per input, P positions per row, C channels in, O channels out, K kernel.
"""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import TypedOp
from ridgeline.core.ops.stored_module import weight


class Convolution(TypedOp):
    """A convolution over time, gelu(conv(x) + bias), of inputs of equal length with zero padding on both sides.

    A row holds several consecutive positions. So a convolution with stride 2 has one row per result, and the rows of
    this op are the rows of the ops around it.

    Attributes:
        kernel_size: The size of the kernel, an odd number. Half of kernel - 1 zeros are on each side, so that stride 1
            yields one result per position.
        positions: The input positions per row.
        stride: The input positions per result.
        stretch: The rows per input; kernels never cross the boundary of two inputs.
    """

    kind = "convolution"
    FLOPS_PER_ELEMENT = 5
    """FLOPs per number of a convolution's activation: exp or tanh counted as one, and the products around it."""

    def __init__(
        self, inputs: int, outputs: int, dtype: torch.dtype, *, kernel: int, positions: int, stride: int, stretch: int
    ) -> None:
        super().__init__()
        assert kernel % 2 == 1
        assert positions % stride == 0
        self.inputs, self.outputs, self.kernel_size, self.stretch = inputs, outputs, kernel, stretch
        self.positions, self.stride, self.dtype = positions, stride, dtype
        self.weight = weight(outputs, inputs, kernel, dtype=dtype)
        self.bias = weight(outputs, dtype=dtype)

    @property
    def results(self) -> int:
        """The number of output positions that a convolution packs into each row: a row's input positions / stride."""
        return self.positions // self.stride

    @override
    def forward(self, x_EI: Tensor) -> Tensor:
        """Return the convolution over time of x_EI [rows, positions x inputs]: [rows, results x outputs]."""
        if x_EI.is_meta:
            return self.weight.new_empty(len(x_EI), self.results * self.outputs)
        x_BCP = x_EI.to(self.weight.dtype).view(-1, self.stretch * self.positions, self.inputs).transpose(1, 2)
        y_BOP = functional.conv1d(x_BCP, self.weight, self.bias, self.stride, self.kernel_size // 2)
        return functional.gelu(y_BOP).transpose(1, 2).reshape(len(x_EI), self.results * self.outputs)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a convolution over time: 2 x kernel x inputs FLOPs per output, and the activation.

        Products with zero padding count, because they are computed. Weights are read once, rows enter and leave.
        """
        results = rows * self.results * self.outputs
        moved = rows * self.positions * self.inputs + results
        product = Cost(
            {self.number_format: 2.0 * self.kernel_size * self.inputs * results},
            weight_bytes=self.stored_bytes(),
            activation_bytes=moved * self.weight.element_size(),
        )
        return product + Cost({"fp32": float(self.FLOPS_PER_ELEMENT * results)})

    @override
    def signature(self) -> Hashable:
        return self.inputs, self.outputs, self.kernel_size, self.positions, self.stride, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.inputs} -> {self.outputs}, kernel {self.kernel_size}, stride {self.stride}, gelu"
