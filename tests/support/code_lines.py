"""The lines of a module without its docstrings."""

import ast
from pathlib import Path

from syntax import text_lines


def code_lines(path: Path) -> list[str]:
    """Return the lines of a Python file that are no part of a docstring."""
    source = path.read_text(encoding="utf-8")
    docstrings = text_lines(ast.parse(source))
    return [text for line, text in enumerate(source.splitlines(), 1) if line not in docstrings]
