"""Ways to run long work without holding up the event loop, through which the tokens of all streams pass."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

LONG = 1 << 14
"""The size (characters, bytes or ids) from which work runs in a thread."""

SWITCH_SECONDS = 0.0005
"""The seconds that a thread waits for the GIL before Python asks its holder to release it. With Python's default of
5 ms, four threads that read long conversations delay the event loop by up to 150 ms."""

SLICE = 64
"""The number of tokens that are encoded at a time; each may have as many alternatives as a request may ask for."""

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


@contextmanager
def responsive_event_loop() -> Iterator[None]:
    """Keep the event loop responsive while other threads of this process run Python code."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def offload_if_long(length: int, work: Callable[[], _Result]) -> _Result:
    """Return what `work` gives; run it in a thread if it is over at least `LONG` characters, bytes or ids."""
    return work() if length < LONG else await asyncio.to_thread(work)


async def slices(items: Sequence[_Item]) -> AsyncIterator[Sequence[_Item]]:
    """Yield the items in parts of at most `SLICE`, and let the event loop do other work between two parts."""
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + SLICE]
