"""The translation of Python's values to JavaScript: names, attributes, items, and displays such as lists."""

import ast
import builtins
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from js_kinds import (
    AND,
    ATOM,
    BOOLEAN,
    NONE,
    NUMBER,
    OR,
    STRING,
    UNARY,
    Js,
    Kind,
    UntranslatableError,
    evaluated,
    field_kind,
    kind_of,
    kind_of_value,
    literal,
    safe_name,
)  # fmt: skip


class Definitions(Protocol):
    """The functions and constants that a translated function may refer to."""

    def name_of(self, found: Any, member: str = "") -> str:
        """Return the JavaScript name of a marked function or class, or of a member of a class."""

    def constant(self, name: str, value: Any) -> str:
        """Define a constant of a Python module, and return its JavaScript name."""

    def helper(self, name: str) -> str:
        """Import a helper of page/python.js, and return its name."""


class Values:
    """A translator of names, attributes, items, texts, tuples, lists and mappings."""

    def __init__(self, names: Mapping[str, Any], definitions: Definitions) -> None:
        self.names, self.definitions = names, definitions
        self.scope: dict[str, Kind] = {}
        """The kinds of the local variables by name."""
        self.node: ast.AST | None = None
        """The expression that is being translated, whose line an error names."""

    def of(self, node: ast.expr) -> Js:
        """Translate an expression.

        Raises:
            UntranslatableError: If it has no counterpart, or has one only for other kinds of operands.
        """
        method: Callable[[Any], Js] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        outer, self.node = self.node, node
        if method is None:
            raise UntranslatableError(f"{type(node).__name__} expressions cannot be translated")
        found = method(node)
        self.node = outer
        return found

    def condition(self, node: ast.expr) -> Js:
        """Translate an expression whose truth counts; a container is true if it has items."""
        if isinstance(node, ast.BoolOp):
            level = AND if isinstance(node.op, ast.And) else OR
            parts = [self.condition(each).at(AND) for each in node.values]
            return Js((" && " if level == AND else " || ").join(parts), BOOLEAN, level)
        found = self.of(node)
        if not found.kind.is_container:
            return found
        return Js(f"!{self.definitions.helper('isEmpty')}({found.code})", BOOLEAN, UNARY)

    def items(self, node: ast.expr) -> Js:
        """Translate an expression over which a loop runs, to an array; a mapping gives its keys."""
        found = self.of(node)
        if found.kind.name == "mapping":
            return Js(self._keys(found), Kind("sequence", (found.kind.parts[0],)))
        if found.kind.name == "tuple" and len(set(found.kind.parts)) == 1:
            return Js(found.code, Kind("sequence", found.kind.parts[:1]), found.level)
        if found.kind.name != "sequence":
            raise UntranslatableError(f"{ast.unparse(node)} is a {found.kind.name}, over which no loop can run")
        return found

    def declare(self, target: ast.expr, kind: Kind) -> str:
        """Add the variables of a target to the scope, and return the target in JavaScript."""
        if isinstance(target, ast.Name):
            known = self.scope.setdefault(target.id, kind)
            if known == NONE:
                self.scope[target.id] = kind
            elif NONE != kind != known:
                raise UntranslatableError(f"{target.id} is a {known.name} first and a {kind.name} later")
            return safe_name(target.id)
        if isinstance(target, ast.Tuple):
            parts = kind.parts * (len(target.elts) if kind.name == "sequence" else 1)
            if kind.name in ("tuple", "sequence") and len(parts) == len(target.elts):
                return f"[{', '.join(map(self.declare, target.elts, parts))}]"
        raise UntranslatableError(f"a {kind.name} cannot be unpacked into {ast.unparse(target)}")

    # -- values -------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Js:
        if node.value is None:
            return Js("null", NONE)
        if isinstance(node.value, bool | int | float | str):
            return Js(literal(node.value), kind_of(type(node.value)))
        raise UntranslatableError(f"{node.value!r} has no counterpart in JavaScript")

    def _name(self, node: ast.Name) -> Js:
        if node.id in self.scope:
            return Js(safe_name(node.id), self.scope[node.id])
        found = self._global(node.id)
        if found in (min, max):
            return Js(f"Math.{node.id}", Kind("function", (NUMBER,)))
        if isinstance(found, types.FunctionType):
            return Js(self.definitions.name_of(found), Kind("function", (self._result(found),)))
        kind = kind_of_value(found)
        return Js(self.definitions.constant(node.id, found), kind)

    def _global(self, name: str) -> Any:
        found = self.names.get(name, getattr(builtins, name, None))
        if found is None:
            raise UntranslatableError(f"{name} is not known here")
        return found

    def _attribute(self, node: ast.Attribute) -> Js:
        if isinstance(node.value, ast.Name) and self.names.get(node.value.id) is math and node.attr in _MATH_VALUES:
            return Js(_MATH_VALUES[node.attr], NUMBER)
        owner = self.of(node.value)
        if owner.kind.of is None:
            raise UntranslatableError(f"{ast.unparse(node)}: a {owner.kind.name} has no attributes")
        kind = field_kind(owner.kind.of, node.attr)
        if kind is not None:
            return Js(f"{owner.at(ATOM)}.{safe_name(node.attr)}", kind)
        member = getattr(owner.kind.of, node.attr, None)
        getter = member.fget if isinstance(member, property) else getattr(member, "func", None)
        if getter is None:
            raise UntranslatableError(f"{owner.kind.of.__name__} has no field or property {node.attr}")
        return Js(f"{self.definitions.name_of(owner.kind.of, node.attr)}({owner.code})", self._result(getter))

    def _result(self, function: Any) -> Kind:
        return kind_of(evaluated(function.__annotations__.get("return"), function.__globals__))

    def _subscript(self, node: ast.Subscript) -> Js:
        owner = self.of(node.value)
        name, parts = owner.kind.name, owner.kind.parts
        if isinstance(node.slice, ast.Slice):
            if name not in ("sequence", "string") or node.slice.step:
                raise UntranslatableError(
                    f"{ast.unparse(node)} cannot be translated; only a sequence has slices, without a step"
                )
            ends = [node.slice.lower or ast.Constant(0), *([node.slice.upper] if node.slice.upper else [])]
            return Js(f"{owner.at(ATOM)}.slice({', '.join(self.of(end).code for end in ends)})", owner.kind)
        place = _whole(node.slice)
        if name == "mapping":
            return Js(f"{owner.at(ATOM)}[{self.of(node.slice).code}]", parts[1])
        if name == "tuple" and place is not None:
            return Js(f"{owner.at(ATOM)}[{place % len(parts)}]", parts[place])
        if name == "sequence" or (name == "tuple" and len(set(parts)) == 1):
            if place is not None and place < 0:
                return Js(f"{owner.at(ATOM)}.slice({place})[0]", parts[0])
            return Js(f"{owner.at(ATOM)}[{self.of(node.slice).code}]", parts[0])
        raise UntranslatableError(f"{ast.unparse(node)}: a {name} cannot be indexed like this")

    def _tuple(self, node: ast.Tuple) -> Js:
        found = [self.of(each.value if isinstance(each, ast.Starred) else each) for each in node.elts]
        if not any(isinstance(each, ast.Starred) for each in node.elts):
            return Js(f"[{', '.join(each.code for each in found)}]", Kind("tuple", tuple(each.kind for each in found)))
        return self._list(node)

    def _list(self, node: ast.List | ast.Tuple) -> Js:
        parts, kinds = [], set()
        for each in node.elts:
            starred = isinstance(each, ast.Starred)
            found = self.items(each.value) if isinstance(each, ast.Starred) else self.of(each)
            kinds.add(found.kind.parts[0] if starred else found.kind)
            parts.append(f"...{found.at(UNARY)}" if starred else found.code)
        if len(kinds) != 1:
            raise UntranslatableError(f"{ast.unparse(node)} must have items of one kind")
        return Js(f"[{', '.join(parts)}]", Kind("sequence", (kinds.pop(),)))

    def _dict(self, node: ast.Dict) -> Js:
        parts, kinds = [], []
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.of(value)
            if key is None:
                kinds.append(found.kind)
                parts.append(f"...{found.at(UNARY)}")
            else:
                name = self.of(key)
                kinds.append(Kind("mapping", (name.kind, found.kind)))
                parts.append(f"[{name.code}]: {found.code}")
        if len(set(kinds)) != 1 or kinds[0].name != "mapping":
            raise UntranslatableError(f"{ast.unparse(node)} must have keys of one kind and values of one kind")
        return Js(f"({{ {', '.join(parts)} }})", kinds[0])

    def _joinedstr(self, node: ast.JoinedStr) -> Js:
        parts = []
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                found = self.of(each.value)
                if each.format_spec or each.conversion != -1 or found.kind not in (STRING, NUMBER):
                    raise UntranslatableError(f"{ast.unparse(each)}: only a plain text or number can be part of a text")
                parts.append(f"${{{found.code}}}")
            else:
                assert isinstance(each, ast.Constant)
                parts.append(literal(each.value)[1:-1].replace("`", "\\`").replace("${", "\\${").replace('\\"', '"'))
        return Js(f"`{''.join(parts)}`", STRING)

    def _keys(self, found: Js) -> str:
        numbers = ".map(Number)" if found.kind.parts[0] == NUMBER else ""
        return f"Object.keys({found.code}){numbers}"


_MATH_VALUES = {"inf": "Infinity", "pi": "Math.PI"}


def _whole(node: ast.expr) -> int | None:
    """Return the value of a literal index, which may be negative, or None for another expression."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None
