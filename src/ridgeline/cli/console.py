"""The terminal interface of all commands: messages on stderr, sanitised foreign text, progress and standard input."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from ridgeline.util.document.printable import printable
from ridgeline.util.json_data import json_data

if TYPE_CHECKING:
    from ridgeline.core.checkpoint.weight_loader import Progress as Callback

err = Console(stderr=True, highlight=False, soft_wrap=True)

LONGEST_NAME, LONGEST_LINE = 300, 1000
LINE_EVERY = 10.0
"""The seconds between lines of progress if stderr is no terminal."""

_NAME = re.compile(r"'[^']*'|\S+")


def one_line(text: str) -> str:
    """Return a message as one printable line, in which long names are abbreviated in the middle."""
    line = " ".join(printable(text).split())
    line = _NAME.sub(lambda found: shortened(found[0]), line)
    return shortened(line, LONGEST_LINE)


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """Return the text with its middle left out if it is too long."""
    if len(text) <= most:
        return text
    kept = most - len("...")
    return f"{text[: kept - kept // 3]}...{text[-(kept // 3) :]}"


def say(text: str, *, end: str = "\n", style: str | None = None) -> None:
    """Print on stderr. Text from untrusted sources is made printable."""
    err.print(printable(text), end=end, style=style, markup=False)


def print_json(value: object) -> None:
    """Print a result on stdout as a line of JSON, at once, with null for numbers that JSON does not have."""
    print(json.dumps(json_data(value)), flush=True)


def say_definition(definition: str) -> None:
    """Report on stderr which class of a package defines a model; nothing for a model of a family (definition "")."""
    if definition:
        say(describe_definition(definition))


def describe_definition(definition: str) -> str:
    """Return a line about a model that a class of a package defines."""
    return f"built from {definition}, because no family here builds it"


def say_warnings(lines: Iterable[str]) -> None:
    """Print the warnings of a loaded model on stderr, one per line."""
    for line in lines:
        say(f"warning: {line}")


def clean(text: str) -> str:
    """Return text for stdout. On a terminal, control characters are made harmless; a file gets the text unchanged."""
    return printable(text) if sys.stdout.isatty() else text


class ResponsePrinter:
    """A printer of a streamed response: the text goes to stdout, and reasoning, dim and on lines of its own, to stderr.

    On a terminal both are in one place.
    """

    def __init__(self) -> None:
        self._is_reasoning = False

    def show(self, text: str, reasoning: str) -> None:
        """Print new text of the response and of the reasoning before it."""
        if reasoning:
            say(reasoning, end="", style="dim")
            self._is_reasoning = True
        if text:
            self._end_reasoning()
            print(clean(text), end="", flush=True)

    def end(self) -> None:
        """End the last line."""
        self._end_reasoning()
        print(flush=True)

    def _end_reasoning(self) -> None:
        """End the line of the reasoning, if that was printed last."""
        if self._is_reasoning:
            say("")
        self._is_reasoning = False


@contextmanager
def silence(on: bool = True) -> Iterator[None]:
    """Suppress messages and progress bars inside the context. An error that ends the command is still printed."""
    err.quiet = on
    try:
        yield
    finally:
        err.quiet = False


def read_text(argument: str) -> str:
    """Return the argument itself, or the content of standard input for `-`.

    Raises:
        ValueError: If standard input is closed or is not UTF-8.
    """
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the text itself instead of -")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not text in UTF-8: {error}; convert it to UTF-8 first") from None


@contextmanager
def loading_bar(what: str) -> "Iterator[Callback | None]":
    """Yield a progress callback (bytes done, total bytes) that shows a bar, or None if stderr is no terminal."""
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
    """Return an estimated time as rounded text: `4 s`, `45 s`, `7 min`, `2.5 h`."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def changing_line(otherwise: Callable[[str], None] | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress, in place on a terminal.

    Args:
        otherwise: The function if stderr is no terminal; by default one that prints a line at most every ten seconds.
    """
    if err.is_terminal:
        with err.status("") as shown:
            yield lambda text: shown.update(printable(text))
        return
    if otherwise is not None:
        yield otherwise
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
    """Yield a callback for the number of completed items, which updates a bar or prints a line now and then."""
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
    """Show a message on stderr while the context is active, if stderr is a terminal."""
    if sys.stderr.isatty():
        with err.status(what):
            yield
    else:
        yield
