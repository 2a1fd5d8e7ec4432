"""Normalisations, computed in fp32 whatever the model's dtype, alone or fused with the residual addition before them.

Shapes: T rows of a step, D entries of a vector.
"""

from abc import abstractmethod
from collections.abc import Hashable
from typing import ClassVar

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import RowOp
from ridgeline.core.ops.op import Launch, OpBackend, TypedOp
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight


class Norm(TypedOp):
    """The base class of normalisations of vectors.

    Attributes:
        width: The number of entries of a vector.
        per_token: The number of vectors per row: 1, or the number of heads if queries and keys are normalised.
    """

    kind = "norm"
    fuses_inputs = True
    part = "norms"
    multiplier = 1.0
    """The factor on the rows that a residual addition before the norm adds."""
    FLOPS_PER_ELEMENT: int

    def __init__(self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1) -> None:
        super().__init__()
        self.width, self.eps, self.per_token, self.dtype = width, eps, per_token, dtype
        self.weight = weight(width, dtype=dtype)

    @property
    def scale(self) -> Tensor:
        """The learned factor on each entry of a normalised vector, fp32 [width]."""
        return self.weight.float()

    def normalise(self, x_xD: Tensor) -> Tensor:
        """Normalise vectors x_xD [..., width]; the result has the same shape and dtype."""
        return x_xD.new_empty(x_xD.shape) if x_xD.is_meta else self.computed(x_xD)

    @abstractmethod
    def computed(self, x_xD: Tensor) -> Tensor:
        """Compute a norm in PyTorch, for vectors that are not on the meta device."""

    @override
    def forward(self, x_xD: Tensor) -> Tensor:
        """Normalise vectors x_xD [..., width]; the result has the same shape and dtype."""
        return self.normalise(x_xD)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a norm: its weights are read once, vectors enter and leave."""
        elements = rows * self.per_token * self.width
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=2 * elements * self.weight.element_size(),
        )

    @override
    def signature(self) -> Hashable:
        return self.width, self.per_token, self.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.per_token} x {self.width}"


class NormBackend(OpBackend):
    """The methods of a backend that RMS norms call, implemented in PyTorch."""

    def norm(self, op: "RMSNorm", x_xD: Tensor) -> Tensor:
        """Return the RMS norm of vectors x_xD [..., D]."""
        return op.computed(x_xD)

    def add_norm(self, op: "AddRMSNorm", x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add y to x in place, and return x and its RMS norm."""
        return op.in_parts(x_TD, y_TD)


class RMSNorm(Norm):
    """Root-mean-square normalisation: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467).

    Attributes:
        from_one: Whether the factor is 1 + the stored weight (Gemma).
        cast_last: Whether the product with the weight is in fp32 (OLMo 2), as it always is with `from_one`.
    """

    FLOPS_PER_ELEMENT = 4  # square, sum, scale, weight
    kernel_name = "norm.rms"
    plain: ClassVar[bool] = True
    """Whether the norm is x / rms(x) * weight without any variation, alone or after an addition."""
    backend: NormBackend = NormBackend()

    def __init__(
        self,
        width: int,
        eps: float,
        dtype: torch.dtype,
        per_token: int = 1,
        *,
        from_one: bool = False,
        cast_last: bool = False,
    ) -> None:
        super().__init__(width, eps, dtype, per_token)
        self.from_one, self.cast_last = from_one, from_one or cast_last

    @property
    @override
    def scale(self) -> Tensor:
        return self.weight.float() + 1 if self.from_one else self.weight.float()

    @override
    def normalise(self, x_xD: Tensor) -> Tensor:
        return x_xD.new_empty(x_xD.shape) if x_xD.is_meta else self.backend.norm(self, x_xD)

    @override
    def computed(self, x_xD: Tensor) -> Tensor:
        normed = functional.rms_norm(x_xD.float(), (self.width,), eps=self.eps)
        if self.cast_last:
            return (normed * self.scale).to(x_xD.dtype)
        # The cast comes before the weight: Llama's order, which decides the last bit in bf16.
        return self.weight * normed.to(x_xD.dtype)

    @property
    def rounds_alike(self) -> bool:
        """Whether our kernels round at the same point as this RMS norm, so that results are equal to PyTorch's."""
        return self.from_one or not self.cast_last or self.weight.dtype == torch.float32


class UnweightedRMSNorm(RMSNorm):
    """RMS normalisation without a learned weight, x / sqrt(mean(x^2) + eps), for queries and keys (Llama 4)."""

    FLOPS_PER_ELEMENT = 3

    def __init__(self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1) -> None:
        super().__init__(width, eps, dtype, per_token)
        del self.weight
        self.register_buffer("weight", torch.ones(width, dtype=dtype, device="cpu"), persistent=False)  # for kernels


