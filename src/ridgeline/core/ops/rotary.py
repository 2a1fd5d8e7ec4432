"""Rotary position embedding (RoPE: Su et al., arXiv:2104.09864) and the scalings that extend its context.

Shapes: T rows of a step, H pairs of entries.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Op, OpBackend


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: positions are divided by `factor` (Chen et al., arXiv:2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The RoPE scaling of Llama 3.1: low frequencies divided by `factor`, high ones unchanged, a ramp in between.

    It follows Llama 3.1's reference code.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Yarn:
    """The YaRN scaling: NTK-by-parts interpolation and an attention temperature (Peng et al., arXiv:2309.00071)."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRope:
    """The LongRoPE scaling: a divisor for each frequency and an attention temperature (arXiv:2402.13753)."""

    factors: tuple[float, ...]
    """The LongRoPE divisor of each of the dim / 2 rotary frequencies."""
    magnitude: float
    """The factor of LongRoPE's attention temperature on cos and sin."""


Scaling = LinearScaling | Llama3Scaling | Yarn | LongRope
"""The parameters of a method to extend the context of rotary position embedding; their class says which method."""
Angles = tuple[Tensor, ...]
"""The rotation of each row's position: cos and sin, fp32 [rows, 1, dim / 2] each.

If queries are scaled by their position, a third tensor has the scales, fp32 [rows, 1, 1] (`core/ops/query_scale.py`).
"""


@dataclass(frozen=True, slots=True)
class Rope:
    """The parameters of a rotary embedding, which rotates the first `dim` entries of each head with base `theta`."""

    dim: int
    theta: float
    scaling: Scaling | None = None
    interleaved: bool = False
    """Whether rotated pairs are neighbouring entries of a head (DeepSeek, GLM, Cohere), not entries dim / 2 apart."""

    def frequencies(self) -> Tensor:
        """Return the rotation in radians per position of each pair of a head's entries, fp32 [dim / 2]."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device="cpu") / self.dim
        inverse = 1.0 / self.theta**exponents
        match self.scaling:
            case None:
                return inverse
            case LinearScaling(factor):
                return inverse / factor
            case Llama3Scaling() as scaling:
                return _llama3(inverse, scaling)
            case Yarn() as scaling:
                return _yarn(inverse, scaling, self)
            case LongRope(factors):
                return inverse / torch.tensor(factors, dtype=torch.float32, device="cpu")

    @property
    def magnitude(self) -> float:
        """The factor of YaRN and LongRoPE on cos and sin; 1 for every other scaling."""
        if isinstance(self.scaling, LongRope):
            return self.scaling.magnitude
        if not isinstance(self.scaling, Yarn):
            return 1.0
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        return 0.1 * math.log(self.scaling.factor) + 1.0 if self.scaling.factor > 1 else 1.0


def _llama3(inverse: Tensor, s: Llama3Scaling) -> Tensor:
    """Return rotary frequencies with Llama 3.1's scaling."""
    wavelength = 2 * math.pi / inverse
    ramp = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    keep = ramp.clamp(0, 1)
    return keep * inverse + (1 - keep) * inverse / s.factor


