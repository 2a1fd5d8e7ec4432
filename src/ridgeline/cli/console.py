"""What is said to people: on stderr while a command runs, and strangers' text in a form that steers no terminal; and
what is read from standard input.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from ridgeline.util.document.printable import printable

if TYPE_CHECKING:
    from ridgeline.core.checkpoint.weight_loader import Progress as Callback

err = Console(stderr=True, highlight=False, soft_wrap=True)

LONGEST_NAME, LONGEST_LINE = 300, 1000
LINE_EVERY = 10.0
"""The seconds between lines of progress if stderr is no terminal."""

_NAME = re.compile(r"'[^']*'|\S+")


def one_line(text: str) -> str:
    """A message as one line, printable; names in it have at most 300 characters, the middle left out."""
    line = " ".join(printable(text).split())
    line = _NAME.sub(lambda found: shortened(found[0]), line)
    return shortened(line, LONGEST_LINE)


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """The text with its middle left out, if it is longer."""
    if len(text) <= most:
        return text
    kept = most - len("...")
    return f"{text[: kept - kept // 3]}...{text[-(kept // 3) :]}"


def say(text: str, *, end: str = "\n", style: str | None = None) -> None:
    """Print on stderr; the text may be a stranger's."""
    err.print(printable(text), end=end, style=style, markup=False)


def say_warnings(lines: Iterable[str]) -> None:
    """Print the warnings of a loaded model on stderr, a line each."""
    for line in lines:
        say(f"warning: {line}")


def clean(text: str) -> str:
    """Text for stdout: a file gets it as it is; on a terminal it steers nothing."""
    return printable(text) if sys.stdout.isatty() else text


@contextmanager
def silence(on: bool = True) -> Iterator[None]:
    """While inside, nothing is said, no bar is shown. An error that ends the command is said after it."""
    err.quiet = on
    try:
        yield
    finally:
        err.quiet = False


def read_text(argument: str) -> str:
    """The text itself, or standard input for `-`. Raises ValueError where that is closed or no UTF-8."""
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the text itself instead of -")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not text in UTF-8: {error}; convert it first") from None


@contextmanager
def loading_bar(what: str) -> "Iterator[Callback | None]":
    """Yields what a loader calls with (bytes done, bytes in all); None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("loading {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def rough_time(seconds: float) -> str:
    """Return a time as an estimate is read: `4 s`, `45 s`, `7 min`, `2.5 h`."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def changing_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress: in place on a terminal, otherwise as a line every ten seconds."""
    if err.is_terminal:
        with err.status("") as shown:
            yield lambda text: shown.update(printable(text))
        return
    last = time.monotonic()

    def line(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            say(text)

    yield line


@contextmanager
def counting_bar(what: str, count: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how many of `count` are done: it shows a bar, or lines if stderr is no terminal."""
    if not sys.stderr.isatty():
        began = time.monotonic()
        with changing_line() as line:
            yield lambda done: line(f"{what}: {done:,} of {count:,}{_left(began, done, count)}")
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=count)
        yield lambda done: bar.update(task, completed=done)


def _left(began: float, done: int, count: int) -> str:
    return f", about {rough_time((time.monotonic() - began) / done * (count - done))} left" if done else ""


@contextmanager
def status(what: str) -> Iterator[None]:
    """Says on stderr what takes a while, where that is a terminal."""
    if sys.stderr.isatty():
        with err.status(what):
            yield
    else:
        yield
