"""Count the lines of code by folder and language: `python tools/code_size.py [FOLDER]`, by default of src/ridgeline.

A line counts if it is neither blank nor a comment nor part of a docstring. Folders are named to two levels. Vendored
files are not counted.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

from syntax import text_lines

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {".py": "Python", ".js": "JavaScript", ".cpp": "C++", ".h": "C++", ".css": "CSS"}
_STRINGS = r'"(?:\\.|[^"\\\n])*"|' r"'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"
_BLOCKS = r"/\*.*?\*/"
_COMMENTS = {
    language: re.compile(rf"{_STRINGS}|(?P<comment>{kinds})", re.S)
    for language, kinds in {"JavaScript": rf"{_BLOCKS}|//[^\n]*", "C++": rf"{_BLOCKS}|//[^\n]*", "CSS": _BLOCKS}.items()
}


def code_size(source: str, language: str) -> int:
    """Return the number of lines of a file that are code."""
    if language == "Python":
        return len(python_lines(source))
    code = _COMMENTS[language].sub(lambda found: "\n" * found[0].count("\n") if found["comment"] else found[0], source)
    return sum(bool(line.strip()) for line in code.splitlines())


def python_lines(source: str) -> set[int]:
    """Return the numbers of the lines of a Python file that are code."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    }
    blank = {number for number, line in enumerate(source.splitlines(), 1) if not line.strip()}
    return held - blank - set(text_lines(ast.parse(source)))


def sizes(folder: Path) -> Counter[tuple[str, str]]:
    """Return the lines of code below a folder, by folder of the first two levels and language."""
    found: Counter[tuple[str, str]] = Counter()
    for path in folder.rglob("*"):
        inner = path.relative_to(folder).parent.parts
        if path.suffix in LANGUAGES and "vendored" not in inner:
            language = LANGUAGES[path.suffix]
            found["/".join(inner[:2]) or ".", language] += code_size(path.read_text(encoding="utf-8"), language)
    return found


def main() -> int:
    """Print a row for each folder, the largest first, and the total."""
    found = sizes(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "ridgeline")
    languages = list(dict.fromkeys(LANGUAGES.values()))
    rows = {folder: [found[folder, language] for language in languages] for folder, _ in found}
    ordered = sorted(filter(lambda folder: any(rows[folder]), rows), key=lambda folder: -sum(rows[folder]))
    print(f"{'':24}" + "".join(f"{head:>12}" for head in (*languages, "all")))
    for folder in ordered:
        print(f"{folder:24}" + "".join(f"{count or '':>12}" for count in (*rows[folder], sum(rows[folder]))))
    totals = [sum(counts) for counts in zip(*rows.values(), strict=True)]
    print(f"{'all':24}" + "".join(f"{count:>12,}" for count in (*totals, sum(totals))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
