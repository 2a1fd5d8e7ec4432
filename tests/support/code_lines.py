"""The lines of a module without its docstrings."""

import ast
from pathlib import Path


def code_lines(path: Path) -> list[str]:
    """Return the lines of a Python file that are no part of a docstring."""
    source = path.read_text(encoding="utf-8")
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return [text for line, text in enumerate(source.splitlines(), 1) if line not in docstrings]
