"""Markdown that forges show alike: CommonMark with tables, math, and HTML that opens.

GitHub, GitLab, Gitea and Forgejo all render what is written here; definition lists, directives and roles they do not.
"""

import re
from collections.abc import Callable

from markdown_it import MarkdownIt

_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_MANGLED = re.compile(r"\\[^A-Za-z]|[_*<]")
"""What Markdown takes out of a formula, or takes for markup, before a forge reads the formula."""


def slug(heading: str) -> str:
    """Return the anchor that forges give a heading: its words in small letters, with hyphens between."""
    (token,) = MarkdownIt().parseInline(heading)
    said = "".join(child.content for child in token.children or ())
    return re.sub(r"[^\w\- ]", "", said.strip().lower()).replace(" ", "-")


def plain(text: str) -> str:
    """Return Markdown that shows a text as it is, but for code between backticks."""
    return _outside_code(text, lambda part: _dollars(re.sub(r"([*<|])", r"\\\1", part)))


def marked(text: str) -> str:
    """Return Markdown that shows a text whose emphasis and code are marked as in Markdown."""
    return _outside_code(text, lambda part: _dollars(re.sub(r"([<|])", r"\\\1", part)))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, at = list[str](), 0
    for found in _CODE.finditer(text):
        parts += [change(text[at : found.start()]), found.group()]
        at = found.end()
    return "".join([*parts, change(text[at:])])


def _dollars(text: str) -> str:
    """Put each dollar sign in a tag of its own. Two of them in a line would be a formula (GitHub's manual)."""
    return text.replace("$", "<span>$</span>")


def formula(tex: str) -> str:
    """Return a formula in a line."""
    return f"$`{tex}`$" if _MANGLED.search(tex) else f"${tex}$"


def display(tex: str) -> str:
    """Return a formula on a line of its own. In a fence nothing of it is taken for Markdown."""
    return fence(tex.strip(), "math")


def fence(text: str, language: str) -> str:
    """Return a block of code."""
    most = max(map(len, re.findall(r"^`{3,}", text, re.MULTILINE)), default=2)
    mark = "`" * max(3, most + 1)
    return f"{mark}{language}\n{text.rstrip()}\n{mark}"


def fold(title: str, body: str) -> str:
    """Return a text that a click on its title, which is HTML, opens."""
    return f"<details><summary>{title}</summary>\n\n{body.strip()}\n\n</details>"


def image(alt: str, path: str) -> str:
    """Return an image."""
    escaped = re.sub(r"([][])", r"\\\1", alt)
    return f"![{escaped}]({path})"


def link(text: str, target: str) -> str:
    """Return a link."""
    return f"[{text}]({target})"
