"""Adaptive norms (adaLN: Peebles and Xie, arXiv:2212.09748): a condition, such as how noisy a picture is, says what its
rows are scaled by after a norm, and how much of each part joins the stream.

Shapes: N rows, P pictures, C condition, W width.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import Elementwise
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.norm import AddNorm, AddRMSNorm, LayerNorm, Norm, RMSNorm

Factor = Literal["scale", "shift", "gate", "bounded gate"]
"""scale: 1 + s. bounded gate: tanh(g). Shifts and gates are as the product has them."""


class Modulation(Linear):
    """The factors that a condition makes, each of `width`; the silu of the condition where it is `activated`."""

    kernel_suffix = ".factors"
    SILU_FLOPS = 4  # a negation, exp, a sum with the division

    def __init__(
        self,
        inputs: int,
        width: int,
        factors: Sequence[Factor],
        dtype: torch.dtype,
        *,
        activated: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(MatrixSpec(inputs, width * len(factors), dtype, bias))
        self.width, self.factors, self.activated = width, tuple(factors), activated

    @override
    def forward(self, condition_PC: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """condition_PC [pictures, inputs] -> [pictures, width] of each factor."""
        if self.activated and not condition_PC.is_meta:
            condition_PC = functional.silu(condition_PC)
        parts = torch.split(super().forward(condition_PC), self.width, dim=-1)
        if condition_PC.is_meta:
            return parts
        return tuple(map(_finished, self.factors, parts))

    @override
    def cost_of(self, rows: int) -> Cost:
        """As Linear.cost_of, with what comes before the product and after it."""
        return super().cost_of(rows) + Cost({"fp32": float(self.flops_around(rows))})

    def flops_around(self, rows: int) -> int:
        """Of what is no product."""
        silu = self.SILU_FLOPS * self.matrix.inputs if self.activated else 0
        return rows * (silu + self.width * self.changed)

    @property
    def changed(self) -> int:
        """How many of its factors are not as the product has them."""
        return sum(factor in ("scale", "bounded gate") for factor in self.factors)

    @override
    def kernel(self, rows: int) -> str:
        """As Op.kernel: a product, and what makes factors of its parts."""
        return f"{super().kernel(rows)}{self.kernel_suffix}"

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.activated, self.changed


def _finished(factor: Factor, part_PW: Tensor) -> Tensor:
    """A factor of its part of the product."""
    return 1 + part_PW if factor == "scale" else part_PW.tanh() if factor == "bounded gate" else part_PW


class ModulatedNorm(Norm):
    """A norm whose results are modulated, in passes of their own over the rows of each picture."""

    def modulate(
        self, x_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int], shift_PW: Tensor | None = None
    ) -> Tensor:
        """norm(x) * factor + shift."""
        return modulated(self.normalise(x_NW), factor_PW, lengths, shift_PW)


class GatedAddNorm(AddNorm):
    """A sum of which the second summand is gated, by each picture's own."""

    @override
    def add(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """X + gate * y, in the place of x."""
        return add_gated(x_NW, y_NW, gate_PW, lengths)

    @property
    @override
    def _add_flops(self) -> int:
        """As AddNorm._add_flops, the gate among them."""
        return 2


class ModulatedRMSNorm(ModulatedNorm, RMSNorm):
    """norm(x) * factor, of each picture's own. The factors, a row a picture, are not counted beside its rows."""

    FLOPS_PER_ELEMENT = 5  # of the norm 4, and the product
    kernel_name = "norm.rms.modulated"
    plain = False

    @override
    def forward(self, x_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int]) -> Tensor:  # type: ignore[override]
        """x_NW [rows, width], factor_PW [pictures, width], whose rows are so many each -> as x."""
        return self.modulate(x_NW, factor_PW, lengths)


