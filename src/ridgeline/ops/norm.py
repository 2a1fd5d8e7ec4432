"""Normalisations, in fp32 whatever the model's dtype."""

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op, RowSpace, weight
from ridgeline.ops.work import Work


class RMSNorm(Op):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467).

    `per_token` is how many vectors of `width` a token has: 1, or its heads where queries and keys are normalised.
    """

    kind = "norm"
    FLOPS_PER_ELEMENT = 4  # square, sum, scale, weight

    def __init__(
        self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1, row_space: RowSpace = "tokens"
    ) -> None:
        super().__init__()
        self.width, self.eps, self.per_token, self.row_space = width, eps, per_token, row_space
        self.weight = weight(width, dtype=dtype)

    def forward(self, x_xD: Tensor) -> Tensor:
        """x_xD [..., width] -> the same shape and dtype."""
        normed = functional.rms_norm(x_xD.float(), (self.width,), eps=self.eps)
        # The cast comes before the weight: Llama's order, which decides the last bit in bf16.
        return self.weight * normed.to(x_xD.dtype)

    def cost(self, work: Work) -> Cost:
        elements = self.rows(work) * self.per_token * self.width
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=2 * elements * self.weight.element_size(),
        )

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return "norm.rms"

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.weight.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.per_token, self.row_space, self.weight.dtype

    def extra_repr(self) -> str:
        return f"{self.per_token} x {self.width}"


class LayerNorm(Op):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., arXiv:1607.06450)."""

    kind = "norm"
    FLOPS_PER_ELEMENT = 7  # mean, difference, square, sum, scale, weight, bias

    def __init__(self, width: int, eps: float, dtype: torch.dtype, row_space: RowSpace = "tokens") -> None:
        super().__init__()
        self.width, self.eps, self.row_space = width, eps, row_space
        self.weight = weight(width, dtype=dtype)
        self.bias = weight(width, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, width] -> the same shape and dtype."""
        normed = functional.layer_norm(x_TD.float(), (self.width,), self.weight.float(), self.bias.float(), self.eps)
        return normed.to(x_TD.dtype)

    def cost(self, work: Work) -> Cost:
        elements = self.rows(work) * self.width
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=2 * elements * self.weight.element_size(),
        )

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return "norm.layer"

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.weight.dtype).name

    def signature(self) -> Hashable:
        return self.width, self.row_space, self.weight.dtype

    def extra_repr(self) -> str:
        return f"{self.width}"
