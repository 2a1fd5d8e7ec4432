"""A client that has shut down its sending side, and may still read: `nc -N`, or one that has gone.

TCP says the same of both, until something is sent: the host of a client that has gone resets the connection. A response
that is computed as a whole may send nothing for minutes, so the interim response `100 Continue` is sent meanwhile,
which every client of HTTP/1.1 skips (RFC 9110, section 15.2). HTTP/1.0 has none: its response is computed for a
client that has gone, too. A response that is sent in pieces needs no interim one.
"""

import asyncio
import socket
from collections.abc import Callable

FIRST_SECONDS = 0.02
"""The time between the first two checks of a client; it doubles after each check."""
MOST_SECONDS = 5.0
"""The longest time between two checks."""


class HalfClosedWatch:
    """A watch on a half-closed connection, which aborts it once the client does not read any more either."""

    def __init__(self, transport: asyncio.Transport, may_inform: Callable[[], bool]) -> None:
        """Watch a connection until it is closed, or `close` is called.

        Args:
            transport: The connection.
            may_inform: Whether an interim response may be sent now.
        """
        self._transport, self._may_inform = transport, may_inform
        self._timer: asyncio.TimerHandle | None = None
        self._ask(FIRST_SECONDS)

    def close(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self, seconds: float) -> None:
        """Check whether the client still reads, and check again after `seconds`, then at growing intervals."""
        if self._transport.is_closing():
            return
        if self._is_reset():
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ask, min(2 * seconds, MOST_SECONDS))

    def _is_reset(self) -> bool:
        """Return whether the client's host has reset the connection; if not, send it bytes that make it do so."""
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return True
        if self._may_inform():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return False
