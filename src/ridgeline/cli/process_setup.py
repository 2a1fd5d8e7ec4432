"""The preparation of the process before large imports: standard streams, signals and garbage collection."""

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

_NARROWEST = 20  # columns; narrower output (some shells set COLUMNS=0) would be unreadable


def prepare() -> None:
    """Repair what a shell may hand over, and exit if standard output is closed.

    This covers closed streams, a full disk behind stderr, an encoding without the needed characters, and a terminal
    without columns.

    Garbage collection is off until `finish_imports`. What imports create, torch above all, lives as long as the
    process, and scanning it repeatedly would take a tenth of a short command.
    """
    gc.disable()
    signal_interrupts(quit_at_once=True)
    _fill_closed_descriptors()
    sys.stderr = _forgiving_stderr()
    if sys.stdout is None:
        print("ridgeline: standard output is closed; redirect it to a file or to /dev/null", file=sys.stderr)
        sys.exit(USAGE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # unsupported characters must not end a command
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < _NARROWEST:
        del os.environ["COLUMNS"]


def finish_imports() -> None:
    """Enable garbage collection after all imports, and let the process reuse freed memory.

    Do nothing if `prepare` was not called, as in tests, whose garbage would otherwise be retained.
    """
    if not gc.isenabled():
        keep_freed_memory()
        gc.freeze()
        gc.enable()


def signal_interrupts(*, quit_at_once: bool) -> None:
    """Choose whether Ctrl-C ends the process at once or raises KeyboardInterrupt.

    It must end the process during imports and after a command. Raised during an import, the exception would print a
    traceback, or be swallowed by code that takes any error for a missing optional module. If interrupts are ignored, as
    for a background job of a script, they stay ignored.
    """
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _quit):
        signal.signal(signal.SIGINT, _quit if quit_at_once else signal.default_int_handler)


def leave_on_sigterm() -> None:
    """Exit with status 0 on SIGTERM: a server that is still being imported has nothing to finish."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))


def _quit(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _fill_closed_descriptors() -> None:
    """Open closed standard descriptors on /dev/null; otherwise the next opened file would become standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor


class _BestEffortStream(io.FileIO):
    """A stream that ignores write errors, so that a closed pipe or a full disk behind it ends no command."""

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
    """Redirect standard output to /dev/null after its reader left or its disk filled up.

    Otherwise Python would try to write again at exit.
    """
    with suppress(OSError, ValueError):  # in tests, stdout may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
