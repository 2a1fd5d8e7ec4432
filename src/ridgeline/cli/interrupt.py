"""Graceful handling of Ctrl-C: the work stops between two steps and can report its state."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """A flag that is set once the user asks to stop with Ctrl-C."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Record the first Ctrl-C inside the context; a second one ends the command at once.

    If interrupts are ignored, as for a background job of a script, they stay ignored.
    """
    interrupt, before = Interrupt(), signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield interrupt
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
