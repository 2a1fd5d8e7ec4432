"""Storage: how a model is laid out in memory."""

from dataclasses import dataclass

import torch

from ridgeline.core.ops.number_formats import KVFormat
from ridgeline.core.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """dtype: of weights, activations and KV. shard: the part that this rank holds. kv: a narrower format of keys
    and values, which runs where it has a code. experts: the part of the experts that this rank holds where all else is
    whole on each rank, which has requests of its own; priced, not run. In what form matrices are stored is said of the
    model that is built (`Model.store`).
    """

    dtype: torch.dtype
    shard: Shard = WHOLE
    kv: KVFormat | None = None
    experts: Shard | None = None
