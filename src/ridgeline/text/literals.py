"""A pattern that finds any of many literals in one pass.

Python's `re` tries the branches of an alternation one by one, so 750 control literals over a text of brackets took
seconds. Written as a tree of their common beginnings each position is decided in a few steps.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

MOST_NESTED = 64
"""Most literals of which each begins with the one before; `re` and its reader are recursive."""
MOST_CHARACTERS = 1 << 23
"""Most characters of all literals together."""


def literal_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the literals, the longest of those that start at one place; nothing where there are none.

    Raises ValueError for literals that make no pattern: too many characters, or nested too deep.
    """
    found = sorted({literal for literal in literals if literal})
    characters = sum(map(len, found))
    if characters > MOST_CHARACTERS:
        raise ValueError(f"its control tokens have {characters} characters; {MOST_CHARACTERS} are the most")
    return re.compile(_written(found, MOST_NESTED) if found else r"(?!)")


def _written(endings: Sequence[str], room: int) -> str:
    """The pattern of any of these endings, sorted and not all empty; `room`: how deep it may nest."""
    if room == 0:
        raise ValueError(f"over {MOST_NESTED} of its control tokens begin with one another")
    branches = []
    for _, group in groupby(filter(None, endings), key=lambda ending: ending[0]):
        alike = list(group)
        # What the first and the last of a sorted group share, all of it share.
        shared = "".join(
            a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        )
        rest = [ending[len(shared) :] for ending in alike]
        branches.append(re.escape(shared) + (_written(rest, room - 1) if rest != [""] else ""))
    group_of = f"(?:{'|'.join(branches)})"
    return group_of + "?" if "" in endings else group_of
