"""A client that has shut down its sending side, and may still read: `nc -N`, or one that has gone.

TCP says the same of both, until something is sent: the host of a client that has gone resets the connection. A response
that is computed as a whole may send nothing for minutes, so a byte of urgent data is sent meanwhile (RFC 9293, section
3.8.5). A client that reads does not see it: without SO_OOBINLINE urgent data is no part of the stream (RFC 6093).
"""

import asyncio
import socket

FIRST_SECONDS = 0.02
MOST_SECONDS = 5.0


class HalfClosedWatch:
    """Cuts a connection off once its client, which sends no more, does not read any more either."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Watch a connection until it is closed, or `close` is called."""
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._ask(FIRST_SECONDS)

    def close(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self, seconds: float) -> None:
        """Ask whether the client is there, and again in so many seconds."""
        if self._transport.is_closing():
            return
        if self._is_reset():
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ask, min(2 * seconds, MOST_SECONDS))

    def _is_reset(self) -> bool:
        """Whether the client's host has said that nobody reads. It is asked unless a part of the response is under way,
        which asks it too."""
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return True
        if not self._transport.get_write_buffer_size():
            try:
                with connection.dup() as same:
                    same.send(b"\n", socket.MSG_OOB)
            except BlockingIOError:
                pass
            except OSError:
                return True
        return False
