"""Parts of denoisers whose norms and residual branches a condition modulates (adaLN-Zero: arXiv:2212.09748).

Shapes: N rows, R runs of rows that share a condition, such as those of an image, D hidden.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from ridgeline.core.models.common.decoder import MLP
from ridgeline.core.models.common.dimensions import Dimensions
from ridgeline.core.ops.modulation import AddGatedLayerNorm, Factor, ModulatedLayerNorm
from ridgeline.core.ops.norm import Norm

Factors = tuple[Tensor, ...]
"""The shift, scale and gate of each part of a denoiser's block, [runs, hidden] each."""
PART: tuple[Factor, ...] = ("shift", "scale", "gate")
"""The modulation factors of one part of a block, in the order in which checkpoints store them."""


class ResidualStream(NamedTuple):
    """The residual stream x + gate * y with a pending addition, which the next norm performs."""

    x_ND: Tensor
    """The rows of the residual stream before the pending addition."""
    y_ND: Tensor | None = None
    """The output of the last part, still to be added; None if there is none."""
    gate_RD: Tensor | None = None
    """The gate of each run of rows, which multiplies y; None for no gate."""


def entry(d: Dimensions, first: bool) -> Norm:
    """Return the first norm of a block; that of the `first` block has no residual addition to perform."""
    kind = ModulatedLayerNorm if first else AddGatedLayerNorm
    return kind(d.hidden, d.eps, d.dtype)


def enter(norm: nn.Module, stream: ResidualStream, factors: Factors, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return a residual stream's sum, and its shifted and scaled norm; `lengths` are the rows of each run."""
    shift, scale, *_ = factors
    if stream.y_ND is None:
        return stream.x_ND, norm(stream.x_ND, scale, shift, lengths)
    sum_ND, normed_ND = norm(stream.x_ND, stream.y_ND, stream.gate_RD, scale, shift, lengths)
    return sum_ND, normed_ND


def embedder(d: Dimensions, inputs: int, outputs: int, activation: str = "silu", *, bias: bool = True) -> MLP:
    """Return the MLP that embeds a condition or a text, whose inner width is that of its output."""
    up = {"linear_1": d.whole(inputs, outputs, bias=bias)}
    return MLP(replace(d, activation=activation), up, "linear_2", d.whole(outputs, outputs, bias=bias))
