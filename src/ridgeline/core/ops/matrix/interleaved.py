"""Codes of several outputs side by side, as kernels read them whose registers have an output in each lane.

Shapes: O outputs, B bytes of a row of codes, G groups of inputs, P panels of LANES outputs.
"""

from torch import Tensor

LANES = 16
"""Outputs side by side: native/interleaved.h has a register's lanes for them."""

PIECE = 4
"""Bytes of a row that lie in one piece: a lane's."""


def codes_side_by_side(codes_OB: Tensor) -> Tensor:
    """[O, B] -> a view of it [P, B / PIECE, LANES, PIECE]."""
    return codes_OB.view(-1, LANES, codes_OB.shape[1] // PIECE, PIECE).transpose(1, 2)


def scales_side_by_side(scales_OG: Tensor) -> Tensor:
    """[O, G], of scales or zeros -> a view of it [P, G, LANES]."""
    return scales_OG.view(-1, LANES, scales_OG.shape[1]).transpose(1, 2)


def by_row(interleaved: Tensor) -> Tensor:
    """What either of these gave, as a view of it in the order of rows: [P, LANES, ...]."""
    return interleaved.transpose(1, 2)


def in_rows(interleaved: Tensor) -> Tensor:
    """The same, row after row in memory again: [O, B] or [O, G]."""
    return by_row(interleaved).flatten(0, 1).flatten(1)
