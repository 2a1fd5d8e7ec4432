"""Shard: which part of a tensor-parallel model this process holds (Megatron-LM, arXiv:1909.08053)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ONE_MACHINE = (1, 2, 4, 8)


class Indivisible(ValueError):
    """A model that so many devices cannot share equally."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size

    def part(self, total: int, what: str) -> int:
        """`total / size`. Raises Indivisible if it does not divide."""
        if total % self.size:
            *others, most = [str(size) for size in _ONE_MACHINE if total % size == 0]
            fitting = f"{', '.join(others)} or {most}" if others else most
            raise Indivisible(f"{total} {what} do not divide over {self.size} devices; give --devices {fitting}")
        return total // self.size

    def of_heads(self, kv_heads: int) -> "Shard":
        """How KV heads are divided: where there are fewer of them than devices, several devices hold the same one."""
        if kv_heads >= self.size or self.size % kv_heads:
            return self
        return Shard(self.rank * kv_heads // self.size, kv_heads)

    def if_divides(self, total: int) -> "Shard":
        """This shard, or the whole where `total` does not divide."""
        return self if total % self.size == 0 else WHOLE

    def slice(self, full: Tensor, dim: int, parts: Sequence[int] | None = None) -> Tensor:
        """This rank's part of a checkpoint tensor along `dim`; of each of the `parts` that it is fused from."""
        if self.size == 1:
            return full
        pieces = torch.split(full, list(parts), dim) if parts is not None else (full,)
        own = [piece.narrow(dim, self.rank * (n := piece.shape[dim] // self.size), n) for piece in pieces]
        return own[0] if len(own) == 1 else torch.cat(own, dim)


WHOLE = Shard()
