"""A chapter's source taken apart: its prose line by line, its blocks with where they stand, the order of chapters."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

GUIDE = Path(__file__).resolve().parents[1]
"""The folder of the rendered pages, which a forge shows."""
SOURCE = GUIDE / "source"
"""The folder of the chapters' sources, from which Sphinx and the rendered pages are made."""
ROOT = GUIDE.parents[1]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. language and rest: of the line that opens it. first: number of that line, from 0; last: that of
    the line which closes it. text: what is between them."""

    language: str
    rest: str
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A text of the glossary, with the terms that share it."""

    terms: tuple[str, ...]
    text: str


def chapters(folder: Path = SOURCE) -> list[Path]:
    """Return the sources of the chapters, in the order of their names."""
    return sorted(folder.glob("*.md"))


def read_chapters(folder: Path = SOURCE) -> dict[str, str]:
    """Return the text of each chapter's source by its file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in chapters(folder)}


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a chapter."""
    found = []
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map is not None:
            language, _, rest = token.info.strip().partition(" ")
            found.append(Block(language, rest.strip(), token.map[0], token.map[1] - 1, token.content))
    return found


def options_of(block: Block) -> tuple[dict[str, str], str]:
    """Split what a directive contains into its options, lines `:name: value` at its beginning, and its content."""
    lines, options = block.text.splitlines(), dict[str, str]()
    while lines and (found := re.fullmatch(r":([\w-]+):\s*(.*)", lines[0])):
        options[found[1]] = found[2]
        del lines[0]
    return options, "\n".join(lines).strip()


def chapter_names(toctree: Block) -> list[str]:
    """Return the names of the chapters in a block `{toctree}`, in its order."""
    return options_of(toctree)[1].split()


def reading_order(index: str) -> list[str]:
    """Return the names of all chapters in the order in which the index has them."""
    return [name for block in blocks_of(index) if block.language == "{toctree}" for name in chapter_names(block)]


def title_of(text: str) -> str:
    """Return the first heading of a chapter."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found is not None, text[:80]
    return found[1].strip()


def definitions_of(text: str) -> list[Definition]:
    """Return the definitions in a chapter's blocks `{glossary}`: terms, a line each, then an indented text."""
    found = []
    for block in blocks_of(text):
        for part in re.split(r"\n\n(?=\S)", block.text.strip()) if block.language == "{glossary}" else ():
            lines = part.splitlines()
            terms = tuple(line.strip() for line in lines if not line.startswith(" "))
            said = "\n".join(line.removeprefix("  ") for line in lines if line.startswith("  "))
            found.append(Definition(terms, said))
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