class SumOfSquares(RowOp):
    """The sum of squares of a rank's part of a vector, for a norm over all ranks' parts."""

    kind = "norm"
    kernel_name = RMSNorm.kernel_name
    number_format = ""

    @override
    def forward(self, x_xW: Tensor) -> Tensor:
        """Return the sum of squares of x_xW [..., width]: fp32 [..., 1]."""
        if x_xW.is_meta:
            return x_xW.new_empty(*x_xW.shape[:-1], 1, dtype=torch.float32)
        return x_xW.float().square().sum(dim=-1, keepdim=True)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of sums of squares: two operations per entry, each of which is read once."""
        elements = rows * self.width
        return Cost({"fp32": 2.0 * elements}, activation_bytes=elements * self.dtype.itemsize + 4 * rows)


class RMSNormBySquares(RMSNorm):
    """A rank's part of an RMS norm over the vectors of all ranks, given their total sum of squares."""

    unnamed = True
    plain = False

    def __init__(self, width: int, eps: float, dtype: torch.dtype, shard: Shard, repeated: int) -> None:
        """Create one rank's part of an RMS norm over the vectors of all ranks.

        Args:
            width: The number of entries over all ranks.
            eps: The constant added to the mean square.
            dtype: The model's dtype.
            shard: This rank's share of the entries.
            repeated: The number of ranks that hold the same part, each of which adds its squares to the sum.
        """
        super().__init__(shard.part(width, "entries"), eps, dtype, cast_last=True)
        self.shard, self.entries = shard, width * repeated

    @override
    def forward(self, x_xW: Tensor, squares_x1: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise x_xW [..., own width] by the sum of squares of all ranks, fp32 [..., 1], to x's shape and dtype."""
        if x_xW.is_meta:
            return x_xW.new_empty(x_xW.shape)
        return (x_xW.float() * torch.rsqrt(squares_x1 / self.entries + self.eps) * self.scale).to(x_xW.dtype)


class LayerNorm(Norm):
    """Layer normalisation: (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., arXiv:1607.06450)."""

    FLOPS_PER_ELEMENT = 7  # mean, difference, square, sum, scale, weight, bias
    kernel_name = "norm.layer"

    def __init__(
        self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1, *, with_bias: bool = True
    ) -> None:
        super().__init__(width, eps, dtype, per_token)
        self.bias = weight(width, dtype=dtype) if with_bias else None
        if not with_bias:
            self.FLOPS_PER_ELEMENT = 6

    @override
    def computed(self, x_xD: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return functional.layer_norm(x_xD.float(), (self.width,), self.scale, bias, self.eps).to(x_xD.dtype)

    @override
    def signature(self) -> Hashable:
        return super().signature(), self.bias is None


class HeadLayerNorm(LayerNorm):
    """Layer normalisation of each head's vector, with a weight vector per head and no bias (Command R+)."""

    def __init__(self, heads: int, width: int, eps: float, dtype: torch.dtype, shard: Shard = WHOLE) -> None:
        """Create the layer norm of each head for this rank's heads.

        Args:
            heads: The number of heads over all ranks.
            width: The number of entries of a head.
            eps: The constant added to the variance.
            dtype: The model's dtype.
            shard: This rank's share of the heads.
        """
        own = shard.part(heads, "heads")
        super().__init__(width, eps, dtype, own, with_bias=False)
        self.shard, self.weight = shard, weight(own, width, dtype=dtype)

    @override
    def computed(self, x_xD: Tensor) -> Tensor:
        """Compute a layer norm of each head's vector [..., heads, width] in PyTorch."""
        return (functional.layer_norm(x_xD.float(), (self.width,), eps=self.eps) * self.scale).to(x_xD.dtype)


class AddNorm(Norm):
    """A residual addition followed by a norm of the sum, which one kernel may fuse.

    A fused kernel writes the sum and normalises it without reading it again.

    Attributes:
        multiplier: The factor on the added rows (Granite).
    """

    norm_part: ClassVar[str] = "normalise"
    """The name of the method that computes the norm after a residual addition."""
    parts: tuple[str, ...] = ("add", norm_part)

    def __init__(self, width: int, eps: float, dtype: torch.dtype, *, multiplier: float = 1.0, **options: bool) -> None:
        """Create a residual addition and the norm after it.

        Args:
            width: The number of entries of a row.
            eps: The norm's constant under the root.
            dtype: The model's dtype.
            multiplier: The factor on the added rows.
            options: Further options of the norm.
        """
        super().__init__(width, eps, dtype, **options)
        self.multiplier = multiplier

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Add y_TD to x_TD [rows, width] in place, and return the sum and its norm."""
        return self.in_parts(x_TD, y_TD)

    def in_parts(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add and normalise in separate calls, as PyTorch does, and return the sum and its norm."""
        sum_TD = self.add(x_TD, y_TD)
        return sum_TD, self.normalise(sum_TD)

    def add(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """Add y_TD to the residual stream x_TD in place and return x_TD.

        The caller of a layer keeps a reference to x, so a new tensor would hold the residual stream twice in memory.
        """
        if x_TD.is_meta:
            return x_TD
        return x_TD.add_(y_TD if self.multiplier == 1 else y_TD * self.multiplier)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a residual addition and a norm: two tensors are read and two written."""
        elements = rows * self.width
        norm, added = super().cost_of(rows), Cost({"fp32": float(self._add_flops * elements)})
        return structs.replace(norm + added, activation_bytes=4 * elements * self.weight.element_size())

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """Return the launches of a residual addition and of the norm, which reads the sum from memory."""
        elements, width = rows * self.width, self.weight.element_size()
        add = Cost({"fp32": float(self._add_flops * elements)}, activation_bytes=3 * elements * width)
        return (
            Launch("elementwise.add", self.number_format, 1, add, "add"),
            Launch(self.kernel_name, self.number_format, 1, super().cost_of(rows), self.norm_part),
        )

    @property
    def _add_flops(self) -> int:
        """The FLOPs per entry of a residual addition."""
        return 1 if self.multiplier == 1 else 2

    @override
    def signature(self) -> Hashable:
        return super().signature(), self._add_flops


class AddRMSNorm(AddNorm, RMSNorm):
    """A residual addition followed by an RMS norm."""

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.in_parts(x_TD, y_TD) if x_TD.is_meta else self.backend.add_norm(self, x_TD, y_TD)


class AddLayerNorm(AddNorm, LayerNorm):
    """A residual addition followed by a layer norm."""
