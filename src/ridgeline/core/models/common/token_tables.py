"""The token tables of a model (of the encoder, the decoder and the head), however a checkpoint stores them.

A checkpoint may hold one table or several, under any of their names.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenTables:
    """The token tables by the model's names for their tensors, and how transformers ties them."""

    uses: dict[str, str]
    """The path of the module that uses each table, by the name of the table's tensor.

    The first module always exists; that of the encoder is created if a checkpoint has a separate table for it.
    """
    ties: Mapping[str, str]
    """The name that each tied name shares its tensor with, in the order in which transformers ties them."""
    apart: Collection[str] = ()
    """The names that the config unties; they are tied only if a checkpoint lacks them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The parameter that each table tensor of the checkpoint fills; "" if none, because an equal tensor fills it."""
    notes: tuple[str, ...] = ()
    """Lines that say how the config contradicts the checkpoint."""
    settled: bool = False
    """Whether the tables have been matched to a checkpoint."""

    @property
    def names(self) -> frozenset[str]:
        """The names that a checkpoint may have for any of the tables."""
        return frozenset((*self.ties, *self.ties.values()))

    def held(self, there: Collection[str], same: Callable[[str, str], bool]) -> dict[str, str]:
        """Return the tensor that each name stands for, as `PreTrainedModel.tie_weights` of transformers 5 decides it.

        Args:
            there: The names that the checkpoint has.
            same: The function that compares two tensors by name.

        Returns:
            The tensors by name, without the names for which there is none.
        """
        held = {name: name for name in self.names if name in there}
        pairs = list(self.ties.items())
        for number, (target, source) in enumerate(pairs, start=1):
            if target in held and source in held:
                if target not in self.apart and self._same(held[target], held[source], same):
                    held[target] = held[source]
            elif target in held:
                held[source] = held[target]
            elif source in held:
                held[target] = held[source]
            else:
                later = (name for name, other in pairs[number:] if other == source and name in held)
                if (found := next(later, None)) is not None:
                    held[target] = held[found]
        return held

    @staticmethod
    def _same(first: str, second: str, same: Callable[[str, str], bool]) -> bool:
        """Return whether two names stand for the same or equal tensors."""
        return first == second or same(first, second)
