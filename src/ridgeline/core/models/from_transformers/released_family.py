"""ReleasedFamily: the family of a class of transformers, with the tensor names of its released checkpoints."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ridgeline.core.models.common.family import Family
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.tensor_conversion import TensorConversion


@dataclass(frozen=True, slots=True)
class ReleasedFamily(Family):
    """A family whose tensor names are those that transformers gives to the tensors of released checkpoints."""

    names: Callable[[], ReleasedNames] = field(kw_only=True)
    """Returns the names of the class; they are only needed when weights are loaded or quantised."""

    @override
    def model_name(self, name: str) -> str:
        return self.names().model_name(name)

    @override
    def checkpoint_names(self, name: str) -> tuple[str, ...]:
        return self.names().checkpoint_names(name)

    @override
    def conversions(self, names: Iterable[str]) -> Sequence[TensorConversion]:
        return self.names().conversions(names)

    @override
    def ignores(self, name: str) -> bool:
        return self.names().is_ignored(name)
