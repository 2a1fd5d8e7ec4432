"""Normalisations, in fp32 whatever the model's dtype; alone, or with the residual addition that comes before.

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
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch, Op, OpBackend
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.stored_module import weight


class Norm(Op):
    """A normalisation of vectors of `width`. per_token: how many a row has: 1, or its heads where queries and keys are
    normalised.
    """

    kind = "norm"
    part = "norms"
    multiplier = 1.0  # of what is added before
    FLOPS_PER_ELEMENT: int
    kernel_name: ClassVar[str]

    def __init__(self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1) -> None:
        super().__init__()
        self.width, self.eps, self.per_token = width, eps, per_token
        self.weight = weight(width, dtype=dtype)

    @property
    def scale(self) -> Tensor:
        """What a normalised vector is multiplied with, fp32 [width]."""
        return self.weight.float()

    def normalise(self, x_xD: Tensor) -> Tensor:
        """x_xD [..., width] -> the same shape and dtype."""
        return x_xD.new_empty(x_xD.shape) if x_xD.is_meta else self.computed(x_xD)

    @abstractmethod
    def computed(self, x_xD: Tensor) -> Tensor:
        """Return the norm in PyTorch, of vectors that have numbers."""

    @override
    def forward(self, x_xD: Tensor) -> Tensor:
        """x_xD [..., width] -> the same shape and dtype."""
        return self.normalise(x_xD)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Its weights once, vectors in and out."""
        elements = rows * self.per_token * self.width
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            weight_bytes=self.stored_bytes(),
            activation_bytes=2 * elements * self.weight.element_size(),
        )

    @override
    def kernel(self, rows: int) -> str:
        return self.kernel_name

    @property
    @override
    def number_format(self) -> str:
        return format_of(self.weight.dtype).name

    @override
    def signature(self) -> Hashable:
        return self.width, self.per_token, self.weight.dtype

    @override
    def extra_repr(self) -> str:
        return f"{self.per_token} x {self.width}"


class NormBackend(OpBackend):
    """The part of a backend that RMS norms call, in PyTorch."""

    def norm(self, op: "RMSNorm", x_xD: Tensor) -> Tensor:
        """Return the RMS norm of vectors [..., D]."""
        return op.computed(x_xD)

    def add_norm(self, op: "AddRMSNorm", x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add y to x in its place, and return x and its RMS norm."""
        return op.in_parts(x_TD, y_TD)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467).

    plain: whether it is this formula and no more, after an addition or alone. from_one: whether the stored weight is
    what is added to 1 (Gemma). cast_last: whether the product with the weight is
    in fp32 (OLMo 2), as it always is of such a weight.
    """

    FLOPS_PER_ELEMENT = 4  # square, sum, scale, weight
    kernel_name = "norm.rms"
    plain: ClassVar[bool] = True
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
        """Whether our kernels round where it does."""
        return self.from_one or not self.cast_last or self.weight.dtype == torch.float32


class UnweightedRMSNorm(RMSNorm):
    """x / sqrt(mean(x^2) + eps), of queries and keys (Llama 4)."""

    FLOPS_PER_ELEMENT = 3

    def __init__(self, width: int, eps: float, dtype: torch.dtype, per_token: int = 1) -> None:
        super().__init__(width, eps, dtype, per_token)
        del self.weight
        self.register_buffer("weight", torch.ones(width, dtype=dtype, device="cpu"), persistent=False)  # for kernels


class SumOfSquares(Op):
    """What a rank knows of the size of a vector that several have parts of."""

    kind = "norm"

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.width, self.dtype = width, dtype

    @override
    def forward(self, x_xW: Tensor) -> Tensor:
        """x_xW [..., width] -> fp32 [..., 1]."""
        if x_xW.is_meta:
            return x_xW.new_empty(*x_xW.shape[:-1], 1, dtype=torch.float32)
        return x_xW.float().square().sum(dim=-1, keepdim=True)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Two operations an entry, which is read."""
        elements = rows * self.width
        return Cost({"fp32": 2.0 * elements}, activation_bytes=elements * self.dtype.itemsize + 4 * rows)

    @override
    def kernel(self, rows: int) -> str:
        return RMSNorm.kernel_name

    @override
    def signature(self) -> Hashable:
        return self.width, self.dtype


class RMSNormBySquares(RMSNorm):
    """A rank's part of an RMSNorm over more than it has, given the sum of squares of all."""

    unnamed = True
    plain = False

    def __init__(self, width: int, eps: float, dtype: torch.dtype, shard: Shard, repeated: int) -> None:
        """width: of all ranks together. repeated: how many ranks have the same part, and add its squares."""
        super().__init__(shard.part(width, "entries"), eps, dtype, cast_last=True)
        self.shard, self.entries = shard, width * repeated

    @override
    def forward(self, x_xW: Tensor, squares_x1: Tensor) -> Tensor:  # type: ignore[override]
        """x_xW [..., own width], squares_x1 fp32 [..., 1] -> as x."""
        if x_xW.is_meta:
            return x_xW.new_empty(x_xW.shape)
        return (x_xW.float() * torch.rsqrt(squares_x1 / self.entries + self.eps) * self.scale).to(x_xW.dtype)

    @override
    def take(self, name: str, full: Tensor) -> dict[str, Tensor]:
        return {name: self.shard.slice(full, 0)}


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., arXiv:1607.06450)."""

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
    """A LayerNorm of each head's vector, with a weight a head and no bias (Command R+)."""

    def __init__(self, heads: int, width: int, eps: float, dtype: torch.dtype, shard: Shard = WHOLE) -> None:
        """heads: of all ranks together."""
        own = shard.part(heads, "heads")
        super().__init__(width, eps, dtype, own, with_bias=False)
        self.shard, self.weight = shard, weight(own, width, dtype=dtype)

    @override
    def computed(self, x_xD: Tensor) -> Tensor:
        """As Norm.computed, of [..., heads, width]."""
        return (functional.layer_norm(x_xD.float(), (self.width,), eps=self.eps) * self.scale).to(x_xD.dtype)

    @override
    def take(self, name: str, full: Tensor) -> dict[str, Tensor]:
        return {name: self.shard.slice(full, 0)}


