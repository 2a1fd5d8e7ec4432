"""The output of `ridgeline plan` in README.md, docs/plan.md and docs/choose.md; `python benchmarks/shown.py` renews it.

A block of ```console has commands behind `$ `, each followed by what it says on a page of 100 columns, errors included.
"""

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

from ridgeline.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "plan.md", ROOT / "docs" / "choose.md")
_BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.S)


def said(command: str) -> str:
    """What a command says, run in this process."""
    out = io.StringIO()
    with (
        patch.object(sys, "argv", shlex.split(command)),
        patch.dict(os.environ, COLUMNS="100"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return out.getvalue()


def commands_in(page: str) -> list[str]:
    """The commands of a page, in its order."""
    return [
        line.removeprefix("$ ") for block in _BLOCK.findall(page) for line in block.splitlines() if line[:2] == "$ "
    ]


def again(page: str) -> str:
    """The page with every command followed by what it says now."""
    return _BLOCK.sub(lambda found: _block(found[0]), page)


def _block(text: str) -> str:
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    return "".join(f"{command}\n{said(command.removeprefix('$ '))}" for command in commands)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(again(path.read_text(encoding="utf-8")), encoding="utf-8")
