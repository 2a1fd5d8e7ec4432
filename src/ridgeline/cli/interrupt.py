"""Ctrl-C between two steps: the work stops where it can be told what there is of it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody has asked to stop. asked: since when it is being waited for."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """While it lasts, the first Ctrl-C is noted and a second one ends the command at once, as it does elsewhere. Where
    interrupts are ignored, as in the background of a script, they stay so.
    """
    interrupt, before = Interrupt(), signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield interrupt
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