class AddModulatedRMSNorm(ModulatedNorm, AddRMSNorm):
    """As ModulatedRMSNorm, of a sum."""

    FLOPS_PER_ELEMENT = ModulatedRMSNorm.FLOPS_PER_ELEMENT
    kernel_name = ModulatedRMSNorm.kernel_name
    norm_part = "modulate"
    parts = ("add", norm_part)
    plain = False

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Two of [rows, width], factor_PW as ModulatedRMSNorm -> their sum, in the place of x, and what becomes of
        it.
        """
        sum_NW = self.add(x_NW, y_NW)
        return sum_NW, self.modulate(sum_NW, factor_PW, lengths)


class UnlearnedLayerNorm(LayerNorm):
    """(x - mean) / sqrt(variance + eps), of which nothing is learned."""

    FLOPS_PER_ELEMENT = 5  # mean, difference, square, sum, scale

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        Norm.__init__(self, width, eps, dtype)
        del self.weight
        self.register_buffer("weight", torch.ones(width, dtype=dtype, device="cpu"), persistent=False)
        self.bias = None

    @override
    def computed(self, x_xD: Tensor) -> Tensor:
        return functional.layer_norm(x_xD.float(), (self.width,), eps=self.eps).to(x_xD.dtype)


class ModulatedLayerNorm(ModulatedNorm, UnlearnedLayerNorm):
    """norm(x) * scale + shift, of each picture's own."""

    FLOPS_PER_ELEMENT = UnlearnedLayerNorm.FLOPS_PER_ELEMENT + 2
    kernel_name = "norm.layer.modulated"

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, scale_PW: Tensor, shift_PW: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """x_NW [rows, width]; scale and shift [pictures, width], whose rows are so many each -> as x."""
        return self.modulate(x_NW, scale_PW, lengths, shift_PW)


class AddModulatedLayerNorm(ModulatedNorm, AddNorm, UnlearnedLayerNorm):
    """norm(x + y) * factor, of each picture's own."""

    FLOPS_PER_ELEMENT = UnlearnedLayerNorm.FLOPS_PER_ELEMENT + 1
    kernel_name = ModulatedLayerNorm.kernel_name
    norm_part = "modulate"
    parts = ("add", norm_part)
    multiplier = 1.0

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        UnlearnedLayerNorm.__init__(self, width, eps, dtype)

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        sum_NW = self.add(x_NW, y_NW)
        return sum_NW, self.modulate(sum_NW, factor_PW, lengths)


class AddGatedLayerNorm(GatedAddNorm, AddModulatedLayerNorm):
    """norm(x + gate * y) * scale + shift, of each picture's own: how a block goes on from the part before it."""

    FLOPS_PER_ELEMENT = ModulatedLayerNorm.FLOPS_PER_ELEMENT

    @override
    def forward(  # type: ignore[override]
        self,
        x_NW: Tensor,
        y_NW: Tensor,
        gate_PW: Tensor,
        scale_PW: Tensor,
        shift_PW: Tensor,
        lengths: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """x, y [rows, width]; gate, scale and shift as ModulatedLayerNorm has them -> the sum, in the place of x, and
        what becomes of it.
        """
        sum_NW = self.add(x_NW, y_NW, gate_PW, lengths)
        return sum_NW, self.modulate(sum_NW, scale_PW, lengths, shift_PW)


class AddGated(Elementwise):
    """x + gate * y, of each picture's own, in the place of x: where no norm follows."""

    kernel_name = "elementwise.add"
    FLOPS_PER_ELEMENT = 2

    @override
    def forward(self, x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]) -> Tensor:
        """As AddGatedLayerNorm.forward -> the sum."""
        return add_gated(x_NW, y_NW, gate_PW, lengths)


def modulated(normed_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int], shift_PW: Tensor | None = None) -> Tensor:
    """The rows of each picture times its factor, and its shift added, in their place."""
    if normed_NW.is_meta:
        return normed_NW
    for picture, own_NW in enumerate(torch.split(normed_NW, list(lengths))):
        own_NW.mul_(factor_PW[picture])
        if shift_PW is not None:
            own_NW.add_(shift_PW[picture])
    return normed_NW


def add_gated(x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]) -> Tensor:
    """X + gate * y, in the place of x."""
    if not x_NW.is_meta:
        each = zip(torch.split(x_NW, list(lengths)), torch.split(y_NW, list(lengths)), gate_PW, strict=True)
        for own_NW, added_NW, gate_W in each:
            own_NW.addcmul_(added_NW, gate_W)
    return x_NW
