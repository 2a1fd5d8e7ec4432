"""Classes and functions of the API as Markdown, from the same blocks `{eval-rst}` that Sphinx's autodoc reads."""

import ast
import inspect
import re
from importlib import import_module
from itertools import pairwise
from textwrap import dedent
from typing import Any

from docs.guide.machinery import forge

_DIRECTIVE = re.compile(
    r"^\.\. auto(?:class|function):: (?P<name>[\w.]+)\n(?:   :members:(?P<members>.*)\n?)?", re.MULTILINE
)
_SECTION = re.compile(
    r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples):\n((?:(?: {4}.*)?\n?)+)", re.MULTILINE
)
_WIDE = 88


def api_markdown(directives: str) -> str:
    """Return what a block of `autoclass` and `autofunction` shows. Raises ValueError for any other directive."""
    if rest := _DIRECTIVE.sub("", directives).strip():
        raise ValueError(f"this part of a block eval-rst cannot be rendered; add it to api.py: {rest}")
    return "\n\n".join(_entry(found["name"], found["members"]) for found in _DIRECTIVE.finditer(directives))


def _entry(path: str, members: str | None) -> str:
    module, _, name = path.rpartition(".")
    shown = getattr(import_module(module), name)
    parts = [_described(f"## {name}", shown, path)]
    if members is not None:
        named = members.replace(",", " ").split()
        if not named and (fields := field_docstrings(shown)):
            parts.append("*Fields:*\n\n" + "\n".join(f"- `{field}`: {text}" for field, text in fields.items()))
        parts += [_described(f"### {name}.{each}", getattr(shown, each), each) for each in named or _public(shown)]
    return "\n\n".join(parts)


def field_docstrings(shown: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, in Markdown and on one line each, by field."""
    (tree,) = ast.parse(dedent(inspect.getsource(shown))).body
    assert isinstance(tree, ast.ClassDef)
    found = dict[str, str]()
    for field, after in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(forge.plain(inspect.cleandoc(str(after.value.value))).split())
    return found


def _public(shown: type) -> list[str]:
    """Return the documented methods of a class in their order."""
    return [
        name
        for name, member in vars(shown).items()
        if not name.startswith("_") and callable(member) and inspect.getdoc(member)
    ]


def _described(heading: str, shown: Any, name: str) -> str:
    text = docstring_markdown(inspect.getdoc(shown) or "")
    return f"{heading}\n\n{forge.fence(_signature(shown, name), 'python')}\n\n{text}".strip()


def _signature(shown: Any, name: str) -> str:
    """Return the signature, with types by their names alone. A long one has a line for each parameter."""
    signature = inspect.signature(shown)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    if inspect.isclass(shown):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    signature = signature.replace(parameters=parameters)
    line = _without_modules(f"{name}{signature}")
    if len(line) <= _WIDE:
        return line
    inside = [_without_modules(part) for part in map(str, parameters)]
    first = next((n for n, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None:
        inside.insert(first, "*")
    ends = line[line.rindex(")") :] if ")" in line else ")"
    return "\n".join([f"{_without_modules(name)}(", *(f"    {part}," for part in inside), ends])


def _without_modules(text: str) -> str:
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text).replace("<factory>", "...")


def docstring_markdown(text: str) -> str:
    """Return a docstring in Markdown: its paragraphs, and the entries of `Args:` and the like as lists."""
    escaped = _SECTION.sub(_section, forge.plain(text) + "\n")
    return re.sub(r"\n{3,}", "\n\n", escaped.strip())


def _section(found: re.Match[str]) -> str:
    lines = inspect.cleandoc(found[2]).splitlines()
    entries = list[str]()
    for line in lines:
        named = re.fullmatch(r"((?:\\?\*)*\w+(?: \([^)]*\))?): (.*)", line)
        if named:
            entries.append(f"- `{named[1].replace(chr(92), '')}`: {named[2]}")
        else:
            entries.append(f"  {line.strip()}" if entries else line)
    return f"\n*{found[1]}:*\n\n" + "\n".join(entries) + "\n"
