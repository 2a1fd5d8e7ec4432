"""The attention patterns of a transformers class, read from the functions that describe its attention masks.

Every class makes its masks with `transformers.masking_utils`, which describes a mask by a function of a query's and a
key's position. Evaluated at a few positions, it tells causal, sliding-window, chunked and full attention apart. A
`PatternMask` then takes the place of the mask that the class hands to its layers.
"""

from collections.abc import Callable
from functools import lru_cache
from types import CellType, FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.ops.torch_attention import visible
from ridgeline.core.ops.work import CAUSAL, FULL, AttentionPattern

MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""A function of batch, head, query position and key position that says whether the query sees the key."""

_SMALLEST = 8
"""The number of positions of which every query and key is compared, whatever the sizes in a mask are."""


class PatternMask:
    """A mask that is only known by its pattern, in the place of a tensor.

    Code that uses it as a tensor computes a part of attention by itself.
    """

    def __init__(self, pattern: AttentionPattern | None) -> None:
        self.pattern = pattern
        """The pattern; None if the engine does not know it."""

    def __getattr__(self, name: str) -> Any:
        """Refuse to be used as a tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _refuse()

    def __getitem__(self, _: Any) -> Any:
        """Refuse to be used as a tensor."""
        return _refuse()

    __add__ = __mul__ = __rsub__ = __getitem__

    def __invert__(self) -> Any:
        """Refuse to be used as a tensor."""
        return _refuse()

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        """Refuse to be an operand of a tensor's operation."""
        return _refuse()


def _refuse() -> NoReturn:
    """Raise NotBridged for a class whose code reads its mask."""
    raise NotBridged("it reads the attention mask in code of its own, which the engine cannot replace")


def pattern_mask(mask_function: MaskFunction, attention_mask: Tensor | None = None, **_: Any) -> PatternMask:
    """Return the attention pattern that a mask function describes, as an implementation of transformers' masks.

    Args:
        mask_function: The function that describes the mask.
        attention_mask: The padding, which the engine never has.
    """
    try:
        return PatternMask(_pattern_of(_structure(mask_function)))
    except TypeError:  # an unhashable value, such as a list
        return PatternMask(None)


class _Function:
    """A mask function and the numbers and functions that it closes over, by which two equal functions are found."""

    def __init__(self, function: FunctionType, key: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
        self.function, self.key, self.sizes = function, key, sizes

    @override
    def __hash__(self) -> int:
        return hash(self.key)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and self.key == other.key


def _structure(function: Any) -> _Function:
    """Return a mask function that computes with CPU tensors, with what distinguishes it from others.

    On the meta device a class makes tensors without values, such as the number of padding tokens. The engine's
    sequences have no padding, so these tensors are zeros.
    """
    cells, key, sizes = list[CellType](), list[Any](), list[int]()
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        if isinstance(value, tuple) and all(map(callable, value)):
            inner = [_structure(each) for each in value]
            value = tuple(each.function for each in inner)
            key += [each.key for each in inner]
            sizes += [size for each in inner for size in each.sizes]
        elif isinstance(value, FunctionType):
            one = _structure(value)
            value, sizes = one.function, [*sizes, *one.sizes]
            key.append(one.key)
        elif isinstance(value, Tensor):
            value = torch.zeros(value.shape, dtype=value.dtype, device="cpu")
            key.append(value.dtype)
        else:
            key.append(value)
            sizes += [value] if isinstance(value, int) else []
        cells.append(CellType(value))
    rebuilt = FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(cells))
    return _Function(rebuilt, (function.__code__, *key), tuple(sizes))


@lru_cache(maxsize=64)
def _pattern_of(mask: _Function) -> AttentionPattern | None:
    """Return the pattern that agrees with a mask wherever patterns of its sizes differ, or None if there is none."""
    sizes = sorted({size for size in mask.sizes if size > 0})
    kinds = [AttentionPattern(kind, size) for size in sizes for kind in ("window", "chunked", "local")]
    reach = 2 * max(sizes, default=0) + _SMALLEST
    edges = {edge for size in sizes for edge in (size - 1, size, size + 1, 2 * size - 1, 2 * size)}
    query_Q = torch.tensor(sorted({*range(_SMALLEST), *edges, reach - 1}), device="cpu")
    key_L = torch.arange(reach, device="cpu")
    zero = torch.zeros((), dtype=torch.int64, device="cpu")
    try:
        seen_QL = mask.function(zero, zero, query_Q[:, None], key_L[None])
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return None
    if not isinstance(seen_QL, Tensor):
        seen_QL = torch.tensor(seen_QL, device="cpu")
    seen_QL = seen_QL.broadcast_to(len(query_Q), reach)
    for pattern in (CAUSAL, FULL, *kinds):
        if torch.equal(seen_QL, visible(pattern, query_Q[:, None], key_L[None])):
            return pattern
    return None
