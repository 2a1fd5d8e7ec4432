"""Adaptive norms (adaLN: Peebles and Xie, arXiv:2212.09748), modulated by a condition such as an image's noise level.

The condition defines a scale and a shift after a norm, and a gate on what joins the residual stream.

Shapes: N rows, P images, C condition, W width.
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
"""The kind of a modulation factor, computed from its columns of the projected condition.

A scale is 1 + part, a bounded gate tanh(part). Shifts and gates are the part itself.
"""


class Modulation(Linear):
    """The projection from a condition to modulation factors of `width` entries each.

    Attributes:
        factors: The kinds of the factors.
        activated: Whether SiLU is applied to the condition first.
    """

    kernel_suffix = ".factors"
    SILU_FLOPS = 4  # negation, exp, sum with division

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
        """Return each modulation factor (scale, shift or gate) [images, width] for conditions [images, inputs]."""
        if self.activated and not condition_PC.is_meta:
            condition_PC = functional.silu(condition_PC)
        parts = torch.split(super().forward(condition_PC), self.width, dim=-1)
        if condition_PC.is_meta:
            return parts
        return tuple(map(_finished, self.factors, parts))

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of modulation factors: the product, SiLU before it, and the operations after it."""
        return super().cost_of(rows) + Cost({"fp32": float(self.flops_around(rows))})

    def flops_around(self, rows: int) -> int:
        """Return the FLOPs of modulation factors besides the matrix product: SiLU before it, tanh and sums after it."""
        silu = self.SILU_FLOPS * self.matrix.inputs if self.activated else 0
        return rows * (silu + self.width * self.changed)

    @property
    def changed(self) -> int:
        """The number of modulation factors that need an operation after the product (1 + part, or tanh)."""
        return sum(factor in ("scale", "bounded gate") for factor in self.factors)

    @override
    def kernel(self, rows: int) -> str:
        """Return the kernel class of modulation factors: a product followed by operations on its parts."""
        return f"{super().kernel(rows)}{self.kernel_suffix}"

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.activated, self.changed


def _finished(factor: Factor, part_PW: Tensor) -> Tensor:
    """Return a scale, shift or gate from its columns of the projected condition."""
    return 1 + part_PW if factor == "scale" else part_PW.tanh() if factor == "bounded gate" else part_PW


class ModulatedNorm(Norm):
    """The base class of norms whose result is modulated, in separate passes over the rows of each image."""

    def modulate(
        self, x_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int], shift_PW: Tensor | None = None
    ) -> Tensor:
        """Return norm(x) * factor + shift, with each image's own factor and shift."""
        return modulated(self.normalise(x_NW), factor_PW, lengths, shift_PW)


