"""Work that would hold up the event loop, which the tokens of all streams pass through."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

LONG = 1 << 14
"""The characters, bytes or ids from which a piece of work is done in a thread."""

SWITCH_SECONDS = 0.0005
"""How long the event loop waits for Python's lock before whoever has it is asked for it. With Python's own 5 ms, four
threads that read long conversations let it have its turn up to 150 ms late."""

SLICE = 64
"""Tokens of a whole response that are written at a time, each with as many alternatives as a request may ask for."""

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


@contextmanager
def prompt_turns() -> Iterator[None]:
    """Let the event loop have its turns in time, though threads of this process compute in Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def beside(length: int, work: Callable[[], _Result]) -> _Result:
    """Return what `work` gives; run it in a thread if it is over at least `LONG` characters, bytes or ids."""
    return work() if length < LONG else await asyncio.to_thread(work)


async def slices(items: Sequence[_Item]) -> AsyncIterator[Sequence[_Item]]:
    """Give a list in parts of at most `SLICE`; between two of them the event loop does what else is due."""
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + SLICE]
