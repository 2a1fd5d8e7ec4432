"""The names that released checkpoints have for the matrices of a single expert of a transformers class.

A class keeps all experts of a layer in two parameters. Most released checkpoints have a tensor for each matrix of each
expert, which transformers stacks while it loads them (conversion_mapping.py). Our experts need no stacking: each matrix
is loaded by itself, which quantised checkpoints require.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from torch import nn

_SOURCE = re.compile(r".*\*\.(\w+)\.weight")  # of a conversion: any expert's matrix
_STACKED = ((("MergeModulelist", 0),), (("MergeModulelist", 0), ("Concatenate", 1)))
"""The operations, with their dimensions, that only place experts, and their gate and up matrices, side by side."""


def single_expert_names(model: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Return the released names of the matrices of one expert (gate if there is one, up and down), by module path.

    Modules are missing whose experts are not released one by one, or are changed in other ways than by stacking.

    Args:
        model: The class's module (a `PreTrainedModel`), before any of its modules is replaced by an op.
    """
    loading = import_module("transformers.core_model_loading")
    changes = import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
    converters = [each for each in changes if isinstance(each, loading.WeightConverter)]
    return dict(_named(model, converters)) if converters else {}


def _named(model: nn.Module, converters: Sequence[Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the paths of experts that are released one by one, and the names of their matrices."""
    for path, module in model.named_modules():
        for first, count in (("gate_up_proj", 2), ("up_proj", 1)):
            if isinstance(module._parameters.get(first), nn.Parameter):
                entering = _matrices(converters, f"{path}.{first}")
                leaving = _matrices(converters, f"{path}.down_proj")
                if (len(entering), len(leaving)) == (count, 1):
                    yield path, (*entering, *leaving)


def _matrices(converters: Sequence[Any], target: str) -> tuple[str, ...]:
    """Return the names of an expert's matrices that a class stacks into a parameter; none if it does not stack them."""
    for converter in reversed(converters):  # of several the last, as in transformers
        if not _makes(converter, target):
            continue
        operations = tuple((type(each).__name__, getattr(each, "dim", None)) for each in converter.operations)
        found = [_SOURCE.fullmatch(pattern) for pattern in converter.source_patterns]
        names = tuple(match[1] for match in found if match is not None)
        return names if len(names) == len(found) and operations == _STACKED[len(names) > 1] else ()
    return ()


def _makes(converter: Any, target: str) -> bool:
    """Return whether a conversion makes the parameter with a name, and only that."""
    scope, base = converter.scope_prefix, converter.base_model_prefix
    within = not scope or target.startswith((f"{scope}.", f"{base}.{scope}."))
    patterns = converter.target_patterns
    return within and len(patterns) == 1 and re.search(rf"(^|\.){patterns[0].lstrip('.^')}$", target) is not None
