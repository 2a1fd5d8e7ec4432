"""A pattern that finds any of many literals in one pass.

Python's `re` tries the branches of an alternation one by one, so 750 control literals over a text of brackets took
seconds. Written as a tree of their common beginnings each position is decided in a few steps.
"""

import re
from collections.abc import Iterable

_END = ""  # the key of a node at which a literal may end
_Node = dict[str, "_Node"]


def literal_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the literals, the longest of those that start at one place; nothing where there are none."""
    root: _Node = {}
    for literal in literals:
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        if literal:
            node[_END] = {}
    return re.compile(_written(root) if root else r"(?!)")


def _written(node: _Node) -> str:
    """The pattern of what may follow a beginning. Literals are short, so the recursion is."""
    branches = []
    for beginning in sorted(node.keys() - {_END}):
        text, rest = re.escape(beginning), node[beginning]
        while len(rest) == 1 and _END not in rest:  # one way on: no need to nest
            character, rest = next(iter(rest.items()))
            text += re.escape(character)
        branches.append(text + _written(rest))
    if not branches:
        return ""
    group = f"(?:{'|'.join(branches)})"
    return group + "?" if _END in node else group
