"""Storage: how a model is laid out in memory."""

from dataclasses import dataclass

import torch

from ridgeline.ops.formats import KVFormat, WeightFormat
from ridgeline.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of weights, activations and KV. shard: the part that this rank holds.

    weights: a narrower format of the matrices in the blocks (embedding, head, router and norms are exempt, as
    quantisers leave them). kv: a narrower format of keys and values. Both are priced, not run.
    """

    dtype: torch.dtype
    shard: Shard = WHOLE
    weights: WeightFormat | None = None
    kv: KVFormat | None = None

    @property
    def runs(self) -> bool:
        """Whether this version runs a model stored so, or only prices it."""
        return self.weights is None and self.kv is None
