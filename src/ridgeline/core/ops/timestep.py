"""Sinusoidal embeddings of a timestep, by which a denoiser receives the noise level of its image."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.elementwise import RowOp


class TimestepSinusoids(RowOp):
    """The cosines, then the sines, of a time at `width` / 2 frequencies from 1 down to nearly 1 / 10000.

    The sinusoids are those of Vaswani et al., arXiv:1706.03762, as Ho et al., arXiv:2006.11239, use them.
    """

    kernel_name = "elementwise.angles"
    FLOPS_PER_ELEMENT = 2
    """FLOPs per number of a timestep's embedding: the angle, and cos or sin counted as one."""

    def __init__(self, width: int, dtype: torch.dtype, *, scale: float = 1.0) -> None:
        """Create the op that embeds timesteps as sinusoids.

        Args:
            width: The entries of an embedding, an even number.
            dtype: The dtype of the embeddings.
            scale: The factor on times.
        """
        super().__init__(width, dtype)
        self.scale = scale

    @override
    def forward(self, times_P: Tensor) -> Tensor:
        """Return the sinusoidal embeddings of timesteps, fp32 [images]: [images, width]."""
        if times_P.is_meta:
            return times_P.new_empty(len(times_P), self.width, dtype=self.dtype)
        half = self.width // 2
        # This order rounds as the references do; the last digits of a large angle change the result.
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
    def extra_repr(self) -> str:
        return f"{self.width}, scale {self.scale:g}"
