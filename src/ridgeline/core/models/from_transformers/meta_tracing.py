"""The tracing of a transformers class on the meta device, where tensors have shapes and no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from ridgeline.core.models.common.priced_module import PricedModule, call_hooks
from ridgeline.core.models.from_transformers.class_code_ops import ClassOp
from ridgeline.core.models.from_transformers.class_ops import ClassRMSNorm
from ridgeline.core.models.from_transformers.cost_fit import NotLinear
from ridgeline.core.models.from_transformers.not_bridged import NotBridged, summarise_error
from ridgeline.core.models.from_transformers.routed_experts import RoutedExperts

TRACED_ROWS = 13
"""The rows of a trace that `observing` watches: a number that no other size of a model is."""


_READS_VALUES = "its code depends on the values of tensors, which a trace does not have"


@contextmanager
def tracing() -> Iterator[None]:
    """Raise NotBridged instead of any error with which the code of a class fails while it is traced."""
    try:
        yield
    except NotBridged:
        raise
    except Exception as error:  # code that reads its mask, or values of rows, may fail in any way
        raise NotBridged(untraceable(error)) from None


def untraceable(error: Exception) -> str:
    """Return why a class cannot be traced on the meta device, as a clause, from the error of its code."""
    if isinstance(error, NotBridged | NotLinear):
        return str(error)
    if isinstance(error, NotImplementedError) or ("item()" in str(error) and "meta" in str(error)):
        return _READS_VALUES
    if isinstance(error, AttributeError) and "Config' object" in str(error):
        return f"its code reads {error.name} of its config, which has none"
    return f"its code cannot be traced ({summarise_error(error)})"


def accepted(module: nn.Module, **given: Any) -> dict[str, Any]:
    """Return those of some arguments that the forward method of a class takes by name."""
    names = signature(module.forward).parameters
    return {name: value for name, value in given.items() if name in names}


class AssumesTrue(TorchFunctionMode):
    """The mode in which a test of values on the meta device is true.

    Classes ask whether no row is padding, or whether all rows are of one sequence, and then need no mask.
    """

    @override
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args[0] if args and isinstance(args[0], Tensor) and args[0].is_meta else None
        if given is not None and (
            function is Tensor.__bool__ or (function is Tensor.item and given.dtype == torch.bool)
        ):
            return True
        if given is not None and function is Tensor.__contains__:  # such as: is a row padding?
            return False
        if given is not None and function is Tensor.tolist and given.dim() == 1:
            return [UnknownCount() for _ in range(len(given))]
        return function(*args, **(kwargs or {}))


class UnknownCount(int):
    """An entry of a list of integers that a trace has no values for, such as the rows of each expert.

    It may be passed on to one of our ops. Code that computes with it cannot be traced.
    """

    def _refuse(self, *_: Any) -> Any:
        raise NotBridged(_READS_VALUES)

    __bool__ = __int__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __hash__ = _refuse


class AnswersOne(AssumesTrue):
    """The mode in which values of meta tensors are true or 1, such as lengths that a class only checks."""

    @override
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.item, Tensor.__int__) and args[0].is_meta and args[0].dtype != torch.bool:
            return 1
        return super().__torch_function__(function, types, args, kwargs)


@contextmanager
def observing(model: PricedModule, *, tokens_only: bool = False) -> Iterator[None]:
    """Record the sizes of the ops' calls in a trace of TRACED_ROWS rows, which runs while the context is open.

    Args:
        model: The model.
        tokens_only: Whether calls whose rows are no tokens, such as those of relative positions, are left out.
    """

    def observe(_: str, op: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if tokens_only and TRACED_ROWS not in rows_of_call(inputs, output).shape:
            return
        if isinstance(op, ClassOp | ClassRMSNorm | RoutedExperts):
            op.observe(inputs, output, TRACED_ROWS)

    with call_hooks(model.ops(), observe):
        yield


def rows_of_call(inputs: tuple[Any, ...], output: Any) -> Tensor:
    """Return the tensor whose rows a call of an op runs over: its first input, or the result if that is a mere size."""
    first: Tensor = inputs[0] if isinstance(inputs[0], Tensor) else output
    return first
