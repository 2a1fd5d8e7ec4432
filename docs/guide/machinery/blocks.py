"""Blocks of the guide that run: Python in one namespace a chapter, commands of a console; and what they print, compared
number by number and word by word.

    ```python            runs; what it prints is the block `text` that follows, if one does
    ```console           each line `$ ridgeline ...` runs; what follows is its output, in which ... stands for lines
    ```console skip: why is shown and never run

A number may be off by half a percent, or by what its block says: `text within 20%`.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from docs.guide.machinery.chapters import Block, blocks_of

WITHIN = 0.005
COLUMNS = 90
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_PROMPT = "$ "


@dataclass
class Outcome:
    """What became of the blocks of a chapter. faults: what differs or failed, a line each; text: the chapter with the
    outputs that its blocks had."""

    text: str
    ran: int = 0
    skipped: int = 0
    faults: list[str] = field(default_factory=list)


def run_chapter(text: str, name: str) -> Outcome:
    """Run every block of a chapter in its order; one that fails does not stop the others."""
    outcome, lines = Outcome(text), text.splitlines()
    namespace: dict[str, Any] = {"__name__": name}
    blocks = blocks_of(text)
    edits: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for block, after in zip_longest(blocks, blocks[1:]):
            where = f"{name}:{block.first + 1}"
            if block.rest.startswith("skip"):
                outcome.skipped += 1
                if not re.fullmatch(r"skip: .{8,}", block.rest):
                    outcome.faults.append(f"{where}: says not why it is skipped")
            elif block.language == "python":
                outcome.ran += 1
                printed, fault = _run_python(block.text, namespace, where)
                if fault:
                    outcome.faults.append(fault)
                follows = after is not None and after.language == "text" and _adjacent(lines, block, after)
                wanted = after if follows else None
                edits += _compare(wanted, printed, where, outcome) if not fault else []
            elif block.language == "console":
                outcome.ran += 1
                edits += _run_console(block, where, outcome, Path(folder))
    for first, last, new in sorted(edits, reverse=True):
        lines[first:last] = new
    outcome.text = "\n".join(lines) + "\n"
    return outcome


def _adjacent(lines: Sequence[str], block: Block, after: Block) -> bool:
    """Whether nothing but empty lines is between two blocks."""
    return not any(line.strip() for line in lines[block.last + 1 : after.first])


def _run_python(code: str, namespace: dict[str, Any], where: str) -> tuple[str, str]:
    """What a block prints, and how it failed, if it did."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, where, "exec"), namespace)
    except Exception:
        return "", f"{where}: {traceback.format_exc(limit=-1).strip()}"
    return printed.getvalue(), ""


def _compare(wanted: Block | None, printed: str, where: str, outcome: Outcome) -> list[tuple[int, int, list[str]]]:
    """The edit that a block of output needs; none where it is the same within its tolerance."""
    if wanted is None:
        if printed.strip():
            outcome.faults.append(f"{where}: prints {printed.strip()[:60]!r}, and no block `text` follows")
        return []
    found = differs(wanted.text, printed, _tolerance(wanted.rest))
    if not found:
        return []
    outcome.faults.append(f"{where}: {found}")
    return [(wanted.first + 1, wanted.last, printed.rstrip().splitlines())]


def _tolerance(rest: str) -> float:
    given = re.search(r"within ([\d.]+)%", rest)
    return float(given[1]) / 100 if given else WITHIN


def _run_console(block: Block, where: str, outcome: Outcome, folder: Path) -> list[tuple[int, int, list[str]]]:
    """Run the commands of a block, each compared with the lines up to the next."""
    lines = block.text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith(_PROMPT)]
    edits = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command = shlex.split(lines[start].removeprefix(_PROMPT))
        if command[0] != "ridgeline":
            outcome.faults.append(f"{where}: {lines[start]!r} is no command of ridgeline")
            continue
        environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder, env=environment, check=False
        )  # fmt: skip
        wanted, printed = lines[start + 1 : end], done.stdout.rstrip().splitlines()
        if done.returncode:
            outcome.faults.append(f"{where}: {lines[start]}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        elif found := differs("\n".join(wanted), "\n".join(printed), _tolerance(block.rest)):
            outcome.faults.append(f"{where}: {lines[start]}: {found}")
            edits.append((block.first + 1 + start + 1, block.first + 1 + end, _updated(wanted, printed)))
    return edits


def _updated(wanted: list[str], printed: list[str]) -> list[str]:
    """The lines to be written for those that are there: where lines were left out, as many as were shown at the
    beginning and the end."""
    if "..." not in wanted:
        return printed
    at = wanted.index("...")
    after = len(wanted) - at - 1
    return [*printed[:at], "...", *(printed[-after:] if after else [])]


def differs(wanted: str, printed: str, within: float = WITHIN) -> str:
    """In what two outputs differ, "" where they do not. A line `...` of the wanted one stands for any lines."""
    shown, there = wanted.rstrip().splitlines(), printed.rstrip().splitlines()
    if "..." in shown:
        at = shown.index("...")
        after = len(shown) - at - 1
        shown = shown[:at] + shown[at + 1 :]
        there = there[:at] + (there[-after:] if after else [])
    if len(shown) != len(there):
        return f"has {len(there)} lines where the chapter has {len(shown)}; the first: {there[:1]}"
    for one, other in zip(shown, there, strict=True):
        if _words(one) != _words(other) or not _near(_numbers(one), _numbers(other), within):
            return f"prints {other.strip()!r} where the chapter has {one.strip()!r}"
    return ""


def _words(line: str) -> list[str]:
    return _NUMBER.sub("#", line).split()


def _numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(line)]


def _near(some: Sequence[float], others: Sequence[float], within: float) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(abs(a - b) <= within * max(abs(a), abs(b)) + 1e-12 for a, b in pairs)