class AddModulatedNorm(ModulatedNorm, AddNorm):
    """The base class of a residual addition followed by a norm with a factor per image."""

    norm_part = "modulate"
    parts = ("add", norm_part)

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Add y to x in place, and return the sum and its modulated norm.

        Args:
            x_NW: The residual stream [rows, width].
            y_NW: The rows to add.
            factor_PW: The factor of each image [images, width].
            lengths: The number of rows of each image.
        """
        sum_NW = self.add(x_NW, y_NW)
        return sum_NW, self.modulate(sum_NW, factor_PW, lengths)


class GatedAddNorm(AddNorm):
    """The base class of a gated residual addition followed by a norm; each image has its own gate."""

    @override
    def add(  # type: ignore[override]
        self, x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """Add gate * y to x in place and return x."""
        return add_gated(x_NW, y_NW, gate_PW, lengths)

    _add_flops = 2


class ModulatedRMSNorm(ModulatedNorm, RMSNorm):
    """An RMS norm with a factor per image, norm(x) * factor.

    The cost omits reading the factors, one row per image, which is little compared with the image's rows.
    """

    FLOPS_PER_ELEMENT = 5  # 4 of the norm, and the product
    kernel_name = "norm.rms.modulated"
    plain = False

    @override
    def forward(self, x_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int]) -> Tensor:  # type: ignore[override]
        """Return norm(x) * factor for x_NW [rows, width].

        Args:
            x_NW: The rows of all images.
            factor_PW: The factor of each image [images, width].
            lengths: The number of rows of each image.
        """
        return self.modulate(x_NW, factor_PW, lengths)


class AddModulatedRMSNorm(AddModulatedNorm, AddRMSNorm):  # type: ignore[misc]  # its forward takes the factors
    """A residual addition followed by an RMS norm with a factor per image."""

    FLOPS_PER_ELEMENT = ModulatedRMSNorm.FLOPS_PER_ELEMENT
    kernel_name = ModulatedRMSNorm.kernel_name
    plain = False


class UnlearnedLayerNorm(LayerNorm):
    """Layer normalisation without learned weights, (x - mean) / sqrt(variance + eps)."""

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
    """A layer norm with scale and shift per image, norm(x) * scale + shift."""

    FLOPS_PER_ELEMENT = UnlearnedLayerNorm.FLOPS_PER_ELEMENT + 2
    kernel_name = "norm.layer.modulated"

    @override
    def forward(  # type: ignore[override]
        self, x_NW: Tensor, scale_PW: Tensor, shift_PW: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """Return norm(x) * scale + shift for x_NW [rows, width].

        Args:
            x_NW: The rows of all images.
            scale_PW: The scale of each image [images, width].
            shift_PW: The shift of each image [images, width].
            lengths: The number of rows of each image.
        """
        return self.modulate(x_NW, scale_PW, lengths, shift_PW)


class AddModulatedLayerNorm(AddModulatedNorm, UnlearnedLayerNorm):
    """A residual addition followed by a layer norm with a factor per image, norm(x + y) * factor."""

    FLOPS_PER_ELEMENT = UnlearnedLayerNorm.FLOPS_PER_ELEMENT + 1
    kernel_name = ModulatedLayerNorm.kernel_name

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        UnlearnedLayerNorm.__init__(self, width, eps, dtype)


class AddGatedLayerNorm(GatedAddNorm, AddModulatedLayerNorm):
    """A gated residual addition followed by a modulated layer norm, norm(x + gate * y) * scale + shift.

    It connects one part of a transformer block to the next.
    """

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
        """Add gate * y to x in place, and return the sum and its modulated norm.

        Args:
            x_NW: The residual stream [rows, width].
            y_NW: The rows to add.
            gate_PW: The gate of each image [images, width].
            scale_PW: The scale of each image [images, width].
            shift_PW: The shift of each image [images, width].
            lengths: The number of rows of each image.
        """
        sum_NW = self.add(x_NW, y_NW, gate_PW, lengths)
        return sum_NW, self.modulate(sum_NW, scale_PW, lengths, shift_PW)


class AddGated(Elementwise):
    """A gated residual addition without a norm, x + gate * y in the place of x; each image has its own gate."""

    kernel_name = "elementwise.add"
    FLOPS_PER_ELEMENT = 2

    @override
    def forward(self, x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]) -> Tensor:
        """Add gate * y to x in place and return x.

        Args:
            x_NW: The residual stream [rows, width].
            y_NW: The rows to add.
            gate_PW: The gate of each image [images, width].
            lengths: The number of rows of each image.
        """
        return add_gated(x_NW, y_NW, gate_PW, lengths)


def modulated(normed_NW: Tensor, factor_PW: Tensor, lengths: Sequence[int], shift_PW: Tensor | None = None) -> Tensor:
    """Multiply the rows of each image by its factor and add its shift, in place."""
    if normed_NW.is_meta:
        return normed_NW
    for image, own_NW in enumerate(torch.split(normed_NW, list(lengths))):
        own_NW.mul_(factor_PW[image])
        if shift_PW is not None:
            own_NW.add_(shift_PW[image])
    return normed_NW


def add_gated(x_NW: Tensor, y_NW: Tensor, gate_PW: Tensor, lengths: Sequence[int]) -> Tensor:
    """Add gate * y to x in place and return x; each image has its own gate."""
    if not x_NW.is_meta:
        each = zip(torch.split(x_NW, list(lengths)), torch.split(y_NW, list(lengths)), gate_PW, strict=True)
        for own_NW, added_NW, gate_W in each:
            own_NW.addcmul_(added_NW, gate_W)
    return x_NW
