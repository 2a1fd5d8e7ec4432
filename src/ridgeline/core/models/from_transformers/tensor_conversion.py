"""TensorConversion: tensors of a released checkpoint that become other tensors, such as experts stacked into one.

transformers defines the operations (`WeightConverter` in core_model_loading.py), and they compute the result. The usual
ones only place the sources side by side. Then a loader can fill the result source by source, without a second copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Converter = Any
"""A `WeightConverter` of transformers, which is no dependency of the base install."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorConversion:
    """A conversion of some tensors of a released checkpoint into one or several tensors of a model."""

    first: str
    """The class's name of the first tensor that a conversion makes."""
    sources: Mapping[str, Sequence[str]]
    """The names of a conversion's source tensors, in order, by the pattern of the converter that they match."""
    converter: Converter
    model: Any
    """An object with the method `get_parameter`, by which an operation asks for the shape and dtype of its result."""
    config: Any
    """The config of transformers, from which an operation reads numbers of heads."""
    named: Callable[[str], str] = str
    """Returns the model's name of a tensor, given the class's name."""
    missing: Sequence[str] = ()
    """The names of source tensors that the checkpoint lacks."""
    extra: Sequence[str] = ()
    """The names of source tensors that are no part of the result, such as experts beyond the config's number."""

    @property
    def target(self) -> str:
        """The model's name of the first tensor that a conversion makes."""
        return self.named(self.first)

    @property
    def names(self) -> list[str]:
        """The names of all source tensors of a conversion, in order."""
        return [name for group in self.sources.values() for name in group]

    def convert(self, read: Callable[[str], Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors that a conversion makes, by name.

        Args:
            read: Returns a source tensor by its name. Tensors on meta give the shapes and dtypes of the results.

        Raises:
            ValueError: If the shapes of the sources do not fit together.
        """
        converter = deepcopy(self.converter)
        for pattern, names in self.sources.items():
            for name in names:
                converter.add_tensor(self.first, name, pattern, read(name))
        try:
            made = converter.convert(self.first, model=self.model, config=self.config)
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ValueError(str(error).partition("\n")[0]) from None
        return {self.named(name): each[0] if isinstance(each, list) else each for name, each in made.items()}

    @property
    def is_placement(self) -> bool:
        """Whether a conversion only places its sources side by side, so that `placements` can fill the result."""
        kinds = tuple(type(operation).__name__ for operation in self.converter.operations)
        return kinds == ("Concatenate",) or (
            kinds in (("MergeModulelist",), ("MergeModulelist", "Concatenate"))
            and self.converter.operations[0].dim == 0
        )

    def placements(self, whole: Tensor, shape_of: Callable[[str], Sequence[int]]) -> Iterator[tuple[str, Tensor]]:
        """Yield each source's name with its part of the result, a view into `whole`.

        Args:
            whole: The unfilled result.
            shape_of: Returns the shape of a source tensor by its name.
        """
        operations = self.converter.operations
        stacks, dim, start = type(operations[0]).__name__ == "MergeModulelist", operations[-1].dim, 0
        if stacks and len(operations) == 1:
            yield from zip(self.names, whole, strict=True)
            return
        for names in self.sources.values() if stacks else [[name] for name in self.names]:
            width = shape_of(names[0])[dim - stacks]
            part = whole.narrow(dim, start, width)
            yield from zip(names, part if stacks else [part], strict=True)
            start += width


def describe_quantised_part(name: str, target: str) -> str:
    """Return the error message about a quantised tensor that would have to be merged with others."""
    return (
        f"tensor {name} is quantised, and is a part of {target}, which is only loaded from plain floats; "
        "price the model (ridgeline plan, show, trace --priced), or use the unquantized checkpoint"
    )
