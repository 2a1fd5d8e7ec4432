"""The comparison of code without docstrings in tools/same_code.py."""

import pytest

from same_code import code_of

BEFORE = '''
"""The module."""

LIMIT = 3
"""The limit."""


class Example:
    """The example."""

    def run(self):
        """Run it."""
        return "text"
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""Run it."""', '"""Run the example.\n\n        Args: none.\n        """', True),
        ('"""The limit."""', "# The limit.", True),
        ('    """The example."""\n', "", True),
        ('"text"', '"other text"', False),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("def run", "async def run", False),
    ],
)
def test_only_changes_of_code_count(old: str, new: str, same: bool) -> None:
    assert old in BEFORE
    assert (code_of(BEFORE) == code_of(BEFORE.replace(old, new))) is same


def test_a_body_of_a_docstring_alone_is_an_empty_one() -> None:
    assert code_of('def f():\n    """Do it."""\n') == code_of("def f():\n    ...\n") != code_of("def f():\n    pass\n")
