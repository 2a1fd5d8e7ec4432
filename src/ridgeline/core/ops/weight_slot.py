"""The slots of a model, for which a quantisation recipe chooses weight formats."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

WeightSlotKind = Literal["matrix", "expert", "router", "embedding", "head"]
"""The role of a weight (such as expert, router or head), by which quantisation recipes choose its format."""


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A weight matrix or token table of a model whose weight format a quantisation recipe chooses."""

    name: str
    """The checkpoint's name of the module that holds a weight; for experts, of the first expert's."""
    kind: WeightSlotKind
    inputs: int
    """The number of a weight's inputs over all ranks; for an embedding, the width of a row."""
    outputs: int
    """The number of a weight's outputs over all ranks; for an embedding, the number of entries."""
    spellings: tuple[str, ...] = ()
    """The names that other checkpoints and quantisers have for a weight's module."""

    def is_named(self, by: Callable[[str], bool]) -> bool:
        """Return whether a predicate on module names holds for any name of a weight's module."""
        return any(map(by, (self.name, *self.spellings)))
