"""The kinds of values that translated formulas have, read from Python's annotations.

A translation needs them, because JavaScript has no operators for objects, and its empty objects are true.
"""

import collections.abc
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


class UntranslatableError(ValueError):
    """Python that is outside the subset which can be translated to JavaScript; its text, if any, is the reason."""


def need(holds: object, reason: str = "") -> None:
    """Refuse the expression or statement that is being translated, unless a condition holds.

    Raises:
        UntranslatableError: If it does not hold.
    """
    if not holds:
        raise UntranslatableError(reason)


@dataclass(frozen=True)
class Kind:
    """A kind of value: a number, a sequence of strings, an object of a class."""

    name: str
    """One of number, string, boolean, none, sequence, mapping, tuple, object and function."""
    parts: tuple["Kind", ...] = ()
    """The kinds of a sequence's item, of a mapping's key and value, of a tuple's items, or of a function's result."""
    of: type | None = None
    """The class of an object."""

    @property
    def is_container(self) -> bool:
        """Whether a value that has no items is false in Python, but true in JavaScript."""
        return self.name in ("sequence", "mapping", "tuple")


ATOM, UNARY, TIMES, PLUS, COMPARE, AND, OR, LOOSE = 9, 8, 7, 6, 5, 4, 3, 1
"""How tightly an operator of JavaScript binds; parentheses go around what binds less than its place needs."""
_RESERVED = {
    "arguments", "case", "catch", "const", "debugger", "default", "delete", "do", "enum", "eval", "export", "extends",
    "function", "instanceof", "interface", "let", "new", "null", "package", "private", "protected", "public", "static",
    "super", "switch", "this", "throw", "typeof", "undefined", "var", "void",
}  # fmt: skip

NUMBER, STRING, BOOLEAN, NONE = Kind("number"), Kind("string"), Kind("boolean"), Kind("none")
_PLAIN = {bool: BOOLEAN, int: NUMBER, float: NUMBER, str: STRING, types.NoneType: NONE, None: NONE}
_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable)


def kind_of(hint: Any) -> Kind:
    """Return the kind of value that an annotation describes; an optional value has the kind of the value.

    Raises:
        UntranslatableError: If the annotation has no counterpart in JavaScript.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, typing.NewType):
        return kind_of(hint.__supertype__)
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return kind_of(type(given[0]))
    if origin is typing.ClassVar:
        return kind_of(given[0])
    if origin in (typing.Union, types.UnionType):
        found = {kind for each in given if (kind := kind_of(each)) != NONE}
        if len(found) == 1:
            return found.pop()
    elif origin in (dict, Mapping):
        key, value = map(kind_of, given)
        if key in (STRING, NUMBER):
            return Kind("mapping", (key, value))
    elif origin is tuple and given[-1:] != (...,):
        return Kind("tuple", tuple(map(kind_of, given)))
    elif origin is tuple or origin in _SEQUENCES:
        return Kind("sequence", (kind_of(given[0]),))
    elif origin is collections.abc.Callable:
        return Kind("function", (kind_of(given[1]),))
    elif isinstance(hint, type) and origin is None and hint.__module__ not in ("builtins", "typing"):
        return Kind("object", of=hint)
    raise UntranslatableError(f"the annotation {_name(hint)} has no counterpart in JavaScript")


def kind_of_value(value: Any) -> Kind:
    """Return the kind of a constant of a module: a plain value, or a tuple, mapping or dataclass of them."""
    if isinstance(value, tuple | list) and value:
        kinds = tuple(map(kind_of_value, value))
        return Kind("sequence", kinds[:1]) if len(set(kinds)) == 1 else Kind("tuple", kinds)
    if isinstance(value, dict) and value:
        key, item = next(iter(value.items()))
        return Kind("mapping", (kind_of_value(key), kind_of_value(item)))
    if type(value) in _PLAIN:
        return _PLAIN[type(value)]
    if hasattr(type(value), "__dataclass_fields__") or isinstance(value, msgspec.Struct):
        return Kind("object", of=type(value))
    raise UntranslatableError(f"a constant that is a {type(value).__name__} has no counterpart in JavaScript")


def field_kind(owner: type, name: str) -> Kind | None:
    """Return the kind of a field of a class, or None if the class has no such field."""
    for each in owner.__mro__:
        hint = inspect.get_annotations(each).get(name)
        if hint is not None:
            return kind_of(evaluated(hint, vars(inspect.getmodule(each))))
    return None


def evaluated(hint: Any, names: Mapping[str, Any]) -> Any:
    """Return an annotation whose text, if it is one, is evaluated with the names of its module.

    Raises:
        UntranslatableError: If the annotation has a name that the module knows only while types are checked.
    """
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": hint}), dict(names))["it"]
    except NameError as error:
        raise UntranslatableError(f"the annotation {hint} has no value: {error}") from None


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


# -- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Js:
    """An expression in JavaScript, with its kind."""

    code: str
    kind: Kind
    level: int = ATOM
    """The level of the operator that is applied last; ATOM for a name or a call."""

    def at(self, level: int) -> str:
        """Return the code for a place whose operator binds with this level, in parentheses if these are needed."""
        return self.code if self.level >= level else f"({self.code})"


def safe_name(name: str) -> str:
    """Return a Python name, with an underscore after it if the name is a word of JavaScript's grammar."""
    return f"{name}_" if name in _RESERVED else name


def literal(value: Any) -> str:
    """Return a plain value, or a tuple, mapping, dataclass or struct of plain values, as JavaScript."""
    if value == math.inf:
        return "Infinity"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False)
