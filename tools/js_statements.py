"""The translation of Python's statements to JavaScript, function by function."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from js_expressions import Expressions
from js_kinds import ATOM, LOOSE, NUMBER, STRING, Kind, UntranslatableError, evaluated, kind_of, need, safe_name
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
            lines = self._block(node.body)
        except UntranslatableError as error:
            at: Any = self._on.node or self._node or node
            reason = str(error) or f"`{ast.unparse(at).splitlines()[0]}` cannot be translated"
            raise UntranslatableError(f"{self._path}:{at.lineno}: {reason}") from None
        if self._hoisted:
            lines.insert(0, f"  let {', '.join(self._hoisted)};")
        return "\n".join([f"export function {name}({parameters}) {{", *lines, "}"])

    def _parameters(self, node: ast.FunctionDef) -> str:
        given = node.args
        need(not given.vararg and not given.kwarg, "starred parameters cannot be translated")
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
        need(argument.annotation, f"{argument.arg} needs an annotation")
        return self._annotated(argument.annotation)

    def _annotated(self, annotation: ast.expr | None) -> Kind:
        assert annotation is not None
        return kind_of(evaluated(ast.unparse(annotation), self._names))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> list[str]:
        lines = []
        for statement in statements:
            self._node = statement
            if text_of(statement) is not None or isinstance(statement, ast.Assert):
                continue
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            need(method)
            lines += [f"  {line}" for line in method(statement, statements)]  # type: ignore[misc]
        return lines

    # -- statements ---------------------------------------------------------------------------------------------------

    def _return(self, node: ast.Return, _: Sequence[ast.stmt]) -> list[str]:
        return ["return;" if node.value is None else f"return {self._on.of(node.value).at(LOOSE)};"]

    def _raise(self, node: ast.Raise, _: Sequence[ast.stmt]) -> list[str]:
        need(isinstance(node.exc, ast.Call))
        (text,) = self._on.plain(node.exc)  # type: ignore[arg-type]
        return [f"throw new Error({self._on.of(text).code});"]

    def _expr(self, node: ast.Expr, _: Sequence[ast.stmt]) -> list[str]:
        return [f"{self._on.of(node.value).code};"]

    def _break(self, node: ast.Break, _: Sequence[ast.stmt]) -> list[str]:
        return ["break;"]

    def _if(self, node: ast.If, _: Sequence[ast.stmt]) -> list[str]:
        lines = [f"if ({self._on.condition(node.test).at(LOOSE)}) {{", *self._block(node.body)]
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            first, *rest = self._if(node.orelse[0], node.orelse)
            return [*lines, f"}} else {first}", *rest]
        if node.orelse:
            lines += ["} else {", *self._block(node.orelse)]
        return [*lines, "}"]

    def _while(self, node: ast.While, _: Sequence[ast.stmt]) -> list[str]:
        need(not node.orelse, "a loop cannot have an else")
        return [f"while ({self._on.condition(node.test).at(LOOSE)}) {{", *self._block(node.body), "}"]

    def _for(self, node: ast.For, _: Sequence[ast.stmt]) -> list[str]:
        need(not node.orelse, "a loop cannot have an else")
        outer = set(self._on.scope)
        head = self._entries(node) or self._items(node)
        lines = [*head, *self._block(node.body), "}"]
        for name in self._on.scope.keys() - outer - set(self._hoisted):
            del self._on.scope[name]
        return lines

    def _items(self, node: ast.For) -> list[str]:
        items = self._on.items(node.iter)
        target = self._on.declare(node.target, items.kind.parts[0])
        return [f"for (const {target} of {items.code}) {{"]

    def _entries(self, node: ast.For) -> list[str] | None:
        """Return the head of a loop over the items of a mapping with text keys, which needs no array of them."""
        match node.iter, node.target:
            case ast.Call(func=ast.Attribute(value=value, attr="items")), ast.Tuple(elts=targets):
                owner = self._on.of(value)
                if owner.kind.name == "mapping" and owner.kind.parts[0] == STRING:
                    key, item = map(self._on.declare, targets, owner.kind.parts)
                    return [f"for (const {key} in {owner.code}) {{", f"  const {item} = {owner.at(ATOM)}[{key}];"]
        return None

    def _annassign(self, node: ast.AnnAssign, block: Sequence[ast.stmt]) -> list[str]:
        assert node.value is not None
        return [self._stored(node.target, self._on.of(node.value).at(LOOSE), self._annotated(node.annotation), block)]

    def _assign(self, node: ast.Assign, block: Sequence[ast.stmt]) -> list[str]:
        first, *others = node.targets
        apart = self._apart(first, node.value)
        if apart and not others:
            values = [self._on.of(value) for _, value in apart]
            return [
                self._stored(target, value.at(LOOSE), value.kind, block)
                for (target, _), value in zip(apart, values, strict=True)
            ]
        value = self._on.of(node.value)
        lines = [self._stored(first, value.at(LOOSE), value.kind, block)]
        return lines + [self._stored(other, self._on.of(_loaded(first)).code, value.kind, block) for other in others]

    def _apart(self, target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
        """Return the single assignments that a parallel one amounts to; none if a value uses an earlier target."""
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
            return []
        names = [name.id for name in target.elts if isinstance(name, ast.Name)]
        uses = [{used.id for used in ast.walk(each) if isinstance(used, ast.Name)} for each in value.elts]
        if len(names) != len(value.elts) or any(set(names[:at]) & used for at, used in enumerate(uses)):
            return []
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
        body = self._block(node.body)
        self._on.scope = outer
        self._on.scope[node.name] = Kind("function", (self._annotated(node.returns),))
        return [f"const {safe_name(node.name)} = ({parameters}) => {{", *body, "};"]

    def _match(self, node: ast.Match, _: Sequence[ast.stmt]) -> list[str]:
        subject = self._on.of(node.subject)
        lines: list[str] = []
        for case in node.cases:
            need(not case.guard and (isinstance(case.pattern, ast.MatchValue) or case is node.cases[-1]))
            test = "{"
            if isinstance(case.pattern, ast.MatchValue):
                value = self._on.of(case.pattern.value)
                need(value.kind == subject.kind)
                test = f"if ({subject.at(ATOM)} === {value.code}) {{"
            else:
                need(isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None)
            lines += [f"}} else {test}" if lines else test, *self._block(case.body)]
        return [*lines, "}"]


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that has the value of an assignment's target."""
    found = ast.parse(ast.unparse(target), mode="eval").body
    for each in ast.walk(found):
        if isinstance(each, ast.expr):
            each.lineno = target.lineno
    return found
