"""The translation of calls of Python's own functions and methods to JavaScript."""

import ast
import bisect
import builtins
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from js_kinds import ATOM, BOOLEAN, NONE, NUMBER, STRING, UNARY, Js, Kind, UntranslatableError, need

if TYPE_CHECKING:
    from js_expressions import Expressions

Call = Callable[["Expressions", ast.Call], Js]
Method = Callable[["Expressions", Js, ast.Call], Js]


def bound_arguments(function: Any, node: ast.Call, skipped: int = 0) -> list[ast.expr | None]:
    """Return the arguments of a call in the order of the function's parameters; None for one that has its default.

    Args:
        function: The function or class that is called.
        node: The call.
        skipped: The number of parameters, such as `self`, that are not among the arguments.

    Raises:
        UntranslatableError: If the call has starred arguments.
    """
    options = options_of(node)
    names = list(inspect.signature(function).parameters)[skipped:]
    given: dict[str, ast.expr] = dict(zip(names, node.args, strict=False)) | options
    last = max((names.index(name) for name in given), default=-1)
    return [given.get(name) for name in names[: last + 1]]


def options_of(node: ast.Call) -> dict[str, ast.expr]:
    """Return the keyword arguments of a call by name.

    Raises:
        UntranslatableError: If the call has starred arguments.
    """
    need(not any(isinstance(each, ast.Starred) for each in node.args))
    need(all(each.arg for each in node.keywords))
    return {str(each.arg): each.value for each in node.keywords}


# -- functions --------------------------------------------------------------------------------------------------------


def _direct(name: str, count: int = 1) -> Call:
    """Return the translation of a function of numbers that has a counterpart with the same arguments."""

    def translate(on: "Expressions", node: ast.Call) -> Js:
        given = [on.of(each) for each in on.plain(node, count)]
        need(all(each.kind == NUMBER for each in given))
        called = name if "." in name else on.definitions.helper(name)
        return Js(f"{called}({', '.join(each.code for each in given)})", NUMBER)

    return translate


def _extreme(name: str) -> Call:
    """Return the translation of `min` or `max`: of numbers, or of the items of a sequence."""

    def translate(on: "Expressions", node: ast.Call) -> Js:
        options = options_of(node)
        if len(node.args) > 1:
            given = [on.of(each) for each in node.args]
            need(not options and all(each.kind == NUMBER for each in given))
            return Js(f"Math.{name}({', '.join(each.code for each in given)})", NUMBER)
        items = on.items(node.args[0])
        item = items.kind.parts[0]
        if options.keys() == {"key"}:
            return Js(f"{on.definitions.helper(f'{name}By')}({items.code}, {_key(on, options, item)})", item)
        need(item == NUMBER and options.keys() <= {"default"})
        default = f", {on.of(options['default']).code}" if options else ""
        return Js(f"{on.definitions.helper(f'{name}Of')}({items.code}{default})", NUMBER)

    return translate


def _key(on: "Expressions", options: Mapping[str, ast.expr], item: Kind) -> str:
    key = options["key"]
    if not isinstance(key, ast.Lambda):
        raise UntranslatableError("only a lambda can be a key")
    return on.arrow(key, item).code


def _sorted(on: "Expressions", node: ast.Call) -> Js:
    items, options = on.items(node.args[0]), options_of(node)
    need(options.keys() == {"key"})
    return Js(
        f"{on.definitions.helper('sortedBy')}({items.code}, {_key(on, options, items.kind.parts[0])})", items.kind
    )


def _sum(on: "Expressions", node: ast.Call) -> Js:
    items, *starts = on.plain(node, 1, 2)
    found = on.items(items)
    start = on.of(starts[0]) if starts else Js("0", NUMBER)
    a, b = Js("a", start.kind), Js("b", found.kind.parts[0])
    added = on.operate(ast.BinOp(ast.Name("a"), ast.Add(), ast.Name("b")), a, b)
    return Js(f"{found.at(ATOM)}.reduce((a, b) => {added.code}, {start.code})", start.kind)


