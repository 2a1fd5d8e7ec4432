"""Storage: how a model is laid out in memory."""

from dataclasses import dataclass

import torch

from ridgeline.ops.formats import KVFormat
from ridgeline.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of weights, activations and KV. shard: the part that this rank holds. kv: a narrower format of keys and
    values, priced, not run. In what form matrices are stored is said of the model that is built (`Model.store`)."""

    dtype: torch.dtype
    shard: Shard = WHOLE
    kv: KVFormat | None = None
