"""Clock: now, and waiting until a moment, in nanoseconds. Tests have a clock of virtual time."""

import asyncio
import time
from typing import Protocol

_COARSE = 2_000_000  # nanoseconds by which an event loop may wake too late
_FINE = 500_000  # and by which a thread may


class Clock(Protocol):
    """What the load generator knows of time."""

    def now(self) -> int:
        """Nanoseconds, never less than before."""

    async def until(self, moment: int) -> None:
        """Return at a moment, or at once where it is over."""


class WallClock:
    """The machine's monotonic clock, which all its processes share."""

    def now(self) -> int:
        """time.perf_counter_ns."""
        return time.perf_counter_ns()

    async def until(self, moment: int) -> None:
        """Asleep in the event loop until shortly before, then in a thread, whose timer is finer; the last half of a
        millisecond awake, letting the loop turn.
        """
        if (left := moment - self.now()) > _COARSE:
            await asyncio.sleep((left - _COARSE) / 1e9)
        if (left := moment - self.now()) > _FINE:
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, (left - _FINE) / 1e9)
        while self.now() < moment:
            await asyncio.sleep(0)
