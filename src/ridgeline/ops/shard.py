"""Shard: which part of a tensor-parallel model this process holds."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size

    def part(self, total: int, what: str) -> int:
        """`total / size`. Raises ValueError if it does not divide."""
        if total % self.size:
            raise ValueError(f"{total} {what} do not divide over {self.size} devices; use a divisor of {total}")
        return total // self.size

    def slice(self, full: Tensor, dim: int | None) -> Tensor:
        """This rank's rows or columns of a checkpoint tensor; all of it where `dim` is None."""
        if dim is None or self.size == 1:
            return full
        step = full.shape[dim] // self.size
        return full.narrow(dim, self.rank * step, step)


WHOLE = Shard()
