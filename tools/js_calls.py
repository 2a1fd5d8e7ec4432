"""The translation of calls of Python's own functions and methods to JavaScript."""

import ast
import bisect
import builtins
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from js_kinds import ATOM, BOOLEAN, NONE, NUMBER, STRING, UNARY, Js, Kind, UntranslatableError

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
    if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
        raise UntranslatableError(f"{ast.unparse(node)}: starred arguments cannot be translated")
    names = list(inspect.signature(function).parameters)[skipped:]
    given: dict[str, ast.expr] = dict(zip(names, node.args, strict=False))
    given |= {each.arg: each.value for each in node.keywords if each.arg is not None}
    last = max((names.index(name) for name in given), default=-1)
    return [given.get(name) for name in names[: last + 1]]


# -- functions --------------------------------------------------------------------------------------------------------


def _direct(name: str, count: tuple[int, ...]) -> Call:
    """Return the translation of a function of numbers that has a counterpart with the same arguments."""

    def translate(on: "Expressions", node: ast.Call) -> Js:
        given = [on.of(each) for each in on.plain(node)]
        if len(given) not in count or any(each.kind not in (NUMBER, BOOLEAN) for each in given):
            raise UntranslatableError(
                f"{ast.unparse(node)} can be translated only for {' or '.join(map(str, count))} numbers"
            )
        called = name if "." in name else on.definitions.helper(name)
        return Js(f"{called}({', '.join(each.code for each in given)})", NUMBER)

    return translate


def _extreme(name: str) -> Call:
    """Return the translation of `min` or `max`: of numbers, or of the items of a sequence."""

    def translate(on: "Expressions", node: ast.Call) -> Js:
        options = {each.arg: each.value for each in node.keywords}
        if len(node.args) > 1 and not options:
            given = [on.of(each) for each in node.args]
            if any(each.kind != NUMBER for each in given):
                raise UntranslatableError(f"{ast.unparse(node)} compares what is not a number")
            return Js(f"Math.{name}({', '.join(each.code for each in given)})", NUMBER)
        if len(node.args) != 1 or not options.keys() <= {"key", "default"}:
            raise UntranslatableError(f"{ast.unparse(node)} has arguments that cannot be translated")
        items = on.items(node.args[0])
        item = items.kind.parts[0]
        key = options.get("key")
        if isinstance(key, ast.Lambda):
            helper = on.definitions.helper(f"{name}By")
            return Js(f"{helper}({items.code}, {on.arrow(key, item).code})", item)
        if key is not None or item != NUMBER:
            raise UntranslatableError(f"{ast.unparse(node)} needs numbers, or a lambda as its key")
        default = f", {on.of(options['default']).code}" if "default" in options else ""
        return Js(f"{on.definitions.helper(f'{name}Of')}({items.code}{default})", NUMBER)

    return translate


def _sum(on: "Expressions", node: ast.Call) -> Js:
    if node.keywords or not 1 <= len(node.args) <= 2:
        raise UntranslatableError(f"{ast.unparse(node)} has arguments that cannot be translated")
    items = on.items(node.args[0])
    item = items.kind.parts[0]
    start = on.of(node.args[1]) if len(node.args) == 2 else Js("0", NUMBER)
    if item == BOOLEAN:
        item = NUMBER
    added = on.operate(ast.BinOp(ast.Name("a"), ast.Add(), ast.Name("b")), Js("a", start.kind), Js("b", item))
    return Js(f"{items.at(ATOM)}.reduce((a, b) => {added.code}, {start.code})", start.kind)


def _truths(name: str) -> Call:
    def translate(on: "Expressions", node: ast.Call) -> Js:
        (given,) = on.plain(node)
        if isinstance(given, ast.GeneratorExp) and len(given.generators) == 1:
            generator = given.generators[0]
            kept = ast.copy_location(ast.GeneratorExp(_target_value(generator.target), [generator]), given)
            items, outer = on.items(kept), dict(on.scope)
            target = on.declare(generator.target, items.kind.parts[0])
            test = on.condition(given.elt).at(1)
            on.scope = outer
            return Js(f"{items.at(ATOM)}.{name}(({target}) => {test})", BOOLEAN)
        return Js(f"{on.items(given).at(ATOM)}.{name}((each) => each)", BOOLEAN)

    return translate


