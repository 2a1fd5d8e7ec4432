"""The count of lines of code in tools/code_size.py."""

from collections import Counter
from pathlib import Path

import pytest

from code_size import code_size, sizes

PYTHON = '''"""The module."""

# A comment.
import os  # code with a comment


class Example:
    """The example.

    It has three lines.
    """

    limit: int = 3
    """The limit."""

    def text(self) -> str:
        return """a text

        # of three lines, one of them blank
        """
'''
SCRIPT = """// A comment.
/* One
   of several lines. */
const link = "https://example.org/*"; // code with a comment

const page = `
  // part of a text

  <b>`; /* a comment behind code */
const divided = a / b / c;
"""
NATIVE = """#pragma once
// It's a comment with one quote.
constexpr int kMost = 1'000'000;  /* and another's */
const char* text = "/* no comment";
/* a comment */ int code;
"""
STYLE = """/* A comment. */
a {
  background: url(https://example.org/a.png);
}
"""


@pytest.mark.parametrize(
    ("language", "source", "lines"),
    [("Python", PYTHON, 7), ("JavaScript", SCRIPT, 5), ("C++", NATIVE, 4), ("CSS", STYLE, 3), ("Python", "", 0)],
)
def test_blank_lines_comments_and_docstrings_are_no_code(language: str, source: str, lines: int) -> None:
    assert code_size(source, language) == lines


def test_folders_are_counted_to_two_levels_without_vendored_files(tmp_path: Path) -> None:
    files = {"top.py": PYTHON, "a/b/c/deep.py": PYTHON, "a/b/page.js": SCRIPT, "a/vendored/x/their.js": SCRIPT,
             "a/text.md": "text"}  # fmt: skip
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source, encoding="utf-8")
    assert sizes(tmp_path) == Counter({(".", "Python"): 7, ("a/b", "Python"): 7, ("a/b", "JavaScript"): 5})
