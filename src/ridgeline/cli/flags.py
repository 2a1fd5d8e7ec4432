"""Groups of options that reach a command as one argument: a dataclass with an option per field.

`option` and `panel` declare an option that one group has. Options of several groups are types of options.py.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import partial, wraps
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

T = TypeVar("T")

_OPTION = "option"  # key in the metadata of a field
_EVERY = "every command"


def option(text: str | Mapping[str, str], *names: str, default: Any = None, **more: Any) -> Any:
    """Return a field of a group that is an option.

    An example is `speed: float = option("The speed of the replay.", default=1.0)`.

    Args:
        text: The help text. If only some commands have the option, or if it differs, the help text in each command; in
            all others the field is no option and keeps its default.
        names: The names of the option, by default that of the field. A bool that is False by default then has no
            `--no-` form.
        default: The default.
        more: Further arguments of typer.Option.
    """
    texts = {_EVERY: text} if isinstance(text, str) else text
    return field(default=default, metadata={_OPTION: _Declared(texts, names, more)})


class _Declared(NamedTuple):
    texts: Mapping[str, str]
    names: tuple[str, ...]
    more: Mapping[str, Any]


def panel(name: str) -> Callable[..., Any]:
    """Return `option` for options under a heading of the help page."""
    return partial(option, rich_help_panel=name)


def with_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command in whose signature the fields of each dataclass parameter appear as separate options.

    A field that is such a dataclass itself stands for its own fields. A call builds the dataclass objects and passes
    them to `function`, whose name is that of the command.
    """
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        single = parameter.name not in groups
        parameters += [parameter] if single else _parameters(groups[parameter.name], function.__name__)

    @wraps(function)
    def command(**values: Any) -> Any:
        made = {name: _build(group, values) for name, group in groups.items()}
        return function(**values, **made)

    ordered = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    command.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    return command


def _build(group: Any, values: dict[str, Any]) -> Any:
    """Return an object of a group, whose values are removed from `values`."""
    hints, made = get_type_hints(group), dict[str, Any]()
    for each in fields(group):
        if is_dataclass(hints[each.name]):
            made[each.name] = _build(hints[each.name], values)
        elif each.name in values:
            made[each.name] = values.pop(each.name)
    return group(**made)


def _parameters(group: Any, command: str) -> list[inspect.Parameter]:
    hints, parameters = get_type_hints(group, include_extras=True), list[inspect.Parameter]()
    for each in fields(group):
        hint = hints[each.name]
        if is_dataclass(hint):
            parameters += _parameters(hint, command)
        elif (own := _hint_in(command, each, hint)) is not None:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(each.name, kind, default=_default(each), annotation=own))
    return parameters


def _hint_in(command: str, each: "Field[Any]", hint: Any) -> Any:
    """Return the type of a field with its option in a command, or None if the command does not have the option."""
    declared: _Declared | None = each.metadata.get(_OPTION)
    if declared is None:
        return hint  # which has the option, or none: then typer derives one
    text = declared.texts.get(command, declared.texts.get(_EVERY))
    names = declared.names or ((_long_name(each),) if each.default is False else ())
    return None if text is None else Annotated[hint, typer.Option(*names, help=text, **declared.more)]


def _default(each: "Field[Any]") -> Any:
    assert each.default is not MISSING, f"{each.name} is an option and has no default"
    return each.default


def option_values(group: Any, *but: str) -> dict[str, Any]:
    """Return the values of a group's options by the names of their fields, except those of the fields `but`."""
    return {each.name: getattr(group, each.name) for each in fields(group) if each.name not in but}


def given_flags(group: Any, *but: str) -> list[str]:
    """Return the options of a group that differ from their defaults, as typed, except those of the fields `but`."""
    hints, given = get_type_hints(type(group), include_extras=True), list[str]()
    for each in fields(group):
        value = getattr(group, each.name)
        if each.name in but:
            continue
        if is_dataclass(value):
            given += given_flags(value, *but)
        elif value != each.default:
            given.append(_typed(each, hints[each.name]))
    return given


def _typed(each: "Field[Any]", hint: Any) -> str:
    """Return the first long name of a field's option, which by default is the name of the field."""
    declared: _Declared | None = each.metadata.get(_OPTION)
    names = [] if declared is None else [*declared.names]
    for shared in getattr(hint, "__metadata__", ()):  # typer.Option has the first name as its `default`
        names += [shared.default, *(shared.param_decls or ())]
    first = next((name for name in names if str(name).startswith("--")), _long_name(each))
    return str(first).partition("/")[0]  # of --name/--no-name


def _long_name(each: "Field[Any]") -> str:
    return f"--{each.name.replace('_', '-')}"


def build_from(group: Any, kind: type[T], **more: Any) -> T:
    """Return an object of another dataclass, whose fields are those of an option group with the same names.

    Args:
        group: The option group.
        kind: The dataclass.
        more: The values of further fields, and of those that differ from the option's value.
    """
    assert is_dataclass(kind), f"{kind} is no dataclass"
    values = option_values(group) | more
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
