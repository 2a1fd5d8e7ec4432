"""Storage: how a model is laid out in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from ridgeline.ops.formats import KVFormat
from ridgeline.ops.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of weights, activations and KV. shard: the part that this rank holds. kv: a narrower format of keys
    and values, which runs where it has a code. experts: the part of the experts that this rank holds where all else is
    whole on each rank, which has requests of its own; priced, not run. In what form matrices are stored is said of the
    model that is built (`Model.store`)."""

    dtype: torch.dtype
    shard: Shard = WHOLE
    kv: KVFormat | None = None
    experts: Shard | None = None


PlaceKind = Literal["matrix", "expert", "router", "embedding", "head"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a matrix or of the token table in a model, by which its number format is chosen.

    name: what the checkpoint calls the module whose `weight` it is; of experts, the first one's. inputs and outputs: of
    all ranks together; of the embedding, the width of a row and the entries. spellings: the names that other
    checkpoints and quantisers have for the module.
    """

    name: str
    kind: PlaceKind
    inputs: int
    outputs: int
    spellings: tuple[str, ...] = ()

    def is_named(self, by: Callable[[str], bool]) -> bool:
        """Return whether a list of modules has the place under any of its names."""
        return any(map(by, (self.name, *self.spellings)))
