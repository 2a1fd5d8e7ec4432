"""The Jinja environment of chat templates: the conventions of transformers in a sandbox that tracks who wrote what.

Conventions (transformers/utils/chat_template_utils.py): trim and lstrip blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that does not escape HTML, and `{% generation %}` blocks, which mark training targets and
render as their content. Jinja's sandbox limits what a template can access, and a `TemplateBudget` what it can consume.
"""

import functools
import inspect
import json
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from markupsafe import Markup
from typing_extensions import override

from ridgeline.core.text.provenance import SafeText, TrustedStr, concat, escaped, written_join
from ridgeline.core.text.template_budget import Exhausted, TemplateBudget, allow_filter, allow_method, allow_operator

MAX_SOURCE = 1 << 18
"""The longest chat template, in characters; released templates have less than 32 Ki."""
MAX_FORMAT = 1000
"""The longest date format that a chat template may use, in characters."""
# The budget does not know bytes; a translation can produce a long text for each character.
_CLOSED = frozenset({"encode", "to_bytes", "from_bytes", "fromhex", "translate", "maketrans"})
# Filters that no chat template uses and whose output can be much larger than their input.
_UNUSED = ("pprint", "urlize", "wordwrap", "xmlattr")


class RefusedByTemplate(jinja2.TemplateError):
    """An error from `raise_exception`: the template rejects a conversation and says why."""


@dataclass(frozen=True, slots=True)
class FailurePlace:
    """The position at which a chat template failed."""

    line: int | None
    """The line of a chat template that failed, counted from 1; None if it is not known."""
    message: int | None
    """The index of the message that a chat template was processing when it failed; None if it is not known."""


def failed_at(error: BaseException, template: jinja2.Template, messages: Sequence[object]) -> FailurePlace:
    """Return the position at which a template failed on these messages, as far as the traceback shows it."""
    places = {id(each): at for at, each in enumerate(messages)}
    line = message = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename != template.filename:
            continue
        line = number
        # The last variable is the innermost: a loop variable comes after those that the template has set before.
        held = (places[id(value)] for value in reversed(frame.f_locals.values()) if id(value) in places)
        message = next(held, message)
    return FailurePlace(line, message)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """A Jinja environment that compiles one template whose own literals are `TrustedStr`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._spending = threading.local()  # several threads can render in one environment
        self.filters |= {"tojson": _tojson, "from_json": _from_json}
        kept = {name: function for name, function in self.filters.items() if name not in _UNUSED}
        self.filters = {name: self._measured(name, function) for name, function in kept.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _Namespace,
            "dict": _dict,
        }

    @contextmanager
    def budgeted(self) -> Iterator[None]:
        """Charge everything that this thread compiles or renders inside this context to one new budget."""
        self._spending.budget = TemplateBudget()
        try:
            yield
        finally:
            del self._spending.budget

    @property
    def _budget(self) -> TemplateBudget:
        """The budget of the rendering that is in progress in this thread."""
        budget: TemplateBudget = self._spending.budget
        return budget

    @override
    def concat(self, texts: Iterable[str]) -> str:
        """Join rendered blocks of a template, preserving the marks of who wrote each character."""
        kept, size = [], 0
        for text in texts:
            kept.append(text)
            size += len(text)
            self._budget.allow(size)
        return str(self.made(concat(kept)))

    def made(self, value: Any) -> Any:
        """Charge a value that the template created to the budget of its rendering, and return it."""
        return self._budget.charge_value(value)

    def count_iterations(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return the items of a template's loop as an iterable that counts the iterations."""
        return self._budget.steps(items)

    def written_join(self, *values: Any) -> Any:
        """Implement Jinja's `~` operator: join values as strings, within the template's budget."""
        self._budget.allow(sum(map(self._budget.size, values)))
        return self.made(written_join(*values))

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template can read an attribute of a value.

        In addition to Jinja's rule this excludes the methods that the budget cannot measure.
        """
        return attr not in _CLOSED and super().is_safe_attribute(obj, attr, value)

    @override
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja has it
        """Run a call in a template as one step of its budget, and charge the size of its result."""
        budget = __self._budget
        budget.step()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja wraps str.format
        receiver = getattr(method, "__self__", None)
        if isinstance(receiver, str):
            allow_method(method.__name__, receiver, (*args, *kwargs.values()), budget)
        return budget.charge_value(super().call(__context, __obj, *args, **kwargs))

    @override
    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Run a binary operator of a template whose result can be larger than its operands, within the budget."""
        self._budget.step()
        allow_operator(operator, left, right, self._budget)
        return self.made(super().call_binop(context, operator, left, right))

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a Jinja filter whose results are charged to the template's budget.

        The filter keeps the signature of the function, because Jinja inspects it.
        """
        inner = inspect.unwrap(function)  # the wrapper may consume what Jinja passes in addition to the value
        first = 1 + hasattr(function, "jinja_pass_arg")
        names = list(inspect.signature(inner).parameters)[1 + hasattr(inner, "jinja_pass_arg") :]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget
            budget.step()
            named = {**dict.fromkeys(names[len(args) - first :]), **kwargs}
            value = args[first - 1]
            allow_filter(name, value, (*args[first:], *named.values()), budget)
            result = function(*args, **kwargs)
            return budget.charge_value(_safe_text(name, value, result) if isinstance(result, Markup) else result)

        return run

    def compile_chat(self, source: str) -> tuple[jinja2.Template, frozenset[str]]:
        """Compile a chat template and return it with the names of the variables that a caller can set.

        A malformed source raises any exception that Jinja or Python's compiler raises.
        """
        with self.budgeted():  # Jinja evaluates constant expressions here
            names = _inputs(self.parse(source))  # a separate tree: the search for names folds constants in place
            return self.from_string(_MarkLiterals(self).visit(self.parse(source))), names

    def trusted_literal(self, text: str) -> nodes.Expr:
        """Return a syntax node that evaluates to `text`, marked as written by the template."""
        name = f"written_{len(vars(self))}"
        setattr(self, name, TrustedStr.by_template(text))
        return nodes.EnvironmentAttribute(name)


def _inputs(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that a template reads from outside.

    Variables that the template assigns are not inputs, unless it tests whether they are defined.
    """
    assigned = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    tested = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    return frozenset(find_undeclared_variables(tree)) - (assigned - tested)


