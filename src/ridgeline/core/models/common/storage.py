"""The storage configuration of a model: its dtype, its part of the ranks and its KV format."""

from dataclasses import dataclass

import torch

from ridgeline.core.ops.number_formats import KVFormat
from ridgeline.core.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The dtype of a model, the part that this rank holds, and the format of its KV cache.

    The formats of its matrices are set on the built model (`Model.store`).
    """

    dtype: torch.dtype
    """The dtype of weights, activations and the KV cache."""
    shard: Shard = WHOLE
    """The share of a model that this tensor-parallel rank holds."""
    kv: KVFormat | None = None
    """The narrower format of cached keys and values, which runs if it has a `code`; None for the model's dtype."""
    experts: Shard | None = None
    """The share of a model's experts that this rank holds under expert parallelism, which is priced but does not run.

    Everything else is then whole on each rank, which has requests of its own.
    """
