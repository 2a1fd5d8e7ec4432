"""Sinusoids of a time: how a denoiser is told how noisy its picture is."""

import math
from collections.abc import Hashable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op


class TimestepSinusoids(Op):
    """cos and sin of a time at `width` / 2 frequencies from 1 down to nearly 1 / 10000 (Vaswani et al.,
    arXiv:1706.03762, as Ho et al., arXiv:2006.11239, take them), the cosines first.
    """

    kind = "elementwise"
    FLOPS_PER_ELEMENT = 2  # the angle; cos and sin counted as one

    def __init__(self, width: int, dtype: torch.dtype, *, scale: float = 1.0) -> None:
        """width: an even number. scale: what times are multiplied with first."""
        super().__init__()
        self.width, self.dtype, self.scale = width, dtype, scale

    @override
    def forward(self, times_P: Tensor) -> Tensor:
        """times_P fp32 [pictures] -> [pictures, width]."""
        if times_P.is_meta:
            return times_P.new_empty(len(times_P), self.width, dtype=self.dtype)
        half = self.width // 2
        # In this order, as the references round: a thousandth of a large angle's last digits shows in the result.
        exponents_H = -math.log(10_000) * torch.arange(half, dtype=torch.float32, device=times_P.device) / half
        angles_PH = (times_P * self.scale)[:, None] * exponents_H.exp()
        return torch.cat([angles_PH.cos(), angles_PH.sin()], dim=-1).to(self.dtype)

    @override
    def cost_of(self, rows: int) -> Cost:
        elements = rows * self.width
        return Cost(
            {"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            activation_bytes=4 * rows + elements * self.dtype.itemsize,
        )

    @override
    def kernel(self, rows: int) -> str:
        return "elementwise.angles"

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.width, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.width}, scale {self.scale:g}"
