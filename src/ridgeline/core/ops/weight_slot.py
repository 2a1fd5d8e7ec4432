"""The slots of a model, for which a quantisation recipe chooses weight formats."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

WeightSlotKind = Literal["matrix", "expert", "router", "embedding", "head"]
"""The role of a weight, by which quantisation recipes choose its format."""


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A weight matrix or token table of a model whose weight format a quantisation recipe chooses."""

    name: str
    """The checkpoint's name of the module whose `weight` this is; for experts, of the first expert."""
    kind: WeightSlotKind
    inputs: int
    """The number of inputs over all ranks; for an embedding, the width of a row."""
    outputs: int
    """The number of outputs over all ranks; for an embedding, the number of entries."""
    spellings: tuple[str, ...] = ()
    """The names of the same module in other checkpoints and quantisers."""

    def is_named(self, by: Callable[[str], bool]) -> bool:
        """Return whether a predicate on module names holds for any name of the slot."""
        return any(map(by, (self.name, *self.spellings)))
