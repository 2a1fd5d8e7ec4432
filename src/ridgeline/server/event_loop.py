"""Helpers that keep the event loop responsive, which carries the tokens of all streams."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

LONG = 1 << 14
"""The input size (characters, bytes or token ids) from which work runs in a thread."""

SWITCH_SECONDS = 0.0005
"""The seconds that a thread waits for the GIL before Python asks its holder to release it.

With Python's default of 5 ms, four threads that read long conversations delay the event loop by up to 150 ms.
"""

SLICE = 64
"""The number of response items, such as tokens with their log-probabilities, that are encoded at a time."""

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


@contextmanager
def responsive_event_loop() -> Iterator[None]:
    """Shorten the GIL switch interval inside the `with` block, so that threads do not delay the event loop."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def offload_if_long(length: int, work: Callable[[], _Result]) -> _Result:
    """Return the result of `work`, run in a thread if its input has at least `LONG` characters, bytes or ids."""
    return work() if length < LONG else await asyncio.to_thread(work)


async def slices(items: Sequence[_Item]) -> AsyncIterator[Sequence[_Item]]:
    """Yield the items in parts of at most `SLICE`, and let the event loop do other work between two parts."""
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + SLICE]
