"""Classes and functions of the API as Markdown, from the same blocks `{eval-rst}` that Sphinx's autodoc reads."""

import inspect
import re
from collections.abc import Sequence
from importlib import import_module
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
        wanted = members.replace(",", " ").split() or _public(shown)
        parts += [_described(f"### {name}.{each}", getattr(shown, each), each) for each in wanted]
    return "\n\n".join(parts)


def _public(shown: type) -> list[str]:
    """Return the documented methods of a class in their order."""
    return [
        name
        for name, member in vars(shown).items()
        if not name.startswith("_") and callable(member) and inspect.getdoc(member)
    ]


def _described(heading: str, shown: Any, name: str) -> str:
    text = docstring_markdown(inspect.getdoc(shown) or "", tuple(inspect.signature(shown).parameters))
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


def docstring_markdown(text: str, names: Sequence[str] = ()) -> str:
    """Return a docstring in Markdown: its sentences, and as lists the entries of `Args:` and the like and the sentences
    `name: text` in which a paragraph explains parameters of these names."""
    escaped = _SECTION.sub(_section, forge.plain(text) + "\n")
    return "\n\n".join(_listed(paragraph, names) for paragraph in re.split(r"\n{2,}", escaped.strip()))


def _listed(paragraph: str, names: Sequence[str]) -> str:
    name = "|".join(map(re.escape, names))
    if not names or paragraph.startswith(("- ", "*")):
        return paragraph
    starts = rf"(?:^|(?<=\.)\s)(?=(?:{name})(?:, (?:{name}))*:\s|Raises )"
    lead, *entries = [part for part in re.split(starts, paragraph) if part] or [""]
    if re.match(rf"(?:{name})[,:]", lead):
        lead, entries = "", [lead, *entries]
    if not any(re.match(rf"(?:{name})[,:]", entry) for entry in entries):
        return paragraph
    items = [_item(entry) for entry in entries if not entry.startswith("Raises ")]
    raises = [entry for entry in entries if entry.startswith("Raises ")]
    return "\n\n".join(part for part in [lead, "\n".join(items), *raises] if part)


def _item(entry: str) -> str:
    said, text = re.split(r":\s", entry, maxsplit=1)
    named = ", ".join(f"`{name}`" for name in said.split(", "))
    return f"- {named}: {' '.join(text.split())}"


def _section(found: re.Match[str]) -> str:
    lines = inspect.cleandoc(found[2]).splitlines()
    entries = list[str]()
    for line in lines:
        named = re.fullmatch(r"(\**\w+(?: \([^)]*\))?): (.*)", line)
        if named:
            entries.append(f"- `{named[1]}`: {named[2]}")
        else:
            entries.append(f"  {line.strip()}" if entries else line)
    return f"\n*{found[1]}:*\n\n" + "\n".join(entries) + "\n"
