"""A linter for the English of docstrings and messages: `python tools/plain_english.py [FILE or FOLDER ...]`.

It complements ruff's D rules, which know the form of a docstring. Each finding is a line `path:line: rule: text`.
Without arguments it reads src/ and setup.py as a whole, and of tests/, benchmarks/, zoo/ and tools/ the lines that are
newer than `SINCE`. In C++ and JavaScript it reads the comments for phrases to avoid.
"""

import argparse
import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from typing_extensions import override

from syntax import text_of

ROOT = Path(__file__).resolve().parents[1]
SINCE = "bd47a547"
"""New lines outside src/ follow the rules from this commit on."""
WHOLE = ("src", "setup.py")
NEW_LINES = ("tests", "benchmarks", "zoo", "tools")

RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RELATIVE = frozenset(RULES["relative"].split())
VERBS = frozenset(RULES["verbs"].split())
PHRASES: dict[str, str] = RULES["phrases"]
DATA = frozenset(ROOT / name for name in RULES["data"])
ENTRIES = 3
"""The number of `name:` entries in prose from which on a list is easier to read."""
_PHRASE = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, PHRASES))})(?![\w-])|\bof it(?=\s*(?:[.,;:)]|$))")
_ENTRY = re.compile(r"(?:^|[\s(])[a-z_][a-z0-9_]*(?:(?:, | and )[a-z_][a-z0-9_]*)*: ")
_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)|/\*.*?\*/|(?:(?<![:\w])//[^\n]*(?:\n\s*(?=//))?)+""", re.S
)
"""A comment of C++ or JavaScript; lines that follow each other are one. The first group is a string instead."""
_SECTION = re.compile(rf"({'|'.join(RULES['sections'].split())}):$")

Documented: TypeAlias = "ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"


@dataclass(frozen=True, slots=True)
class Finding:
    """A place whose English breaks a rule."""

    path: Path
    line: int
    rule: str
    message: str

    @override
    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Docstring:
    """The docstring of a module, class, function, property or field."""

    node: ast.Constant
    kind: str
    text: str


def check_source(path: Path, source: str) -> list[Finding]:
    """Return the findings in one Python file, in the order of its lines."""
    tree = ast.parse(source)
    docstrings = list(docstrings_of(tree))
    found = [Finding(path, doc.node.lineno, *rule) for doc in docstrings for rule in docstring_faults(doc)]
    own = {id(doc.node) for doc in docstrings}
    for node in ast.walk(tree) if path not in DATA else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in own:
            found += [Finding(path, node.lineno, *rule) for rule in phrase_faults(node.value)]
    found += [Finding(path, line, *rule) for line, text in comments_of(source) for rule in phrase_faults(text)]
    return sorted(found, key=lambda finding: finding.line)


def check_comments(path: Path, source: str) -> list[Finding]:
    """Return the phrases to avoid in the comments of a C++ or JavaScript file."""
    comments = (match for match in _COMMENT.finditer(source) if not match[1])
    texts = [
        (source.count("\n", 0, each.start()) + 1, re.sub(r"(?m)^\s*(//|/?\*+/?) ?|\*/", "", each[0]))
        for each in comments
    ]
    return [Finding(path, line, *rule) for line, text in texts for rule in phrase_faults(text)]


