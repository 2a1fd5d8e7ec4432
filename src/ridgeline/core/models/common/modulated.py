"""What denoisers share whose norms are shifted and scaled, and whose parts are gated, by a condition (adaLN-Zero:
Peebles and Xie, arXiv:2212.09748).

Shapes: N rows, R runs of rows that share a condition, such as those of a picture, D hidden.
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
"""Shift, scale and gate of each part of a block, each [runs, hidden]."""
PART: tuple[Factor, ...] = ("shift", "scale", "gate")
"""Factors of a part, in the order in which they are stored."""


class ResidualStream(NamedTuple):
    """x + gate * y: rows, and what the last part adds to them, which is left to the norm that follows."""

    x_ND: Tensor
    y_ND: Tensor | None = None
    gate_RD: Tensor | None = None


def entry(d: Dimensions, first: bool) -> Norm:
    """The norm that a block begins with. first: whether nothing is to be added to its stream."""
    kind = ModulatedLayerNorm if first else AddGatedLayerNorm
    return kind(d.hidden, d.eps, d.dtype)


def enter(norm: nn.Module, stream: ResidualStream, factors: Factors, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The stream's sum, and its norm, shifted and scaled; lengths: rows of each run."""
    shift, scale, *_ = factors
    if stream.y_ND is None:
        return stream.x_ND, norm(stream.x_ND, scale, shift, lengths)
    sum_ND, normed_ND = norm(stream.x_ND, stream.y_ND, stream.gate_RD, scale, shift, lengths)
    return sum_ND, normed_ND


def embedder(d: Dimensions, inputs: int, outputs: int, activation: str = "silu", *, bias: bool = True) -> MLP:
    """An MLP as wide within as what it gives: of a condition, or of a text."""
    up = {"linear_1": d.whole(inputs, outputs, bias=bias)}
    return MLP(replace(d, activation=activation), up, "linear_2", d.whole(outputs, outputs, bias=bias))
