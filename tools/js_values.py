"""The translation of Python's values to JavaScript: names, attributes, items, and displays such as lists."""

import ast
import builtins
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
    evaluated,
    field_kind,
    kind_of,
    kind_of_value,
    literal,
    need,
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
        outer, self.node = self.node, node
        method: Callable[[Any], Js] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        need(method)
        found = method(node)  # type: ignore[misc]
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
        need(found.kind.name == "sequence", f"{ast.unparse(node)} is a {found.kind.name}, over which no loop can run")
        return found

    def declare(self, target: ast.expr, kind: Kind) -> str:
        """Add the variables of a target to the scope, and return the target in JavaScript."""
        if isinstance(target, ast.Name):
            known = self.scope.setdefault(target.id, kind)
            need(kind in (known, NONE), f"{target.id} is a {known.name} first and a {kind.name} later")
            return safe_name(target.id)
        parts = (
            kind.parts * (len(target.elts) if kind.name == "sequence" else 1) if isinstance(target, ast.Tuple) else ()
        )
        need(parts and len(parts) == len(target.elts), f"a {kind.name} cannot be unpacked into {ast.unparse(target)}")
        return f"[{', '.join(map(self.declare, target.elts, parts))}]"

    # -- values -------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Js:
        if node.value is None:
            return Js("null", NONE)
        kind = kind_of(type(node.value))
        return Js(literal(node.value), kind)

    def _name(self, node: ast.Name) -> Js:
        if node.id in self.scope:
            return Js(safe_name(node.id), self.scope[node.id])
        found = self._global(node.id)
        if found in (min, max):
            return Js(f"Math.{node.id}", Kind("function", (NUMBER,)))
        kind = kind_of_value(found)
        return Js(self.definitions.constant(node.id, found), kind)

    def _global(self, name: str) -> Any:
        found = self.names.get(name, getattr(builtins, name, None))
        need(found is not None, f"{name} is not known here")
        return found

    def _attribute(self, node: ast.Attribute) -> Js:
        owner = self.of(node.value)
        need(owner.kind.of, f"{ast.unparse(node)}: a {owner.kind.name} has no attributes")
        kind = field_kind(owner.kind.of, node.attr)
        if kind is not None:
            return Js(f"{owner.at(ATOM)}.{safe_name(node.attr)}", kind)
        member = getattr(owner.kind.of, node.attr, None)
        need(isinstance(member, property), f"{ast.unparse(node)} is no field or property")
        return Js(f"{self.definitions.name_of(owner.kind.of, node.attr)}({owner.code})", self._result(member.fget))

    def _result(self, function: Any) -> Kind:
        return kind_of(evaluated(function.__annotations__.get("return"), function.__globals__))

    def _subscript(self, node: ast.Subscript) -> Js:
        owner = self.of(node.value)
        name, parts = owner.kind.name, owner.kind.parts
        if isinstance(node.slice, ast.Slice):
            need(name in ("sequence", "string") and not node.slice.step)
            ends = [node.slice.lower or ast.Constant(0), *([node.slice.upper] if node.slice.upper else [])]
            return Js(f"{owner.at(ATOM)}.slice({', '.join(self.of(end).code for end in ends)})", owner.kind)
        if name == "mapping":
            return Js(f"{owner.at(ATOM)}[{self.of(node.slice).code}]", parts[1])
        place = _whole(node.slice)
        if name == "tuple" and place is not None:
            return Js(f"{owner.at(ATOM)}[{place % len(parts)}]", parts[place])
        need(name in ("sequence", "string") or (name == "tuple" and len(set(parts)) == 1))
        item = STRING if name == "string" else parts[0]
        if place is not None and place < 0:
            return Js(f"{owner.at(ATOM)}.slice({place})[0]", item)
        return Js(f"{owner.at(ATOM)}[{self.of(node.slice).code}]", item)

    def _tuple(self, node: ast.Tuple) -> Js:
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return self._list(node)
        found = [self.of(each) for each in node.elts]
        return Js(f"[{', '.join(each.code for each in found)}]", Kind("tuple", tuple(each.kind for each in found)))

    def _list(self, node: ast.List | ast.Tuple) -> Js:
        parts, kinds = [], set()
        for each in node.elts:
            starred = isinstance(each, ast.Starred)
            found = self.items(each.value) if isinstance(each, ast.Starred) else self.of(each)
            kinds.add(found.kind.parts[0] if starred else found.kind)
            parts.append(f"...{found.at(UNARY)}" if starred else found.code)
        need(len(kinds) <= 1, f"{ast.unparse(node)} must have items of one kind")
        return Js(f"[{', '.join(parts)}]", Kind("sequence", tuple(kinds)))

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
        need(len(set(kinds)) <= 1, f"{ast.unparse(node)} must have keys of one kind and values of one kind")
        return Js(f"({{ {', '.join(parts)} }})", kinds[0] if kinds else Kind("mapping"))

    def _joinedstr(self, node: ast.JoinedStr) -> Js:
        parts = []
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                found = self.of(each.value)
                need(each.conversion == -1 and found.kind in (STRING, NUMBER))
                code = found.code
                if each.format_spec is not None:
                    need(found.kind == NUMBER)
                    code = f"{self.definitions.helper('format')}({code}, {self.of(each.format_spec).code})"
                parts.append(f"${{{code}}}")
            else:
                assert isinstance(each, ast.Constant)
                parts.append(literal(each.value)[1:-1].replace("`", "\\`").replace("${", "\\${").replace('\\"', '"'))
        return Js(f"`{''.join(parts)}`", STRING)

    def _keys(self, found: Js) -> str:
        numbers = ".map(Number)" if found.kind.parts[0] == NUMBER else ""
        return f"Object.keys({found.code}){numbers}"


def _whole(node: ast.expr) -> int | None:
    """Return the value of a literal index, which may be negative, or None for another expression."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None
