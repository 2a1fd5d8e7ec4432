"""The places of a model whose number format a recipe chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

WeightSlotKind = Literal["matrix", "expert", "router", "embedding", "head"]


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The place of a matrix or of the token table in a model, by which its number format is chosen.

    name: what the checkpoint calls the module whose `weight` it is; of experts, the first one's. inputs and outputs: of
    all ranks together; of the embedding, the width of a row and the entries. spellings: the names that other
    checkpoints and quantisers have for the module.
    """

    name: str
    kind: WeightSlotKind
    inputs: int
    outputs: int
    spellings: tuple[str, ...] = ()

    def is_named(self, by: Callable[[str], bool]) -> bool:
        """Return whether a list of modules has the place under any of its names."""
        return any(map(by, (self.name, *self.spellings)))
