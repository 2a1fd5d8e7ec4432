"""The Jinja environment of chat templates: transformers' conventions in a sandbox, with provenance kept.

Conventions (transformers/utils/chat_template_utils.py): trim and lstrip blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that does not escape HTML, and `{% generation %}` blocks, which mark what a model is trained
on and render as their content. The sandbox bounds what a template can reach, not how long it runs: load templates
from a model's folder or an operator's file, never from a request.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ridgeline.text.provenance import Written, concat, written_join

MAX_SOURCE = 1 << 20
"""Longest template source, in characters; released ones stay under 32 Ki."""
MAX_RENDERED = 1 << 26
"""Longest rendered prompt or block of one, in characters."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles one template whose own literals are `Written`."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "namespace": _Namespace,
            "dict": _dict,
        }
        self.written_join = written_join

    @staticmethod
    def concat(texts: Iterable[str]) -> str:
        """How rendered blocks are joined: bounded, since a template's loops are not."""
        kept, size = [], 0
        for text in texts:
            kept.append(text)
            size += len(text)
            if size > MAX_RENDERED:
                raise jinja2.TemplateError(f"the prompt is longer than {MAX_RENDERED} characters")
        return concat(kept)

    def compile_chat(self, source: str) -> tuple[jinja2.Template, frozenset[str]]:
        """The compiled template and the names that a caller may set. Raises jinja2.TemplateError."""
        names = _inputs(self.parse(source))  # a tree of its own: looking for names folds constants in place
        return self.from_string(_MarkLiterals(self).visit(self.parse(source))), names

    def keep(self, text: str) -> nodes.Expr:
        """A node that evaluates to `text` as written by the template."""
        name = f"written_{len(vars(self))}"
        setattr(self, name, Written.by_template(text))
        return nodes.EnvironmentAttribute(name)


def _inputs(tree: nodes.Template) -> frozenset[str]:
    """Names read from outside. What the template assigns is its own, unless it asks whether it is defined."""
    assigned = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    return frozenset(find_undeclared_variables(tree)) - (assigned - asked)


class _MarkLiterals(NodeTransformer):
    """Replace the literals of a template by `Written` strings, and `~` by a join that keeps them."""

    def __init__(self, environment: ChatEnvironment) -> None:
        self._environment = environment

    def visit_Const(self, node: nodes.Const) -> nodes.Expr:  # noqa: N802 - jinja's name
        if type(node.value) is not str:
            return node
        return self._environment.keep(node.value).set_lineno(node.lineno)  # type: ignore[return-value]

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:  # noqa: N802 - jinja's name
        return self._environment.keep(node.data).set_lineno(node.lineno)  # type: ignore[return-value]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 - jinja's name
        parts = [self.visit(part) for part in node.nodes]
        join = nodes.EnvironmentAttribute("written_join")
        return nodes.Call(join, parts, [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802 - jinja's name
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):  # a key is no output; as a constant it is looked up faster
            node.arg = self.visit(node.arg)
        return node


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` renders as its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Refuses underscore names: they reach into Python objects."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict` without the attributes of the type."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
