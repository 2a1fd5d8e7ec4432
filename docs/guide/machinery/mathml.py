"""Formulas as MathML, made when the site is: browsers draw it without a script."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def visit_math(writer: Any, node: nodes.math) -> None:
    """A formula in a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(writer: Any, node: nodes.math_block) -> None:
    """A formula of its own."""
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
