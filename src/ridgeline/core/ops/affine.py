"""Affine maps of numbers from one scale to another, such as from a VAE's latents to a denoiser's."""

from collections.abc import Hashable

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Op


class Affine(Op):
    """The affine map multiplier x number + offset in fp32, of numbers that are first clamped to `limits`."""

    kind = "elementwise"
    kernel_name = "elementwise.scale"
    number_format = "fp32"

    def __init__(
        self, width: int, multiplier: float, offset: float, *, limits: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        self.width, self.multiplier, self.offset, self.limits = width, multiplier, offset, limits

    @override
    def forward(self, x_PC: Tensor) -> Tensor:
        """Return the affine map of x_PC [rows, width] in fp32."""
        if x_PC.is_meta:
            return x_PC.new_empty(x_PC.shape, dtype=torch.float32)
        x_PC = x_PC.float()
        if self.limits is not None:
            x_PC = x_PC.clamp(*self.limits)
        return x_PC * self.multiplier + self.offset

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of an affine map of fp32 numbers, and of clamping them first if limits are set."""
        elements, each = rows * self.width, 2 if self.limits is None else 4
        return Cost({"fp32": float(each * elements)}, activation_bytes=8 * elements)

    @override
    def signature(self) -> Hashable:
        return self.width, self.limits is None

    @override
    def extra_repr(self) -> str:
        return f"{self.width}: {self.multiplier:g} x + {self.offset:g}"
