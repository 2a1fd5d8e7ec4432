"""The part of a tensor-parallel model that this process holds (Megatron-LM, arXiv:1909.08053)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ONE_MACHINE = (1, 2, 4, 8)
"""The numbers of devices in one machine that error messages suggest."""


class Indivisible(ValueError):
    """The error for a model that cannot be divided equally over the number of devices."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's share of a model or tensor that `size` ranks divide equally."""

    rank: int = 0
    """The index, from 0, of a rank among those that divide a model."""
    size: int = 1
    """The number of ranks that divide a model or tensor."""

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size

    def part(self, total: int, what: str) -> int:
        """Return a rank's equal part, `total / size`, of a number such as that of attention heads.

        Args:
            total: The number to divide.
            what: The plural noun for it in the error message.

        Raises:
            Indivisible: If `size` does not divide `total`.
        """
        if total % self.size:
            *others, most = [str(size) for size in _ONE_MACHINE if total % size == 0]
            fitting = f"{', '.join(others)} or {most}" if others else most
            raise Indivisible(f"{total} {what} do not divide over {self.size} devices; give --devices {fitting}")
        return total // self.size

    def for_kv_heads(self, kv_heads: int) -> "Shard":
        """Return this rank's share of key-value heads.

        If there are fewer heads than ranks, several ranks hold the same head.
        """
        if kv_heads >= self.size or self.size % kv_heads:
            return self
        return Shard(self.rank * kv_heads // self.size, kv_heads)

    def if_divides(self, total: int) -> "Shard":
        """Return this shard if the number of ranks divides `total`, or WHOLE if not."""
        return self if total % self.size == 0 else WHOLE

    def slice(self, full: Tensor, dim: int, parts: Sequence[int] | None = None) -> Tensor:
        """Return this rank's slice of a checkpoint tensor.

        Args:
            full: The whole tensor.
            dim: The dimension that the ranks divide.
            parts: The sizes along `dim` of the tensors that are fused in this one; each is sliced separately.
        """
        if self.size == 1:
            return full
        pieces = torch.split(full, list(parts), dim) if parts is not None else (full,)
        own = [piece.narrow(dim, self.rank * (n := piece.shape[dim] // self.size), n) for piece in pieces]
        return own[0] if len(own) == 1 else torch.cat(own, dim)


WHOLE = Shard()
"""The shard (rank 0 of 1) of a model that is not divided."""