class _MarkLiterals(NodeTransformer):
    """A transformer that replaces template literals by `TrustedStr` and makes templates measurable.

    It replaces `~` by a join that preserves the marks, and counts loop iterations and the values that no call creates:
    lists, objects and slices.
    """

    def __init__(self, environment: ChatEnvironment) -> None:
        self._environment = environment

    def visit_Const(self, node: nodes.Const) -> nodes.Expr:  # noqa: N802 - jinja's name
        if type(node.value) is not str:
            return node
        return self._environment.trusted_literal(node.value).set_lineno(node.lineno)  # type: ignore[return-value]

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:  # noqa: N802 - jinja's name
        return self._environment.trusted_literal(node.data).set_lineno(node.lineno)  # type: ignore[return-value]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 - jinja's name
        parts = [self.visit(part) for part in node.nodes]
        join = nodes.EnvironmentAttribute("written_join")
        return nodes.Call(join, parts, [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802 - jinja's name
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):  # a key is not output, and a constant key is faster
            node.arg = self.visit(node.arg)
        return self._call("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja's name
        self.generic_visit(node)
        node.iter = self._call("count_iterations", node.iter)
        return node

    def _visit_literal(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Expr:
        """Wrap a list, object or tuple that the template creates, so that the budget counts it."""
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else self._call("made", node)

    visit_List = visit_Dict = visit_Tuple = _visit_literal

    @staticmethod
    def _call(name: str, node: Any) -> nodes.Expr:
        """Return a syntax node that calls an environment method on the value of a node."""
        return nodes.Call(nodes.EnvironmentAttribute(name), [node], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """The block `{% generation %}...{% endgeneration %}`, which renders as its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """A namespace that rejects names with a leading underscore, because they access Python internals.

    Its printed form does not show its contents: the text of namespaces nested in each other twice, forty times over,
    would be endless.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    @override
    def __repr__(self) -> str:
        return "<Namespace>"

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _safe_text(name: str, value: Any, result: str) -> SafeText:
    """Return the result of a filter as text that needs no HTML escaping.

    The result has the marks of the value if the filter preserves its characters.
    """
    if not isinstance(value, str) or name not in ("safe", "e", "escape"):
        return SafeText.of(str(result))
    return SafeText.of(value if name == "safe" else escaped(value))


def _check_name(name: str) -> None:
    """Raise SecurityError for a namespace variable whose name starts with an underscore."""
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Implement `dict` for templates without the attributes of the type."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    """Reject the conversation with a message from the template."""
    raise RefusedByTemplate(message)


def _strftime_now(form: str) -> str:
    """Return the current time in the given format, for templates."""
    if len(form) > MAX_FORMAT:
        raise Exhausted(f"its date format is longer than {MAX_FORMAT} characters")
    return datetime.now().strftime(form)


def _from_json(text: str) -> Any:
    """Return the value of a JSON text, as DeepSeek's templates read arguments; transformers lacks this filter."""
    return json.loads(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
