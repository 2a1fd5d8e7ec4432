"""Docstrings in syntax trees, as the tools and the tests read them."""

import ast


def text_of(statement: ast.stmt) -> ast.Constant | None:
    """Return the string of a statement that is nothing but a string, like a docstring, or None."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value if isinstance(statement.value.value, str) else None
    return None


def text_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and text_of(node) is not None)
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
