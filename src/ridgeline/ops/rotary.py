"""Rotary position embedding (Su et al., arXiv:2104.09864) and the scalings that stretch its context."""

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.ops.cost import Cost
from ridgeline.ops.formats import format_of
from ridgeline.ops.op import Op, by_head
from ridgeline.ops.work import Work


@dataclass(frozen=True, slots=True)
class Linear:
    """Position interpolation: positions / factor (Chen et al., arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1's reference code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """NTK-by-parts interpolation and an attention temperature (Peng et al., arXiv:2309.00071)."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


Scaling = Linear | Llama3 | Yarn


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of the first `dim` entries of each head with base `theta`."""

    dim: int
    theta: float
    scaling: Scaling | None = None

    def frequencies(self) -> Tensor:
        """Radians a position for each pair of entries, fp32 [dim / 2]."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device="cpu") / self.dim
        inverse = 1.0 / self.theta**exponents
        match self.scaling:
            case None:
                return inverse
            case Linear(factor):
                return inverse / factor
            case Llama3() as scaling:
                return _llama3(inverse, scaling)
            case Yarn() as scaling:
                return _yarn(inverse, scaling, self)

    @property
    def magnitude(self) -> float:
        """What YaRN multiplies cos and sin with; 1 for every other scaling."""
        if not isinstance(self.scaling, Yarn):
            return 1.0
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        return 0.1 * math.log(self.scaling.factor) + 1.0 if self.scaling.factor > 1 else 1.0


def _llama3(inverse: Tensor, s: Llama3) -> Tensor:
    wavelength = 2 * math.pi / inverse
    ramp = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    keep = ramp.clamp(0, 1)
    return keep * inverse + (1 - keep) * inverse / s.factor


def _yarn(inverse: Tensor, s: Yarn, rope: Rope) -> Tensor:
    def dim_of(rotations: float) -> float:
        """The (fractional) pair that makes this many turns over the original context."""
        return rope.dim * math.log(s.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dim_of(s.beta_fast), dim_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    span = (high - low) or 1e-3  # the reference's way around a ramp of no width
    interpolate = ((torch.arange(rope.dim // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
    return inverse / s.factor * interpolate + inverse * (1 - interpolate)


class RotaryTable(Op):
    """cos and sin of the positions of a step, once for all layers."""

    kind = "elementwise"

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.rope = rope
        self.frequencies = rope.frequencies()  # a plain attribute: computed, not loaded, and never on meta

    def forward(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """positions_T int64 [rows] -> cos, sin, each fp32 [rows, 1, dim / 2]."""
        angles = positions_T[:, None, None].float() * self.frequencies.to(positions_T.device)
        return angles.cos() * self.rope.magnitude, angles.sin() * self.rope.magnitude

    def cost(self, work: Work) -> Cost:
        elements = work.tokens * self.rope.dim
        return Cost(flops={"fp32": float(2 * elements)}, activation_bytes=elements * 4)

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return "elementwise.angles"

    def signature(self) -> Hashable:
        return self.rope

    def extra_repr(self) -> str:
        return f"{self.rope.dim}, theta {self.rope.theta:g}"


class Rotate(Op):
    """Turns the queries and keys of one layer by their positions' angles ("rotate half" order, in fp32)."""

    kind = "elementwise"
    FLOPS_PER_ELEMENT = 3

    def __init__(self, heads: int, kv_heads: int, head_dim: int, rope: Rope, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dim, self.dtype = heads + kv_heads, head_dim, rope.dim, dtype

    def forward(self, q_THD: Tensor, k_TKD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q_THD [rows, heads, head_dim], k_TKD [rows, kv_heads, head_dim] -> the same shapes, turned."""
        return self._turn(q_THD, cos, sin), self._turn(k_TKD, cos, sin)

    def _turn(self, x_THD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = self.dim // 2
        first, second = x_THD[..., :half].float(), x_THD[..., half : self.dim].float()
        parts = [first * cos - second * sin, second * cos + first * sin]
        if self.dim < self.head_dim:
            parts.append(x_THD[..., self.dim :].float())
        return torch.cat(parts, dim=-1).to(x_THD.dtype)

    def cost(self, work: Work) -> Cost:
        elements = work.tokens * self.heads * self.head_dim
        return Cost(
            flops={"fp32": float(self.FLOPS_PER_ELEMENT * elements)},
            activation_bytes=2 * elements * format_of(self.dtype).bytes,
        )

    def kernel(self, work: Work) -> str:
        """As Op.kernel."""
        return by_head("elementwise.rotate", self.head_dim)

    @property
    def number(self) -> str:
        """As Op.number."""
        return format_of(self.dtype).name

    def signature(self) -> Hashable:
        return self.heads, self.head_dim, self.dim, self.dtype

    def extra_repr(self) -> str:
        return f"{self.heads} x {self.head_dim}"
