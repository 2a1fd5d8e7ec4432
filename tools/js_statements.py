"""The translation of Python's statements to JavaScript, function by function."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from js_expressions import Expressions
from js_kinds import ATOM, LOOSE, NUMBER, PLUS, STRING, Kind, UntranslatableError, evaluated, kind_of, safe_name
from js_values import Definitions
from syntax import text_of


class FunctionTranslator:
    """A translator of one function, with the functions inside it."""

    def __init__(self, names: Mapping[str, Any], definitions: Definitions, owner: type | None, path: str) -> None:
        """Prepare the translation.

        Args:
            names: The names of the function's module.
            definitions: The functions and constants that it may refer to.
            owner: The class of a method or property.
            path: The file, for errors.
        """
        self._names, self._owner, self._path = names, owner, path
        self._on = Expressions(names, definitions)
        self._node: ast.stmt | None = None
        self._stores: Counter[str] = Counter()
        self._uses: list[ast.Name] = []
        self._hoisted: list[str] = []

    def function(self, node: ast.FunctionDef, name: str) -> str:
        """Translate a function to one that its file exports.

        Raises:
            UntranslatableError: If it is outside the subset; the message begins with file and line.
        """
        uses = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        self._uses = uses
        self._stores = Counter(each.id for each in uses if isinstance(each.ctx, ast.Store))
        try:
            parameters = self._parameters(node)
            lines = self._block(node.body, 1)
        except UntranslatableError as error:
            at = self._on.node or self._node or node
            raise UntranslatableError(f"{self._path}:{at.lineno}: {error}") from None  # type: ignore[attr-defined]
        if self._hoisted:
            lines.insert(0, f"  let {', '.join(self._hoisted)};")
        return "\n".join([f"export function {name}({parameters}) {{", *lines, "}"])

    def _parameters(self, node: ast.FunctionDef) -> str:
        given = node.args
        if given.vararg or given.kwarg:
            raise UntranslatableError("starred parameters cannot be translated")
        positional = [*given.posonlyargs, *given.args]
        defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults, *given.kw_defaults]
        found = []
        for argument, default in zip([*positional, *given.kwonlyargs], defaults, strict=True):
            name = safe_name(argument.arg)
            if argument.arg == "cls" and self._owner is not None:
                self._on.names = {**self._names, "cls": self._owner}
                continue
            self._on.scope[argument.arg] = self._kind(argument)
            found.append(name if default is None else f"{name} = {self._on.of(default).code}")
        return ", ".join(found)

    def _kind(self, argument: ast.arg) -> Kind:
        if argument.arg == "self" and self._owner is not None:
            return Kind("object", of=self._owner)
        if argument.annotation is None:
            raise UntranslatableError(f"{argument.arg} needs an annotation")
        return kind_of(evaluated(ast.unparse(argument.annotation), self._names))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt], depth: int) -> list[str]:
        outer = set(self._on.scope)
        lines = []
        for statement in statements:
            self._node = statement
            if text_of(statement) is not None or isinstance(statement, ast.Assert | ast.Pass):
                continue
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                raise UntranslatableError(f"{type(statement).__name__} statements cannot be translated")
            lines += [f"{'  ' * depth}{line}" for line in method(statement, statements)]
        if depth > 1:
            for name in self._on.scope.keys() - outer - set(self._hoisted):
                del self._on.scope[name]
        return lines

    def _body(self, statements: Sequence[ast.stmt]) -> list[str]:
        return self._block(statements, 1)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _return(self, node: ast.Return, _: Sequence[ast.stmt]) -> list[str]:
        return ["return;" if node.value is None else f"return {self._on.of(node.value).at(LOOSE)};"]

    def _raise(self, node: ast.Raise, _: Sequence[ast.stmt]) -> list[str]:
        error = node.exc
        if not isinstance(error, ast.Call) or len(error.args) != 1 or error.keywords:
            raise UntranslatableError("only an error with one text can be raised")
        return [f"throw new Error({self._on.of(error.args[0]).code});"]

    def _expr(self, node: ast.Expr, _: Sequence[ast.stmt]) -> list[str]:
        return [f"{self._on.of(node.value).code};"]

    def _continue(self, node: ast.Continue, _: Sequence[ast.stmt]) -> list[str]:
        return ["continue;"]

    def _break(self, node: ast.Break, _: Sequence[ast.stmt]) -> list[str]:
        return ["break;"]

    def _if(self, node: ast.If, _: Sequence[ast.stmt]) -> list[str]:
        lines = [f"if ({self._on.condition(node.test).at(LOOSE)}) {{", *self._body(node.body)]
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            first, *rest = self._if(node.orelse[0], node.orelse)
            return [*lines, f"}} else {first}", *rest]
        if node.orelse:
            lines += ["} else {", *self._body(node.orelse)]
        return [*lines, "}"]

    def _while(self, node: ast.While, _: Sequence[ast.stmt]) -> list[str]:
        if node.orelse:
            raise UntranslatableError("a loop cannot have an else")
        return [f"while ({self._on.condition(node.test).at(LOOSE)}) {{", *self._body(node.body), "}"]

    def _for(self, node: ast.For, _: Sequence[ast.stmt]) -> list[str]:
        if node.orelse:
            raise UntranslatableError("a loop cannot have an else")
        outer = set(self._on.scope)
        head = self._counted(node) or self._listed(node)
        lines = [*head, *self._body(node.body), "}"]
        for name in self._on.scope.keys() - outer - set(self._hoisted):
            del self._on.scope[name]
        return lines

    def _counted(self, node: ast.For) -> list[str] | None:
        """Return the head of a loop over a range with a step of 1, which needs no array."""
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not is_range or len(call.args) > 2 or not isinstance(node.target, ast.Name):  # type: ignore[attr-defined]
            return None
        if any(isinstance(each, ast.Call) for each in call.args):  # type: ignore[attr-defined]
            return None
        ends = [self._on.of(each) for each in call.args]  # type: ignore[attr-defined]
        start, end = ends if len(ends) == 2 else (None, ends[0])
        name = self._on.declare(node.target, NUMBER)
        first = "0" if start is None else start.code
        return [f"for (let {name} = {first}; {name} < {end.at(PLUS)}; {name}++) {{"]

    def _listed(self, node: ast.For) -> list[str]:
        entries = self._entries(node)
        if entries is not None:
            return entries
        items = self._on.items(node.iter)
        target = self._on.declare(node.target, items.kind.parts[0])
        return [f"for (const {target} of {items.code}) {{"]

    def _entries(self, node: ast.For) -> list[str] | None:
        """Return the head of a loop over the items of a mapping with text keys, which needs no array of them."""
        call = node.iter
        is_items = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "items"
        if not is_items or not isinstance(node.target, ast.Tuple):
            return None
        owner = self._on.of(call.func.value)  # type: ignore[attr-defined]
        if owner.kind.name != "mapping" or owner.kind.parts[0] != STRING:
            return None
        key, value = map(self._on.declare, node.target.elts, owner.kind.parts)
        return [f"for (const {key} in {owner.code}) {{", f"  const {value} = {owner.at(ATOM)}[{key}];"]

    def _annassign(self, node: ast.AnnAssign, block: Sequence[ast.stmt]) -> list[str]:
        assert isinstance(node.target, ast.Name)
        self._refuse_unless(node.value is not None, "a declaration needs a value")
        kind = kind_of(evaluated(ast.unparse(node.annotation), self._names))
        assert node.value is not None
        code = "[]" if isinstance(node.value, ast.List) and not node.value.elts else None
        code = "{}" if isinstance(node.value, ast.Dict) and not node.value.keys else code
        return [self._stored(node.target, code or self._on.of(node.value).at(LOOSE), kind, block)]

    def _assign(self, node: ast.Assign, block: Sequence[ast.stmt]) -> list[str]:
        first, *others = node.targets
        apart = None if others else self._apart(first, node.value)
        if apart is not None:
            values = [self._on.of(value) for _, value in apart]
            return [
                self._stored(target, value.at(LOOSE), value.kind, block)
                for (target, _), value in zip(apart, values, strict=True)
            ]
        value = self._on.of(node.value)
        lines = [self._stored(first, value.at(LOOSE), value.kind, block)]
        lines += [self._stored(other, self._on.of(_loaded(first)).code, value.kind, block) for other in others]
        return lines

    def _apart(self, target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]] | None:
        """Return the single assignments that a parallel one amounts to, or None if a value uses an earlier target."""
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return None
        if len(target.elts) != len(value.elts) or any(isinstance(each, ast.Starred) for each in value.elts):
            return None
        done: set[str] = set()
        for name, each in zip(target.elts, value.elts, strict=True):
            uses = {used.id for used in ast.walk(each) if isinstance(used, ast.Name)}
            if done & uses or not isinstance(name, ast.Name):
                return None
            done.add(name.id)
        return list(zip(target.elts, value.elts, strict=True))

    def _stored(self, target: ast.expr, code: str, kind: Kind, block: Sequence[ast.stmt]) -> str:
        if isinstance(target, ast.Subscript):
            owner = self._on.of(target.value)
            return f"{owner.at(ATOM)}[{self._on.of(target.slice).code}] = {code};"
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        new = [name for name in names if name not in self._on.scope]
        written = self._on.declare(target, kind)
        inside = all(self._stays(name, block) for name in new)
        if new and (len(new) < len(names) or not inside):
            self._hoisted += [safe_name(name) for name in new]
            new = []
        word = "" if not new else "const " if all(self._stores[name] == 1 for name in new) else "let "
        return f"{word}{written} = {code};"

    def _stays(self, name: str, block: Sequence[ast.stmt]) -> bool:
        """Return whether a name is used only in the lines of a block."""
        lines = range(block[0].lineno, (block[-1].end_lineno or 0) + 1)
        return all(each.lineno in lines for each in self._uses if each.id == name)

    def _augassign(self, node: ast.AugAssign, block: Sequence[ast.stmt]) -> list[str]:
        target = _loaded(node.target)
        left, right = self._on.of(target), self._on.of(node.value)
        found = self._on.operate(node, left, right)
        plain = left.kind == NUMBER and found.code == f"{left.code} {_SIGNS.get(type(node.op))} {right.at(7)}"
        if plain:
            return [f"{left.code} {_SIGNS[type(node.op)]}= {right.at(LOOSE)};"]
        return [f"{left.code} = {found.at(LOOSE)};"]

    def _functiondef(self, node: ast.FunctionDef, _: Sequence[ast.stmt]) -> list[str]:
        outer = dict(self._on.scope)
        parameters = self._parameters(node)
        body = self._body(node.body)
        assert node.returns is not None
        self._on.scope = outer
        result = kind_of(evaluated(ast.unparse(node.returns), self._names))
        self._on.scope[node.name] = Kind("function", (result,))
        return [f"const {safe_name(node.name)} = ({parameters}) => {{", *body, "};"]

    def _match(self, node: ast.Match, _: Sequence[ast.stmt]) -> list[str]:
        subject = self._on.of(node.subject)
        lines: list[str] = []
        for case in node.cases:
            if case.guard:
                raise UntranslatableError("a case cannot have a condition")
            if isinstance(case.pattern, ast.MatchValue):
                value = self._on.of(case.pattern.value)
                self._refuse_unless(value.kind == subject.kind, "a case must be of the kind of the subject")
                test = f"if ({subject.at(ATOM)} === {value.code}) {{"
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case is node.cases[-1]:
                test = "{"
            else:
                raise UntranslatableError("only a case of a plain value, or a last case of anything, can be translated")
            lines += [f"}} else {test}" if lines else test, *self._body(case.body)]
        return [*lines, "}"]

    def _refuse_unless(self, holds: bool, reason: str) -> None:
        if not holds:
            raise UntranslatableError(reason)


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that has the value of an assignment's target."""
    found = ast.parse(ast.unparse(target), mode="eval").body
    for each in ast.walk(found):
        if isinstance(each, ast.expr):
            each.lineno = target.lineno
    return found
