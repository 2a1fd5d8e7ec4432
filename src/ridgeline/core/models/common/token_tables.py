"""The token tables of a model (of the encoder, the decoder and the head), however a checkpoint stores them.

A checkpoint may hold one table or several, under any of their names.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenTables:
    """A model's token tables (of encoder, decoder and head), by tensor name, and which of them share a tensor."""

    uses: dict[str, str]
    """The path of the module that uses each token table, by the name of the table's tensor.

    The first module always exists; that of the encoder is created if a checkpoint has a separate table for it.
    """
    ties: Mapping[str, str]
    """The table name that each tied table name shares its tensor with, in transformers' order of tying."""
    untied: Collection[str] = ()
    """The table names that the config unties; they are tied only if a checkpoint lacks them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The parameter that each table tensor of a checkpoint fills; "" if an equal tensor fills it already."""
    notes: tuple[str, ...] = ()
    """Lines that say how the config's tying contradicts the checkpoint's tables."""
    resolved: bool = False
    """Whether the token tables have been matched to a checkpoint."""

    @property
    def names(self) -> frozenset[str]:
        """The tensor names that a checkpoint may have for any of the token tables."""
        return frozenset((*self.ties, *self.ties.values()))

    def resolve_ties(self, there: Collection[str], same: Callable[[str, str], bool]) -> dict[str, str]:
        """Return the checkpoint tensor of each table name, as `PreTrainedModel.tie_weights` of transformers 5 chooses.

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
                one, other = held[target], held[source]
                if target not in self.untied and (one == other or same(one, other)):
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
