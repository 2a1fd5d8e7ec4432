"""A chapter taken apart: its prose line by line, and its blocks with where they stand."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "docs" / "guide" / "source"
"""The folder of the chapters' sources, from which Sphinx makes the guide."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. language and rest: of the line that opens it. first: number of that line, from 0; last: that of
    the line which closes it. text: what is between them."""

    language: str
    rest: str
    first: int
    last: int
    text: str


def chapters(folder: Path = SOURCE) -> list[Path]:
    """The files of the guide, in the order of their names."""
    return sorted(folder.glob("*.md"))


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a chapter."""
    found = []
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map is not None:
            language, _, rest = token.info.strip().partition(" ")
            found.append(Block(language, rest.strip(), token.map[0], token.map[1] - 1, token.content))
    return found


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a chapter that are sentences of ours, with their numbers from 1: without blocks, code, math, roles,
    targets of links and what is quoted from texts."""
    lines = text.splitlines()
    inside = {n for block in blocks_of(text) for n in range(block.first, block.last + 1)}
    plain = "\n".join("" if n in inside else line for n, line in enumerate(lines))
    for pattern in (
        r"\{[\w:-]+\}`[^`]*`",  # roles, of which quotations are one
        r"`[^`\n]+`",
        r"\$\$.*?\$\$|\$[^$\n]+\$",
        r"\]\([^)]*\)",
        r"^\([\w-]+\)=$",
        r"^---\n.*?\n---$",
    ):
        plain = re.sub(pattern, _blank, plain, flags=re.MULTILINE | re.DOTALL)
    for number, line in enumerate(plain.splitlines(), 1):
        if line.strip():
            yield number, line


def _blank(found: re.Match[str]) -> str:
    """Nothing, on as many lines."""
    return "\n" * found.group().count("\n")
