"""Joint rows: those of each picture beside those of its text, and where in the order of either they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class JointRows:
    """order: where JoinRows takes each joint row from: rows of the sort that stands first, counted on by the other's.
    first, second: which joint rows are of either sort. All int64."""

    order: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, first: Sequence[int], second: Sequence[int], device: torch.device) -> "JointRows":
        """Of pictures that have so many rows of either sort, those of the first sort before those of the second."""
        pairs = zip(first, second, strict=True)
        is_second = torch.cat([torch.arange(one + other) >= one for one, other in pairs])
        order = torch.empty(len(is_second), dtype=torch.int64)
        order[~is_second] = torch.arange(sum(first))
        order[is_second] = torch.arange(sum(first), len(is_second))
        rows = ((~is_second).nonzero()[:, 0], is_second.nonzero()[:, 0])
        return cls(order.to(device), rows[0].to(device), rows[1].to(device))

    @classmethod
    def empty(cls, first: int, second: int, joint: int) -> "JointRows":
        """So many rows without numbers, for a model that is outlined."""
        return cls(*(torch.empty(count, dtype=torch.int64) for count in (joint, first, second)))
