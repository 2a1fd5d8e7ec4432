"""The time limits of a request: until its first step begins, and until it ends."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ridgeline.server.errors import ApiError


@dataclass(slots=True)
class Deadlines:
    """The time limits of a request, in seconds."""

    queue: float = math.inf
    """The most seconds from the request's admission until its first step begins."""
    total: float = math.inf
    """The most seconds from the request's admission until its end."""

    @contextmanager
    def enforced(self, waits: Callable[[], bool], end: Callable[[ApiError], None]) -> Iterator[None]:
        """Enforce these limits on a request inside the `with` block, using timers of the running event loop.

        Args:
            waits: Returns whether the request still waits for its first step.
            end: Ends the request with the error that it gets.
        """
        loop = asyncio.get_running_loop()
        limits = (
            (self.queue, partial(self._end_if_waiting, waits, end)),
            (self.total, partial(self._end_overdue, end)),
        )
        timers = [loop.call_later(seconds, late) for seconds, late in limits if seconds != math.inf]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _end_if_waiting(self, waits: Callable[[], bool], end: Callable[[ApiError], None]) -> None:
        if waits():
            message = (
                f"the request waited {self.queue:g} s in the queue, which is the limit (--queue-timeout): try again "
                "later"
            )
            end(ApiError(503, message, code="queue_timeout"))

    def _end_overdue(self, end: Callable[[ApiError], None]) -> None:
        message = f"the request took {self.total:g} s, which is the limit (--request-timeout): request less or raise it"
        end(ApiError(504, message, code="total_timeout", retry=False))