class AddNorm(Norm):
    """A residual addition and the norm of its sum. One boundary, which a kernel may do at once: the sum is written and
    normalised without being read again.

    multiplier: of what is added (Granite). norm_part: which part is the norm.
    """

    norm_part: ClassVar[str] = "normalise"
    parts: tuple[str, ...] = ("add", norm_part)

    def __init__(self, width: int, eps: float, dtype: torch.dtype, *, multiplier: float = 1.0, **options: bool) -> None:
        """options: those of the norm."""
        super().__init__(width, eps, dtype, **options)
        self.multiplier = multiplier

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Two of [rows, width] -> their sum, in the place of x, and its norm."""
        return self.in_parts(x_TD, y_TD)

    def in_parts(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add, then normalise: as `forward`."""
        sum_TD = self.add(x_TD, y_TD)
        return sum_TD, self.normalise(sum_TD)

    def add(self, x_TD: Tensor, y_TD: Tensor) -> Tensor:
        """X + y, in the place of x: a layer's caller holds on to what it passed in, so that a new tensor would be one
        more row of the stream.
        """
        if x_TD.is_meta:
            return x_TD
        return x_TD.add_(y_TD if self.multiplier == 1 else y_TD * self.multiplier)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Two streams in, two out."""
        elements = rows * self.width
        norm, added = super().cost_of(rows), Cost({"fp32": float(self._add_flops * elements)})
        return structs.replace(norm + added, activation_bytes=4 * elements * self.weight.element_size())

    @override
    def launches_of(self, rows: int) -> tuple[Launch, ...]:
        """As Op.launches_of: the sum goes through memory between the two."""
        elements, width = rows * self.width, self.weight.element_size()
        add = Cost({"fp32": float(self._add_flops * elements)}, activation_bytes=3 * elements * width)
        return (
            Launch("elementwise.add", self.number_format, 1, add, "add"),
            Launch(self.kernel_name, self.number_format, 1, super().cost_of(rows), self.norm_part),
        )

    @property
    def _add_flops(self) -> int:
        """Of an entry."""
        return 1 if self.multiplier == 1 else 2

    @override
    def signature(self) -> Hashable:
        return super().signature(), self._add_flops


class AddRMSNorm(AddNorm, RMSNorm):
    """AddNorm with an RMSNorm."""

    @override
    def forward(self, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.in_parts(x_TD, y_TD) if x_TD.is_meta else self.backend.add_norm(self, x_TD, y_TD)


class AddLayerNorm(AddNorm, LayerNorm):
    """AddNorm with a LayerNorm."""
