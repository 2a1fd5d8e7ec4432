"""Compare the code of two revisions without its docstrings and comments: `python tools/same_code.py BEFORE [AFTER]`.

A commit that only rewrites text must not change code. Each file whose syntax tree differs is printed, and then the
exit status is 1. AFTER is the working tree by default.
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

from syntax import text_of

ROOT = Path(__file__).resolve().parents[1]


def code_of(source: str) -> str:
    """Return the syntax tree of a module as text, without strings that are statements.

    A body of nothing but such a string counts as `...`.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [statement for statement in body if text_of(statement) is None]
            node.body = kept or ([] if isinstance(node, ast.Module) else [ast.Expr(ast.Constant(...))])  # type: ignore[attr-defined]
    return ast.dump(tree)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def differing(before: str, after: str | None) -> list[str]:
    """Return the Python files, by path, whose code differs between two revisions; None stands for the working tree."""
    range_ = [before] if after is None else [before, after]
    found = []
    for line in _git("diff", "--name-status", "--no-renames", *range_, "--", "*.py").splitlines():
        status, path = line.split("\t")
        if status != "M":
            found.append(path)
            continue
        new = (ROOT / path).read_text(encoding="utf-8") if after is None else _git("show", f"{after}:{path}")
        if code_of(_git("show", f"{before}:{path}")) != code_of(new):
            found.append(path)
    return found


def main() -> int:
    """Print the files whose code differs and return the exit status."""
    parser = argparse.ArgumentParser(description="Compare the code of two revisions without docstrings.")
    parser.add_argument("before", help="a revision")
    parser.add_argument("after", nargs="?", help="another revision; by default the working tree")
    arguments = parser.parse_args()
    found = differing(arguments.before, arguments.after)
    print("\n".join(found) or "the code is the same")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
