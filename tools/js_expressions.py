"""The translation of Python's expressions to JavaScript, by the kinds of their operands."""

import ast
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from js_calls import BUILTINS, METHODS, bound_arguments, options_of
from js_kinds import (
    AND,
    ATOM,
    BOOLEAN,
    COMPARE,
    LOOSE,
    NONE,
    NUMBER,
    OR,
    PLUS,
    STRING,
    TIMES,
    UNARY,
    Js,
    Kind,
    field_kind,
    need,
    safe_name,
)  # fmt: skip
from js_values import Values

_ARITHMETIC = {
    ast.Add: ("+", PLUS, "__add__"),
    ast.Sub: ("-", PLUS, "__sub__"),
    ast.Mult: ("*", TIMES, "__mul__"),
    ast.Div: ("/", TIMES, "__truediv__"),
}
_FUNCTIONS = {ast.FloorDiv: "floorDivide", ast.Mod: "modulo", ast.Pow: "Math.pow"}
_COMPARED = {
    ast.Eq: "===", ast.NotEq: "!==", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "===",
    ast.IsNot: "!==",
}  # fmt: skip


class Expressions(Values):
    """A translator of the expressions of one function."""

    # -- operators ----------------------------------------------------------------------------------------------------

    def _binop(self, node: ast.BinOp) -> Js:
        return self.operate(node, self.of(node.left), self.of(node.right))

    def operate(self, node: ast.BinOp | ast.AugAssign, left: Js, right: Js) -> Js:
        """Translate the operator of an expression or of an augmented assignment, applied to translated operands."""
        operator = type(node.op)
        if operator in _FUNCTIONS and left.kind == right.kind == NUMBER:
            name = _FUNCTIONS[operator]
            called = name if name.startswith("Math.") else self.definitions.helper(name)
            return Js(f"{called}({left.code}, {right.code})", NUMBER)
        sign, level, special = _ARITHMETIC.get(operator, ("", ATOM, ""))
        numbers = {left.kind, right.kind} <= {NUMBER, BOOLEAN}
        if sign and (numbers or (sign == "+" and left.kind == right.kind == STRING)):
            kind = STRING if left.kind == STRING else NUMBER
            return Js(f"{left.at(level)} {sign} {right.at(level + 1)}", kind, level)
        need(special and hasattr(left.kind.of, special))
        called = self.definitions.name_of(left.kind.of, special)
        return Js(f"{called}({left.code}, {right.code})", self._result(getattr(left.kind.of, special)))

    def _unaryop(self, node: ast.UnaryOp) -> Js:
        if isinstance(node.op, ast.Not):
            found = self.condition(node.operand)
            if found.code.startswith("!") and found.level == UNARY:
                return Js(found.code[1:], BOOLEAN)
            return Js(f"!{found.at(UNARY)}", BOOLEAN, UNARY)
        found = self.of(node.operand)
        need(isinstance(node.op, ast.USub) and found.kind == NUMBER)
        return Js(f"-{found.at(ATOM)}", NUMBER, UNARY)

    def _boolop(self, node: ast.BoolOp) -> Js:
        sign, level = ("&&", AND) if isinstance(node.op, ast.And) else ("||", OR)
        found = [self.of(each) for each in node.values]
        kinds = {each.kind for each in found} - {NONE}
        need(len(kinds) == 1, f"{ast.unparse(node)} gives values of different kinds")
        if any(each.kind.is_container for each in found):
            need(len(found) == 2 and isinstance(node.values[0], ast.Name) and sign == "||")
            first, other = found
            return Js(
                f"{self.definitions.helper('isEmpty')}({first.code}) ? {other.code} : {first.code}", first.kind, LOOSE
            )
        return Js(f" {sign} ".join(each.at(AND) for each in found), kinds.pop(), level)

    def _ifexp(self, node: ast.IfExp) -> Js:
        test, body, other = self.condition(node.test), self.of(node.body), self.of(node.orelse)
        kinds = {body.kind, other.kind} - {NONE}
        need(len(kinds) <= 1, f"{ast.unparse(node)} gives values of different kinds")
        kind = kinds.pop() if kinds else NONE
        return Js(f"{test.at(OR)} ? {body.at(OR)} : {other.at(LOOSE)}", kind, LOOSE)

    def _compare(self, node: ast.Compare) -> Js:
        operands = [node.left, *node.comparators]
        simple = all(isinstance(each, ast.Name | ast.Constant | ast.Attribute) for each in operands[1:-1])
        need(simple, f"{ast.unparse(node)} would compute its middle twice; give it a name")
        parts = [
            self._compared(left, operator, right)
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
        ]
        if len(parts) == 1:
            return Js(parts[0].code, BOOLEAN, parts[0].level)
        return Js(" && ".join(part.at(AND) for part in parts), BOOLEAN, AND)

    def _compared(self, left_node: ast.expr, operator: ast.cmpop, right_node: ast.expr) -> Js:
        left = self.of(left_node)
        if isinstance(operator, ast.In | ast.NotIn):
            found = self._contains(left, self.of(right_node))
            return found if isinstance(operator, ast.In) else Js(f"!{found.at(ATOM)}", BOOLEAN, UNARY)
        right = self.of(right_node)
        sign, identity = _COMPARED[type(operator)], isinstance(operator, ast.Is | ast.IsNot)
        if NONE in (left.kind, right.kind):
            need(identity, "None is compared with `is`")
            return Js(f"{left.at(PLUS)} {sign[:2]} {right.at(PLUS)}", BOOLEAN, COMPARE)  # undefined counts as null
        need(left.kind == right.kind)
        need(left.kind.of if identity else left.kind in (NUMBER, STRING, BOOLEAN))
        return Js(f"{left.at(PLUS)} {sign} {right.at(PLUS)}", BOOLEAN, COMPARE)

    def _contains(self, item: Js, owner: Js) -> Js:
        if owner.kind.name == "mapping":
            return Js(f"{self.definitions.helper('has')}({owner.code}, {item.code})", BOOLEAN)
        need(owner.kind.name in ("sequence", "tuple", "string"))
        return Js(f"{owner.at(ATOM)}.includes({item.code})", BOOLEAN)

    # -- functions ----------------------------------------------------------------------------------------------------

    def _lambda(self, node: ast.Lambda) -> Js:
        return self.arrow(node, NUMBER)

    def arrow(self, node: ast.Lambda, kind: Kind) -> Js:
        """Translate a lambda whose argument is of a given kind."""
        need(len(node.args.args) == 1 and not node.args.defaults)
        outer, name = dict(self.scope), node.args.args[0].arg
        self.scope[name] = kind
        body = self.of(node.body)
        self.scope = outer
        return Js(f"({safe_name(name)}) => {body.at(LOOSE)}", Kind("function", (body.kind,)), 0)

    def _generatorexp(self, node: ast.GeneratorExp | ast.ListComp) -> Js:
        code, item = self._looped(node.generators, lambda: self.of(node.elt))
        return Js(code, Kind("sequence", (item,)))

    _listcomp = _generatorexp

    def _dictcomp(self, node: ast.DictComp) -> Js:
        kinds: list[Kind] = []

        def pair() -> Js:
            key, value = self.of(node.key), self.of(node.value)
            kinds.extend((key.kind, value.kind))
            return Js(f"[{key.code}, {value.code}]", Kind("tuple", (key.kind, value.kind)))

        code, _ = self._looped(node.generators, pair)
        return Js(f"Object.fromEntries({code})", Kind("mapping", tuple(kinds)))

    def _looped(self, generators: Sequence[ast.comprehension], body: Callable[[], Js]) -> tuple[str, Kind]:
        """Translate the loops of a comprehension to calls of filter and map."""
        outer, (first, *rest) = dict(self.scope), generators
        found = self.items(first.iter)
        for name in (each.id for each in ast.walk(first.target) if isinstance(each, ast.Name)):
            self.scope.pop(name, None)
        target = self.declare(first.target, found.kind.parts[0])
        code = found.at(ATOM)
        for test in first.ifs:
            code = f"{code}.filter(({target}) => {self.condition(test).at(LOOSE)})"
        if rest:
            inner, kind = self._looped(rest, body)
            code = f"{code}.flatMap(({target}) => {inner})"
        else:
            each = body()
            kind = each.kind
            if each.code != target:
                code = f"{code}.map(({target}) => {each.at(LOOSE)})"
        self.scope = outer
        return code, kind

    def _call(self, node: ast.Call) -> Js:
        function = node.func
        if isinstance(function, ast.Attribute) and not self._is_module(function.value):
            return self._method(node, function)
        if isinstance(function, ast.Name) and function.id in self.scope:
            return self._applied(Js(safe_name(function.id), self.scope[function.id]), node)
        found = self.called(function)
        if found in BUILTINS:
            return BUILTINS[found](self, node)
        if isinstance(found, typing.NewType):
            return self.of(self.plain(node)[0])
        need(callable(found) and found.__module__ not in ("builtins", "math"))
        kind = Kind("object", of=found) if isinstance(found, type) else self._result(found)
        return Js(f"{self.definitions.name_of(found)}({', '.join(self._arguments(found, node))})", kind)

    def _applied(self, function: Js, node: ast.Call) -> Js:
        """Translate the call of a function that is a value."""
        need(function.kind.name == "function")
        arguments = (self.of(each).code for each in self.plain(node, *range(9)))
        return Js(f"{function.code}({', '.join(arguments)})", function.kind.parts[0])

    def called(self, function: ast.expr) -> Any:
        """Return the function or class that a call names."""
        if isinstance(function, ast.Attribute):
            return getattr(self.names[function.value.id], function.attr)  # type: ignore[attr-defined]
        need(isinstance(function, ast.Name))
        return self._global(function.id)  # type: ignore[attr-defined]

    def _is_module(self, node: ast.expr) -> bool:
        named = isinstance(node, ast.Name) and node.id not in self.scope
        return named and isinstance(self.names.get(node.id), types.ModuleType)  # type: ignore[attr-defined]

    def _method(self, node: ast.Call, function: ast.Attribute) -> Js:
        if isinstance(function.value, ast.Name) and isinstance(self.names.get(function.value.id), type):
            owner: type = self.names[function.value.id]
            member = getattr(owner, function.attr, None)
            if isinstance(member, types.MethodType):
                code = f"{self.definitions.name_of(owner, function.attr)}({', '.join(self._arguments(member, node))})"
                return Js(code, self._result(member.__func__))
        found = self.of(function.value)
        if (found.kind.name, function.attr) in METHODS:
            return METHODS[found.kind.name, function.attr](self, found, node)
        need(found.kind.of)
        kind = field_kind(found.kind.of, function.attr)
        if kind is not None:
            return self._applied(Js(f"{found.at(ATOM)}.{function.attr}", kind), node)
        member = getattr(found.kind.of, function.attr, None)
        need(callable(member))
        name = self.definitions.name_of(found.kind.of, function.attr)
        return Js(f"{name}({', '.join((found.code, *self._arguments(member, node, skipped=1)))})", self._result(member))

    def plain(self, node: ast.Call, *counts: int) -> list[ast.expr]:
        """Return the arguments of a call, which must be positional, and as many as one of `counts`; one by default."""
        need(not options_of(node) and len(node.args) in (counts or (1,)))
        return node.args

    def _arguments(self, function: Any, node: ast.Call, skipped: int = 0) -> list[str]:
        given = bound_arguments(function, node, skipped)
        return ["undefined" if each is None else self.of(each).code for each in given]