def _yarn(inverse: Tensor, s: Yarn, rope: Rope) -> Tensor:
    """Return rotary frequencies with YaRN's scaling."""

    def dim_of(rotations: float) -> float:
        """Return the (fractional) index of the pair that rotates this often over YaRN's original context."""
        return rope.dim * math.log(s.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dim_of(s.beta_fast), dim_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    span = (high - low) or 1e-3  # as in the reference, against a ramp of width 0
    interpolate = ((torch.arange(rope.dim // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
    return inverse / s.factor * interpolate + inverse * (1 - interpolate)


class RotaryBackend(OpBackend):
    """The methods of a backend that rotary tables call, implemented in PyTorch."""

    def angles(self, op: "RotaryTable", positions_T: Tensor) -> Angles:
        """Return cos and sin of the rotary angles of int64 positions: fp32 [T, 1, dim / 2] each."""
        return op.computed(positions_T)


class RotaryTable(Op):
    """The op that computes cos and sin of a step's positions, once for all layers."""

    kind = "elementwise"
    kernel_name = "elementwise.angles"
    backend: RotaryBackend = RotaryBackend()
    frequencies: Tensor

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.rope = rope
        self.register_buffer("frequencies", rope.frequencies(), persistent=False)  # not in checkpoints

    @override
    def forward(self, positions_T: Tensor) -> Angles:
        """Return cos and sin of the rotary angles of int64 positions [rows]: fp32 [rows, 1, dim / 2] each."""
        if positions_T.is_meta:
            angle_T1H = self.frequencies.new_empty(len(positions_T), 1, len(self.frequencies), device="meta")
            return angle_T1H, angle_T1H
        return self.backend.angles(self, positions_T)

    def computed(self, positions_T: Tensor) -> Angles:
        """Compute cos and sin of rotary angles in PyTorch."""
        angles = positions_T[:, None, None].float() * self.frequencies.to(positions_T.device)
        return angles.cos() * self.rope.magnitude, angles.sin() * self.rope.magnitude

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the cost of a rotary table: two operations per cosine and per sine, which are written in fp32."""
        elements = rows * self.rope.dim
        return Cost(flops={"fp32": float(2 * elements)}, activation_bytes=elements * 4)

    @override
    def signature(self) -> Hashable:
        return self.rope

    @override
    def extra_repr(self) -> str:
        return f"{self.rope.dim}, theta {self.rope.theta:g}"


class AxialRotaryTable(Op):
    """The op that computes cos and sin of positions with several coordinates, once for all layers.

    Each coordinate rotates its own entries, with the frequencies of a Rope as wide as these (axial RoPE: Heo et al.,
    arXiv:2403.13298).
    """

    kind = "elementwise"
    kernel_name = "elementwise.angles"
    frequencies: Tensor
    axis: Tensor

    def __init__(self, axes: Sequence[int], theta: float) -> None:
        """Create the table of rotary angles for positions with several coordinates.

        Args:
            axes: The number of entries that each coordinate rotates, even numbers that add up to the head dimension.
            theta: The base of the frequencies.
        """
        super().__init__()
        self.axes, self.theta = tuple(axes), theta
        # In float64: an image's coordinates follow its text's, and fp32 loses digits of such large angles.
        exponents = [torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width for width in axes]
        pairs = torch.tensor([width // 2 for width in axes], device="cpu")
        self.register_buffer("frequencies", 1.0 / theta ** torch.cat(exponents), persistent=False)
        self.register_buffer("axis", torch.arange(len(axes), device="cpu").repeat_interleave(pairs), persistent=False)

    @override
    def forward(self, positions_TA: Tensor) -> Angles:
        """Return cos and sin for int64 positions [rows, coordinates]: fp32 [rows, 1, entries / 2] each."""
        if positions_TA.is_meta:
            angle_T1H = positions_TA.new_empty(len(positions_TA), 1, len(self.axis), dtype=torch.float32)
            return angle_T1H, angle_T1H
        own_TH = positions_TA.index_select(1, self.axis.to(positions_TA.device))
        angles_TH = (own_TH * self.frequencies.to(positions_TA.device)).float()
        return angles_TH[:, None].cos(), angles_TH[:, None].sin()

    @override
    def cost_of(self, rows: int) -> Cost:
        elements = rows * sum(self.axes)
        return Cost(flops={"fp32": float(2 * elements)}, activation_bytes=elements * 4)

    @override
    def signature(self) -> Hashable:
        return self.axes, self.theta

    @override
    def extra_repr(self) -> str:
        return f"{' + '.join(map(str, self.axes))}, theta {self.theta:g}"


def rotate(x_THD: Tensor, angles: Angles, start: int = 0, *, interleaved: bool = False) -> Tensor:
    """Rotate entries of each head by the angles of its position, in fp32: [rows, heads, D].

    Args:
        x_THD: The queries or keys [rows, heads, D].
        angles: The angles of the rows, [rows, 1, dim / 2] each, with start + dim at most D.
        start: The first entry to rotate.
        interleaved: Whether pairs are neighbours, as in `Rope`.
    """
    if x_THD.is_meta:
        return x_THD.new_empty(x_THD.shape)
    cos, sin = angles[:2]
    half = cos.shape[-1]
    stop = start + 2 * half
    turned = x_THD[..., start:stop].float()
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else torch.split(turned, half, dim=-1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        parts = [torch.stack(parts, dim=-1).flatten(-2)]
    if start:
        parts.insert(0, x_THD[..., :start].float())
    if stop < x_THD.shape[-1]:
        parts.append(x_THD[..., stop:].float())
    return torch.cat(parts, dim=-1).to(x_THD.dtype)
