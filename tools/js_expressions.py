"""The translation of Python's expressions to JavaScript, by the kinds of their operands."""

import ast
import types
from collections.abc import Callable, Sequence
from typing import Any

from js_calls import BUILTINS, METHODS, bound_arguments
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
    UntranslatableError,
    field_kind,
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
            tighter = level + (operator in (ast.Sub, ast.Div, ast.Add, ast.Mult))
            return Js(
                f"{left.at(level)} {sign} {right.at(tighter)}", left.kind if left.kind == STRING else NUMBER, level
            )
        if special and left.kind.of is not None and hasattr(left.kind.of, special):
            called = self.definitions.name_of(left.kind.of, special)
            return Js(f"{called}({left.code}, {right.code})", self._result(getattr(left.kind.of, special)))
        raise UntranslatableError(
            f"{operator.__name__} of a {left.kind.name} and a {right.kind.name} cannot be translated"
        )

    def _unaryop(self, node: ast.UnaryOp) -> Js:
        if isinstance(node.op, ast.Not):
            found = self.condition(node.operand)
            if found.code.startswith("!") and found.level == UNARY:
                return Js(found.code[1:], BOOLEAN)
            return Js(f"!{found.at(UNARY)}", BOOLEAN, UNARY)
        found = self.of(node.operand)
        if isinstance(node.op, ast.USub) and found.kind == NUMBER:
            return Js(f"-{found.at(ATOM)}", NUMBER, UNARY)
        raise UntranslatableError(f"{ast.unparse(node)} cannot be translated")

    def _boolop(self, node: ast.BoolOp) -> Js:
        sign, level = ("&&", AND) if isinstance(node.op, ast.And) else ("||", OR)
        found = [self.of(each) for each in node.values]
        kinds = {each.kind for each in found} - {NONE}
        if any(each.kind.is_container for each in found):
            if len(kinds) != 1 or not isinstance(node.values[0], ast.Name) or len(found) != 2:
                raise UntranslatableError(f"{ast.unparse(node)}: only `name or other` can be translated for containers")
            first, other = found
            test = f"{self.definitions.helper('isEmpty')}({first.code})"
            chosen = f"{first.code} : {other.code}" if sign == "&&" else f"{other.code} : {first.code}"
            return Js(f"{test} ? {chosen}", first.kind, LOOSE)
        if len(kinds) != 1:
            raise UntranslatableError(f"{ast.unparse(node)} gives values of different kinds")
        return Js(f" {sign} ".join(each.at(AND) for each in found), kinds.pop(), level)

    def _ifexp(self, node: ast.IfExp) -> Js:
        test, body, other = self.condition(node.test), self.of(node.body), self.of(node.orelse)
        kinds = {body.kind, other.kind} - {NONE}
        if len(kinds) > 1:
            raise UntranslatableError(f"{ast.unparse(node)} gives values of different kinds")
        kind = kinds.pop() if kinds else NONE
        return Js(f"{test.at(OR)} ? {body.at(OR)} : {other.at(LOOSE)}", kind, LOOSE)

    def _compare(self, node: ast.Compare) -> Js:
        operands = [node.left, *node.comparators]
        if any(not isinstance(each, ast.Name | ast.Constant | ast.Attribute) for each in operands[1:-1]):
            raise UntranslatableError(f"{ast.unparse(node)} would compute its middle twice; give it a name")
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
        sign = _COMPARED[type(operator)]
        if NONE in (left.kind, right.kind):
            if not isinstance(operator, ast.Is | ast.IsNot):
                raise UntranslatableError("None is compared with `is`")
            return Js(f"{left.at(PLUS)} {sign[:2]} {right.at(PLUS)}", BOOLEAN, COMPARE)  # undefined counts as null
        same_object = isinstance(operator, ast.Is | ast.IsNot) and left.kind == right.kind and left.kind.of is not None
        if not same_object and (left.kind != right.kind or left.kind not in (NUMBER, STRING, BOOLEAN)):
            raise UntranslatableError(
                f"a {left.kind.name} cannot be compared with a {right.kind.name} by {type(operator).__name__}"
            )
        if not same_object and isinstance(operator, ast.Is | ast.IsNot):
            raise UntranslatableError(f"a {left.kind.name} has no identity")
        return Js(f"{left.at(PLUS)} {sign} {right.at(PLUS)}", BOOLEAN, COMPARE)

    def _contains(self, item: Js, owner: Js) -> Js:
        if owner.kind.name == "mapping":
            return Js(f"{self.definitions.helper('has')}({owner.code}, {item.code})", BOOLEAN)
        if owner.kind.name in ("sequence", "tuple", "string"):
            return Js(f"{owner.at(ATOM)}.includes({item.code})", BOOLEAN)
        raise UntranslatableError(f"a {owner.kind.name} contains nothing")

    # -- functions ----------------------------------------------------------------------------------------------------

    def _lambda(self, node: ast.Lambda) -> Js:
        if len(node.args.args) > 1 or node.args.defaults:
            raise UntranslatableError("only a lambda of one argument, without a default, can be translated")
        return self.arrow(node, NUMBER)

    def arrow(self, node: ast.Lambda, kind: Kind) -> Js:
        """Translate a lambda whose argument is of a given kind."""
        outer = dict(self.scope)
        names = []
        for argument in node.args.args:
            self.scope[argument.arg] = kind
            names.append(safe_name(argument.arg))
        body = self.of(node.body)
        self.scope = outer
        return Js(f"({', '.join(names)}) => {body.at(LOOSE)}", Kind("function", (body.kind,)), 0)

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
            arguments = ", ".join(self.of(each).code for each in self.plain(node))
            return Js(f"{safe_name(function.id)}({arguments})", self.scope[function.id].parts[0])
        found = self.called(function)
        translate = BUILTINS.get(found)
        if translate is not None:
            return translate(self, node)
        if isinstance(found, types.FunctionType):
            code = f"{self.definitions.name_of(found)}({self._arguments(found, node)})"
            return Js(code, self._result(found))
        if isinstance(found, type) and found.__module__ != "builtins":
            code = f"{self.definitions.name_of(found)}({self._arguments(found, node)})"
            return Js(code, Kind("object", of=found))
        raise UntranslatableError(f"{ast.unparse(function)} cannot be called here")

    def called(self, function: ast.expr) -> Any:
        """Return the function or class that a call names."""
        if isinstance(function, ast.Name):
            return self._global(function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return getattr(self.names[function.value.id], function.attr)
        raise UntranslatableError(f"{ast.unparse(function)} cannot be called")

    def _is_module(self, node: ast.expr) -> bool:
        named = isinstance(node, ast.Name) and node.id not in self.scope
        return named and isinstance(self.names.get(node.id), types.ModuleType)  # type: ignore[attr-defined]

    def _method(self, node: ast.Call, function: ast.Attribute) -> Js:
        if isinstance(function.value, ast.Name) and isinstance(self.names.get(function.value.id), type):
            owner: type = self.names[function.value.id]
            member = getattr(owner, function.attr, None)
            if isinstance(member, types.MethodType):
                code = f"{self.definitions.name_of(owner, function.attr)}({self._arguments(member, node)})"
                return Js(code, self._result(member.__func__))
        found = self.of(function.value)
        translate = METHODS.get((found.kind.name, function.attr))
        if translate is not None:
            return translate(self, found, node)
        if found.kind.of is None or not hasattr(found.kind.of, function.attr):
            kind = None if found.kind.of is None else field_kind(found.kind.of, function.attr)
            if kind is not None and kind.name == "function":
                arguments = ", ".join(self.of(each).code for each in self.plain(node))
                return Js(f"{found.at(ATOM)}.{function.attr}({arguments})", kind.parts[0])
            raise UntranslatableError(f"{ast.unparse(function)}: a {found.kind.name} has no such method in JavaScript")
        member = getattr(found.kind.of, function.attr)
        if isinstance(member, types.MemberDescriptorType):  # a slot: the field of a dataclass, which is a function
            kind = field_kind(found.kind.of, function.attr)
            assert kind is not None
            arguments = ", ".join(self.of(each).code for each in self.plain(node))
            return Js(f"{found.at(ATOM)}.{function.attr}({arguments})", kind.parts[0])
        arguments = self._arguments(member, node, skipped=1)
        name = self.definitions.name_of(found.kind.of, function.attr)
        return Js(f"{name}({', '.join(filter(None, (found.code, arguments)))})", self._result(member))

    def plain(self, node: ast.Call) -> list[ast.expr]:
        """Return the arguments of a call that has only positional ones."""
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise UntranslatableError(f"{ast.unparse(node)} cannot have keyword or starred arguments")
        return node.args

    def _arguments(self, function: Any, node: ast.Call, skipped: int = 0) -> str:
        given = bound_arguments(function, node, skipped)
        return ", ".join("undefined" if each is None else self.of(each).code for each in given)
