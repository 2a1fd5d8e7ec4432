"""A clock in nanoseconds that can wait until a time. Tests use a virtual one."""

import asyncio
import time
from typing import Protocol

_COARSE = 2_000_000  # nanoseconds by which an event loop may wake up late
_FINE = 500_000  # nanoseconds by which a thread may


class Clock(Protocol):
    """The source of time of the load generator."""

    def now(self) -> int:
        """Return the current time in nanoseconds; it never decreases."""

    async def until(self, moment: int) -> None:
        """Wait until a time; return at once if it has passed."""


class WallClock:
    """The machine's monotonic clock, which all its processes share."""

    def now(self) -> int:
        """Return the time of the machine's monotonic clock in nanoseconds (`time.perf_counter_ns`)."""
        return time.perf_counter_ns()

    async def until(self, moment: int) -> None:
        """Wait until a time with sub-millisecond accuracy.

        The coroutine sleeps in the event loop until shortly before, then in a thread, whose timer is finer, and spends
        the last half millisecond yielding to the loop.
        """
        if (left := moment - self.now()) > _COARSE:
            await asyncio.sleep((left - _COARSE) / 1e9)
        if (left := moment - self.now()) > _FINE:
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, (left - _FINE) / 1e9)
        while self.now() < moment:
            await asyncio.sleep(0)
