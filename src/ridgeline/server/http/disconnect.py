"""The detection of clients that leave, including those that first shut down only their sending side."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

GONE = 499
"""The status of a request whose client left before the response began, for logs only; nginx uses the same number."""

CHECK_SECONDS = 0.05
"""The seconds between two checks of whether the client's host has reset the connection."""
FIRST_SECONDS, MOST_SECONDS = 1.0, 16.0
"""The seconds between the first two interim responses, which double after each, and their maximum."""

_Result = TypeVar("_Result")


class ClientGone(Exception):
    """The exception for a client that has closed the connection, not only its sending side."""


async def run_unless_disconnected(receive: Receive, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`, and cancel it as soon as the client leaves.

    The request's body must have been read already, so that the next message is the end of the connection.

    Raises:
        ClientGone: If the client leaves first.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await end(task, gone)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait for the client to close the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end(*tasks: "asyncio.Future[_Result] | asyncio.Future[None]") -> None:
    """Cancel the tasks that have not ended, and wait until all have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class HalfClosedWatch:
    """A watch on a half-closed connection, which aborts it once the client does not read any more either.

    A client that has shut down its sending side may still read (`nc -N`), or may have gone. TCP cannot tell them apart
    until something is sent: then the host of a client that has gone resets the connection. A response that is computed
    as a whole may send nothing for minutes, so the watch sends the interim response `100 Continue` meanwhile, which
    every HTTP/1.1 client skips (RFC 9110, section 15.2). HTTP/1.0 has no interim responses, so its response is computed
    even for a client that has gone. A streamed response needs no interim one.
    """

    def __init__(self, transport: asyncio.Transport, may_inform: Callable[[], bool]) -> None:
        """Watch a connection until it is closed or `close` is called.

        Args:
            transport: The connection.
            may_inform: Returns whether an interim response may be sent now.
        """
        self._transport, self._may_inform = transport, may_inform
        self._timer: asyncio.TimerHandle | None = None
        self._next_seconds, self._next_at = FIRST_SECONDS, 0.0  # the pause and the time of the next interim response
        self._check()

    def close(self) -> None:
        """End the watch on a half-closed connection."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Abort the connection if the client's host has reset it, and schedule the next check."""
        if self._transport.is_closing():
            return
        loop, connection = asyncio.get_running_loop(), self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        if loop.time() >= self._next_at and self._may_inform():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._next_at = loop.time() + self._next_seconds
            self._next_seconds = min(2 * self._next_seconds, MOST_SECONDS)
        self._timer = loop.call_later(CHECK_SECONDS, self._check)
