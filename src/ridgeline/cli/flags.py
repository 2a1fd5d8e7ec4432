"""Groups of options that reach a command as one argument: a dataclass with an option per field."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command in whose signature the fields of each dataclass parameter appear as separate options.

    A call builds the dataclass objects and passes them to `function`.
    """
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        single = parameter.name not in groups
        parameters += [parameter] if single else _parameters(groups[parameter.name])

    @wraps(function)
    def command(**values: Any) -> Any:
        made = {
            name: group(**{each.name: values.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        return function(**values, **made)

    ordered = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    return command


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=_default(each), annotation=hints[each.name]
        )
        for each in fields(group)
    ]


def _default(each: "Field[Any]") -> Any:
    assert each.default is not MISSING, f"{each.name} is an option and has no default"
    return each.default
