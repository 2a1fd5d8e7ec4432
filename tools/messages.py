"""List every error and log message of the package: `python tools/messages.py [FOLDER ...]`, one per line.

A message is the text of an exception that is raised, or what is passed to a logger, to `say` or to a function that
makes an error. Values in an f-string are shown as `{...}`. Reading the list is how the messages are reviewed.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
SAYING = frozenset({"say", "warn", "fail", "invalid", "refused", "print"})
WORDS = 3
"""Texts with fewer words are names and labels, not messages."""


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _texts(node.exc)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in LOGGING | SAYING or name.endswith(("Error", "Refused")):
                yield from _texts(node)


def _texts(call: ast.Call) -> Iterator[tuple[int, str]]:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.Constant | ast.JoinedStr) and len(_text(node).split()) >= WORDS:
                yield node.lineno, " ".join(_text(node).split())
                break


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part)
        for part in node.values
        if isinstance(part, ast.FormattedValue | ast.Constant)
    )


def main() -> None:
    """Print the messages of the folders on the command line, or of src/."""
    parser = argparse.ArgumentParser(description="List every error and log message.")
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "src"])
    for folder in parser.parse_args().folders:
        for path in sorted(folder.resolve().rglob("*.py")):
            found = sorted(set(messages(ast.parse(path.read_text(encoding="utf-8")))))
            for line, text in found:
                print(f"{path.relative_to(ROOT)}:{line}: {text}")


if __name__ == "__main__":
    main()
