"""The rendered pages of the guide, docs/guide/*.md: what a forge shows, made from the sources and committed."""

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from docs.guide.machinery.chapters import GUIDE, read_chapters, reading_order
from docs.guide.machinery.images import read_measurements
from docs.guide.machinery.markdown import Renderer, page_name

from ridgeline.learn.guide.guide_numbers import read_lock
from ridgeline.learn.guide.quizzes import read_quizzes

_UNFORMATTED = "<!-- fmt: off -->"
"""The mark by which ruff leaves the code in a page alone: methods stand there without the indent of their class."""


def render_pages(texts: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return every page by its name, from the sources as they lie. Raises ValueError that names the source."""
    texts, numbers = texts or read_chapters(), read_lock()
    renderer = Renderer(texts, numbers, read_quizzes(numbers), read_measurements())
    return {page_name(name): _page(renderer, name) for name in texts}


def _page(renderer: Renderer, name: str) -> str:
    made = f"<!-- Made from docs/guide/source/{name} by `make guide-update`. Change that file, not this one. -->"
    head = f"{made}\n{_UNFORMATTED}"
    foot = _foot(renderer, name.removesuffix(".md"))
    return "\n\n".join([head, renderer.body(name), *foot]) + "\n"


def _foot(renderer: Renderer, name: str) -> list[str]:
    """Return the line with the chapters before and after; none for the index."""
    order = reading_order(renderer.texts["index.md"])
    if name not in order:
        return []
    at = order.index(name)
    before = [f"← {renderer.link_to(order[at - 1])}"] if at else []
    after = [f"{renderer.link_to(order[at + 1])} →"] if at + 1 < len(order) else []
    return ["---", " · ".join([*before, "[Contents](README.md)", *after])]


def page_faults(pages: Mapping[str, str], *, update: bool, folder: Path = GUIDE) -> list[str]:
    """Say, a line a page, which committed pages are not what the sources render to; with update, write them instead."""
    found = list[str]()
    for name, page in pages.items():
        path = folder / name
        committed = path.read_text(encoding="utf-8") if path.exists() else None
        if committed != page:
            found.append(f"{name} {_difference(committed, page)}: run `make guide-update`")
            if update:
                path.write_text(page, encoding="utf-8")
    for path in sorted(folder.glob("*.md")):
        if path.name not in pages:
            found.append(f"{path.name} has no source: delete it, or write docs/guide/source/{path.name}")
    return found


def _difference(committed: str | None, page: str) -> str:
    if committed is None:
        return "is missing"
    lines = zip_longest(committed.splitlines(), page.splitlines())
    first = next((n for n, (one, other) in enumerate(lines, 1) if one != other), 1)
    return f"is not what its source renders to, from line {first} on"