def _target_value(target: ast.expr) -> ast.expr:
    """Return the expression that has the value of a loop's target."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _length(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.of(given)
    if found.kind.name not in ("sequence", "mapping", "tuple", "string"):
        raise UntranslatableError(f"a {found.kind.name} has no length")
    if found.kind.name == "mapping":
        return Js(f"{on.definitions.helper('size')}({found.code})", NUMBER)
    return Js(f"{found.at(ATOM)}.length", NUMBER)


def _array(on: "Expressions", node: ast.Call) -> Js:
    """Translate `list`, `tuple` or `iter`; an array serves for all of them, because no formula changes its items."""
    (given,) = on.plain(node)
    return on.items(given)


def _reversed(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.items(given)
    return Js(f"[...{found.at(UNARY)}].reverse()", found.kind)


def _enumerate(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.items(given)
    kind = Kind("sequence", (Kind("tuple", (NUMBER, found.kind.parts[0])),))
    return Js(f"[...{found.at(ATOM)}.entries()]", kind)


def _zip(on: "Expressions", node: ast.Call) -> Js:
    if [each.arg for each in node.keywords] != ["strict"]:
        raise UntranslatableError("zip needs `strict`")
    found = [on.items(each) for each in node.args]
    parts = tuple(each.kind.parts[0] for each in found)
    arguments = ", ".join(each.code for each in found)
    return Js(f"{on.definitions.helper('zip')}({arguments})", Kind("sequence", (Kind("tuple", parts),)))


def _range(on: "Expressions", node: ast.Call) -> Js:
    ends = [on.of(each).code for each in on.plain(node)]
    ends = ["0", *ends] if len(ends) == 1 else ends
    return Js(f"{on.definitions.helper('range')}({', '.join(ends)})", Kind("sequence", (NUMBER,)))


def _next(on: "Expressions", node: ast.Call) -> Js:
    found = on.items(node.args[0])
    if len(node.args) == 1:
        return Js(f"{found.at(ATOM)}[0]", found.kind.parts[0])
    other = on.of(node.args[1])
    if other.kind not in (found.kind.parts[0], NONE):
        raise UntranslatableError(f"{ast.unparse(node)} gives values of different kinds")
    return Js(f"({found.at(ATOM)}[0] ?? {other.at(UNARY)})", found.kind.parts[0])


def _number(on: "Expressions", node: ast.Call) -> Js:
    (given,) = on.plain(node)
    found = on.of(given)
    if found.kind not in (NUMBER, BOOLEAN):
        raise UntranslatableError(f"{ast.unparse(node)} converts a {found.kind.name}")
    whole = on.called(node.func) is int and found.kind == NUMBER
    return Js(f"Math.trunc({found.code})" if whole else f"Number({found.code})", NUMBER)


def _divmod(on: "Expressions", node: ast.Call) -> Js:
    a, b = (on.of(each).code for each in on.plain(node))
    helper = on.definitions.helper
    code = f"[{helper('floorDivide')}({a}, {b}), {helper('modulo')}({a}, {b})]"
    return Js(code, Kind("tuple", (NUMBER, NUMBER)))


def _bisect_right(on: "Expressions", node: ast.Call) -> Js:
    items, value = (on.of(each) for each in on.plain(node))
    if items.kind != Kind("sequence", (NUMBER,)) or value.kind != NUMBER:
        raise UntranslatableError(f"{ast.unparse(node)} can be translated only for numbers")
    return Js(f"{on.definitions.helper('bisectRight')}({items.code}, {value.code})", NUMBER)


BUILTINS: Mapping[Any, Call] = {
    builtins.min: _extreme("min"),
    builtins.max: _extreme("max"),
    builtins.sum: _sum,
    builtins.any: _truths("some"),
    builtins.all: _truths("every"),
    builtins.len: _length,
    builtins.list: _array,
    builtins.tuple: _array,
    builtins.iter: _array,
    builtins.reversed: _reversed,
    builtins.enumerate: _enumerate,
    builtins.zip: _zip,
    builtins.range: _range,
    builtins.next: _next,
    builtins.int: _number,
    builtins.float: _number,
    builtins.divmod: _divmod,
    builtins.abs: _direct("Math.abs", (1,)),
    bisect.bisect_right: _bisect_right,
    math.hypot: _direct("hypot", (2,)),
    math.gcd: _direct("gcd", (2,)),
    math.lgamma: _direct("lgamma", (1,)),
    math.pow: _direct("Math.pow", (2,)),
    **{getattr(math, name): _direct(f"Math.{name}", (1,)) for name in (
        "floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1"
    )},
}  # fmt: skip
"""The functions of Python that a formula may call, each with its translation."""


# -- methods ----------------------------------------------------------------------------------------------------------


def _get(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    key, *rest = (on.of(each) for each in on.plain(node))
    default = rest[0] if rest else Js("null", NONE)
    if default.kind not in (owner.kind.parts[1], NONE):
        raise UntranslatableError(f"{ast.unparse(node)} gives values of different kinds")
    return Js(f"({owner.at(ATOM)}[{key.code}] ?? {default.at(UNARY)})", owner.kind.parts[1])


def _entries(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    numbers = ".map(([key, value]) => [Number(key), value])" if owner.kind.parts[0] == NUMBER else ""
    return Js(f"Object.entries({owner.code}){numbers}", Kind("sequence", (Kind("tuple", owner.kind.parts),)))


def _keys(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    assert isinstance(node.func, ast.Attribute)
    return on.items(node.func.value)


def _values(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    return Js(f"Object.values({owner.code})", Kind("sequence", (owner.kind.parts[1],)))


def _text_method(name: str, result: Kind) -> Method:
    def translate(on: "Expressions", owner: Js, node: ast.Call) -> Js:
        given = [on.of(each) for each in on.plain(node)]
        if any(each.kind != STRING for each in given):
            raise UntranslatableError(f"{ast.unparse(node)} can be translated only for one text")
        return Js(f"{owner.at(ATOM)}.{name}({', '.join(each.code for each in given)})", result)

    return translate


def _rpartition(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (separator,) = (on.of(each).code for each in on.plain(node))
    kind = Kind("tuple", (STRING, STRING, STRING))
    return Js(f"{on.definitions.helper('rpartition')}({owner.code}, {separator})", kind)


def _index(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (item,) = (on.of(each).code for each in on.plain(node))
    return Js(f"{owner.at(ATOM)}.indexOf({item})", NUMBER)


def _append(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (item,) = (on.of(each) for each in on.plain(node))
    if item.kind != owner.kind.parts[0]:
        raise UntranslatableError(f"{ast.unparse(node)} adds a {item.kind.name} to items of another kind")
    return Js(f"{owner.at(ATOM)}.push({item.code})", NONE)


def _join(on: "Expressions", owner: Js, node: ast.Call) -> Js:
    (given,) = on.plain(node)
    return Js(f"{on.items(given).at(ATOM)}.join({owner.code})", STRING)


METHODS: Mapping[tuple[str, str], Method] = {
    ("mapping", "get"): _get,
    ("mapping", "items"): _entries,
    ("mapping", "keys"): _keys,
    ("mapping", "values"): _values,
    ("sequence", "index"): _index,
    ("sequence", "append"): _append,
    ("string", "startswith"): _text_method("startsWith", BOOLEAN),
    ("string", "endswith"): _text_method("endsWith", BOOLEAN),
    ("string", "rpartition"): _rpartition,
    ("string", "join"): _join,
}
"""The methods of Python's own values that a formula may call, each with its translation."""
