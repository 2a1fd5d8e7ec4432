"""The process that a command runs in, made fit for it before anything large is imported: streams and interrupts."""

import gc
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import IO, Any

from typing_extensions import override

from ridgeline.util.host import keep_freed_memory

FAILED, USAGE, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130

_NARROWEST = 20  # columns; with less of a terminal, and with none at all (COLUMNS=0), nothing could be read


def prepare() -> None:
    """Put right what a shell may hand over: closed streams, a full disk behind stderr, an encoding without our
    characters, a terminal without columns. Exits where standard output is closed: no result could be given.

    From here to `finish_imports` nothing is collected: what imports leave behind, torch above all, lives as long as the
    process, and going through it again and again to see whether it is still needed takes a tenth of a short command.
    """
    gc.disable()
    signal_interrupts(quit_at_once=True)
    _fill_closed_descriptors()
    sys.stderr = _forgiving_stderr()
    if sys.stdout is None:
        print("ridgeline: standard output is closed; let it go to a file or to /dev/null", file=sys.stderr)
        sys.exit(USAGE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an encoding without our characters ends no command
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < _NARROWEST:
        del os.environ["COLUMNS"]


def finish_imports() -> None:
    """All that a command needs has been imported: what comes now is collected, and what it frees is kept. Does nothing
    where `prepare` has not been called, as in tests, whose garbage it would keep.
    """
    if not gc.isenabled():
        keep_freed_memory()
        gc.freeze()
        gc.enable()


def signal_interrupts(*, quit_at_once: bool) -> None:
    """While imports run, and when a command has ended, Ctrl-C ends the process there and then: raised among them it
    would print a traceback, or be swallowed by one of them that takes any error for an optional module's absence.

    Where interrupts are ignored, as in the background of a script, they stay so.
    """
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _quit):
        signal.signal(signal.SIGINT, _quit if quit_at_once else signal.default_int_handler)


def leave_on_sigterm() -> None:
    """A server that is told to end while it is being imported has nothing to finish: it has ended well."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))


def _quit(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _fill_closed_descriptors() -> None:
    """Otherwise the next file that is opened becomes standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free


class _BestEffortStream(io.FileIO):
    """A stream whose reader may be gone or its disk full: what cannot be said there ends no command."""

    @override
    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def _forgiving_stderr() -> IO[str]:
    raw = _BestEffortStream(2, "w", closefd=False)
    encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True)


def abandon_output() -> None:
    """Nothing more goes to standard output: its reader has left, or its disk is full, and Python would try again when
    it exits.
    """
    with suppress(OSError, ValueError):  # a stream without a descriptor, as in tests, is not written again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
