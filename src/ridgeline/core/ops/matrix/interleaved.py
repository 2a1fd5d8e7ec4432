"""The interleaved memory layout of quantised matrices, for kernels that hold one output in each vector lane.

Shapes: O outputs, B bytes of a row of codes, G groups of inputs, P panels of LANES outputs.
"""

from torch import Tensor

LANES = 16
"""The number of a matrix's outputs that are interleaved, one per lane of a register in native/interleaved.h."""

PIECE = 4
"""The number of consecutive bytes of one output's codes that go into one vector lane."""


def codes_side_by_side(codes_OB: Tensor) -> Tensor:
    """Return a view of codes [O, B] in interleaved order: [P, B / PIECE, LANES, PIECE]."""
    return codes_OB.view(-1, LANES, codes_OB.shape[1] // PIECE, PIECE).transpose(1, 2)


def scales_side_by_side(scales_OG: Tensor) -> Tensor:
    """Return a view of scales or zero points [O, G] in interleaved order: [P, G, LANES]."""
    return scales_OG.view(-1, LANES, scales_OG.shape[1]).transpose(1, 2)


def by_row(interleaved: Tensor) -> Tensor:
    """Return a view of interleaved codes or scales of a matrix in the order of rows: [P, LANES, ...]."""
    return interleaved.transpose(1, 2)


def in_rows(interleaved: Tensor) -> Tensor:
    """Copy interleaved codes or scales of a matrix back into row order: [O, B] or [O, G]."""
    return by_row(interleaved).flatten(0, 1).flatten(1)