def _length(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    return Js(f"{on.items(given).at(ATOM)}.length", NUMBER)


def _array(on: "Expressions", node: ast.Call) -> Js:
    """Translate `tuple` or `iter`; an array serves for both, because no formula changes its items."""
    (given,) = on.plain(node)
    return on.items(given)


def _reversed(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.items(given)
    return Js(f"[...{found.at(UNARY)}].reverse()", found.kind)


def _zip(on: "Expressions", node: ast.Call) -> Js:
    need(options_of(node).keys() == {"strict"}, "zip needs `strict`")
    found = [on.items(each) for each in node.args]
    parts = tuple(each.kind.parts[0] for each in found)
    arguments = ", ".join(each.code for each in found)
    return Js(f"{on.definitions.helper('zip')}({arguments})", Kind("sequence", (Kind("tuple", parts),)))


def _range(on: "Expressions", node: ast.Call) -> Js:
    ends = [on.of(each).code for each in on.plain(node, 1, 2, 3)]
    ends = ["0", *ends] if len(ends) == 1 else ends
    return Js(f"{on.definitions.helper('range')}({', '.join(ends)})", Kind("sequence", (NUMBER,)))


def _next(on: "Expressions", node: ast.Call) -> Js:
    items, *default = on.plain(node, 1, 2)
    found, other = on.items(items), on.of(default[0]) if default else Js("null", NONE)
    need(other.kind in (found.kind.parts[0], NONE))
    return Js(f"({found.at(ATOM)}[0] ?? {other.at(UNARY)})", found.kind.parts[0])


def _number(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.of(given)
    need(found.kind in (NUMBER, BOOLEAN, STRING))
    whole = on.called(node.func) is int and found.kind == NUMBER
    return Js(f"Math.trunc({found.code})" if whole else f"Number({found.code})", NUMBER)


def _replace(on: "Expressions", node: ast.Call) -> Js:
    found = on.of(node.args[0])
    fields = ", ".join(f"{name}: {on.of(value).code}" for name, value in options_of(node).items())
    return Js(f"({{ ...{found.at(UNARY)}, {fields} }})", found.kind)


def _divmod(on: "Expressions", node: ast.Call) -> Js:
    a, b = (on.of(each).code for each in on.plain(node, 2))
    helper = on.definitions.helper
    code = f"[{helper('floorDivide')}({a}, {b}), {helper('modulo')}({a}, {b})]"
    return Js(code, Kind("tuple", (NUMBER, NUMBER)))


def _bisect_right(on: "Expressions", node: ast.Call) -> Js:
    items, value = (on.of(each) for each in on.plain(node, 2))
    need(items.kind == Kind("sequence", (NUMBER,)) and value.kind == NUMBER)
    return Js(f"{on.definitions.helper('bisectRight')}({items.code}, {value.code})", NUMBER)


BUILTINS: Mapping[Any, Call] = {
    builtins.min: _extreme("min"),
    builtins.max: _extreme("max"),
    builtins.sum: _sum,
    builtins.len: _length,
    builtins.tuple: _array,
    builtins.iter: _array,
    builtins.sorted: _sorted,
    builtins.reversed: _reversed,
    builtins.zip: _zip,
    builtins.range: _range,
    builtins.next: _next,
    builtins.int: _number,
    builtins.float: _number,
    builtins.divmod: _divmod,
    builtins.abs: _direct("Math.abs"),
    dataclasses.replace: _replace,
    bisect.bisect_right: _bisect_right,
    math.hypot: _direct("hypot", 2),
    math.pow: _direct("Math.pow", 2),
    math.gcd: _direct("gcd", 2),
    math.lgamma: _direct("lgamma"),
    **{
        getattr(math, name): _direct(f"Math.{name}")
        for name in ("floor", "ceil", "sqrt", "exp", "log", "log2", "log1p")
    },
}
"""The functions of Python that a formula may call, each with its translation."""


# -- methods ----------------------------------------------------------------------------------------------------------


def _get(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    key, *rest = (on.of(each) for each in on.plain(node, 1, 2))
    default = rest[0] if rest else Js("null", NONE)
    need(default.kind in (owner.kind.parts[1], NONE))
    return Js(f"({owner.at(ATOM)}[{key.code}] ?? {default.at(UNARY)})", owner.kind.parts[1])


def _setdefault(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    key, default = (on.of(each).code for each in on.plain(node, 2))
    return Js(f"({owner.at(ATOM)}[{key}] ??= {default})", owner.kind.parts[1])


def _entries(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    numbers = ".map(([key, value]) => [Number(key), value])" if owner.kind.parts[0] == NUMBER else ""
    return Js(f"Object.entries({owner.code}){numbers}", Kind("sequence", (Kind("tuple", owner.kind.parts),)))


def _values(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    return Js(f"Object.values({owner.code})", Kind("sequence", (owner.kind.parts[1],)))


def _starts_with(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (start,) = (on.of(each) for each in on.plain(node))
    need(start.kind == STRING)
    return Js(f"{owner.at(ATOM)}.startsWith({start.code})", BOOLEAN)


def _is_alpha(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    return Js(f"{on.definitions.helper('isAlpha')}({owner.code})", BOOLEAN)


def _rpartition(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (separator,) = (on.of(each).code for each in on.plain(node))
    kind = Kind("tuple", (STRING, STRING, STRING))
    return Js(f"{on.definitions.helper('rpartition')}({owner.code}, {separator})", kind)


def _join(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (given,) = on.plain(node)
    return Js(f"{on.items(given).at(ATOM)}.join({owner.code})", STRING)


def _index(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (item,) = (on.of(each).code for each in on.plain(node))
    return Js(f"{owner.at(ATOM)}.indexOf({item})", NUMBER)


def _append(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (item,) = (on.of(each) for each in on.plain(node))
    need(item.kind == owner.kind.parts[0])
    return Js(f"{owner.at(ATOM)}.push({item.code})", NONE)


METHODS: Mapping[tuple[str, str], Method] = {
    ("mapping", "get"): _get,
    ("mapping", "setdefault"): _setdefault,
    ("mapping", "items"): _entries,
    ("mapping", "values"): _values,
    ("sequence", "index"): _index,
    ("sequence", "append"): _append,
    ("string", "startswith"): _starts_with,
    ("string", "isalpha"): _is_alpha,
    ("string", "rpartition"): _rpartition,
    ("string", "join"): _join,
}
"""The methods of Python's own values that a formula may call, each with its translation."""
