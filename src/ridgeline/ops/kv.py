"""What a layer keeps of the positions it has seen."""

from dataclasses import dataclass

import torch

from ridgeline.ops.formats import KVFormat, format_of
from ridgeline.ops.work import Reach, windowed


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The keys and values of one position in one layer. Layers with equal specs form a KV group.

    window: how many positions back a layer looks, itself included; None for all of them. stored: a narrower format
    than the model's dtype, priced but not run.
    """

    heads: int
    k_dim: int
    v_dim: int
    window: int | None
    dtype: torch.dtype
    stored: KVFormat | None = None

    @property
    def reach(self) -> Reach:
        """Which of the kept positions a query sees."""
        return windowed(self.window)

    @property
    def kept(self) -> bool:
        """Whether later steps read what a step wrote."""
        return self.reach.kind != "full"

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one position takes in one such layer."""
        numbers = self.heads * (self.k_dim + self.v_dim)
        if self.stored is None:
            return numbers * format_of(self.dtype).bytes
        return (numbers * self.stored.bits + 2 * self.heads * self.stored.scale_bits) / 8
