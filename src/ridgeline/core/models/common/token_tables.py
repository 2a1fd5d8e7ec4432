"""The tables of token embeddings of a model (encoder's, decoder's and head's), which checkpoints hold once or several
times, under any of their names.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenTables:
    """The tables by the names that the model has for their tensors, and how transformers ties them.

    Attributes:
        uses: the path of the module that uses each table, by the name of its tensor. The first is always there; an
            encoder's is made if a checkpoint has another table for it.
        ties: the names that share a tensor, each with the name that it is tied to, in transformers' order.
        apart: the names that the config unties, which are tied only if a checkpoint lacks them.
        renamed: the place that a tensor fills, if it is not that of its name; "" if nothing reads it, because another
            tensor is the same.
        notes: lines on what the config says otherwise than the checkpoint.
        settled: whether a checkpoint has been looked at.
    """

    uses: dict[str, str]
    ties: Mapping[str, str]
    apart: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settled: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names that a checkpoint may have for any of the tables."""
        return frozenset((*self.ties, *self.ties.values()))

    def held(self, there: Collection[str], same: Callable[[str, str], bool]) -> dict[str, str]:
        """Return the tensor that each name stands for, as `PreTrainedModel.tie_weights` of transformers 5 decides it.

        Args:
            there: the names that the checkpoint has.
            same: whether two of them are equal.

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
        return first == second or same(first, second)