def docstrings_of(tree: ast.Module) -> Iterator[Docstring]:
    """Yield every docstring of a module, those under fields and constants included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = text_of(node.body[0]) if node.body else None
            if first is not None:
                yield Docstring(first, kind_of(node), ast.get_docstring(node) or "")
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for before, after in pairwise(body):
                text = text_of(after)
                if isinstance(before, ast.Assign | ast.AnnAssign) and text is not None:
                    yield Docstring(text, "attribute", str(text.value).strip())


def comments_of(source: str) -> list[tuple[int, str]]:
    """Return the comments with their lines; those on consecutive lines of their own are one comment."""
    found: list[tuple[int, str]] = []
    end = -1
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line = token.string.lstrip("# "), token.start[0]
            if token.line.lstrip().startswith("#") and line == end + 1:
                first, before = found.pop()
                found.append((first, f"{before} {text}"))
            else:
                found.append((line, text))
            end = line
    return found


def kind_of(node: Documented) -> str:
    """Return "module", "class", "property" or "function"."""
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return "property" if names & {"property", "cached_property"} else "function"


def docstring_faults(doc: Docstring) -> Iterator[tuple[str, str]]:
    """Yield the rule and the message of everything that is wrong with a docstring."""
    word = re.match(r"\w*", doc.text)[0]  # type: ignore[index]
    if doc.kind == "function" and word not in VERBS:
        yield "first-word", f'"{word} ..." is no verb of tools/plain_english.toml: begin with "Return", "Allocate", ...'
    elif word in RELATIVE:
        yield "first-word", f'"{word} ..." begins a fragment: begin with a noun and its article'
    entries = _ENTRY.findall(prose_of(doc.text))
    if len(entries) >= ENTRIES:
        yield "entries", f'"{entries[0].strip()}" and {len(entries) - 1} more in prose: write a list (Args:)'
    yield from phrase_faults(doc.text)


def phrase_faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield the rule and the message of each phrase to avoid."""
    for match in _PHRASE.finditer(" ".join(text.split())):
        advice = PHRASES.get(match[0], "name the thing, or drop the words")
        yield "phrase", f'"{match[0]}": write {advice}'


def prose_of(text: str) -> str:
    """Return the paragraphs of a docstring without its sections, lists and blocks of code."""
    kept, inside = [], False
    for line in text.splitlines():
        if _SECTION.match(line.strip()):
            inside = True
        elif line.strip() and not line.startswith((" ", "- ")):
            inside = False
        if not inside and not line.startswith(("    ", "- ", "|")):
            kept.append(line)
    return "\n".join(kept)


def new_lines(folders: Sequence[str]) -> dict[Path, set[int]] | None:
    """Return the lines added since `SINCE` in the Python files of some folders, or None without that commit."""
    command = ["git", "diff", "--unified=0", "--no-renames", SINCE, "--", *(f"{folder}/*.py" for folder in folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    found: dict[Path, set[int]] = {}
    lines: set[int] = set()
    for line in done.stdout.splitlines():
        if line.startswith("+++ b/"):
            lines = found.setdefault(ROOT / line.removeprefix("+++ b/"), set())
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines |= set(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    return found


CHECKERS = {".py": check_source} | dict.fromkeys((".cpp", ".h", ".js"), check_comments)
"""The function that checks a file, by the file's suffix."""


def check(paths: Sequence[Path]) -> list[Finding]:
    """Return the findings in files, and in the files of folders that have a checker and are not vendored."""
    files = [file for path in paths for file in (sorted(path.rglob("*.*")) if path.is_dir() else [path])]
    own = [file for file in files if file.suffix in CHECKERS and "vendored" not in file.parts]
    return [finding for file in own for finding in CHECKERS[file.suffix](file, file.read_text(encoding="utf-8"))]


def check_repository() -> list[Finding]:
    """Return the findings in src/ and setup.py, and those in new lines elsewhere."""
    found = check([ROOT / folder for folder in WHOLE])
    added = new_lines(NEW_LINES)
    if added is None:
        print(f"commit {SINCE} is not in this clone: only {' and '.join(WHOLE)} is checked", file=sys.stderr)
        return found
    fresh = check([path for path in added if path.exists()])
    return found + [finding for finding in fresh if finding.line in added[finding.path]]


def main() -> int:
    """Print the findings and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the English of docstrings and messages.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; without any, the repository")
    paths = [path.resolve() for path in parser.parse_args().paths]
    found = check(paths) if paths else check_repository()
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
