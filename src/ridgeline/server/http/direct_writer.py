"""A direct path for the frames of a stream to the connection, which bypasses the ASGI messages.

Through the layers of the application, uvicorn and h11, a frame costs more time than all other work of the server for
its token. Therefore protocol.py offers the connection as an ASGI extension, as other servers do for sending files. The
start and the end of a response still pass through every layer.
"""

import asyncio
from collections.abc import Callable

EXTENSION = "ridgeline.direct"
"""The name under which ASGI's `scope["extensions"]` holds the direct writer of a connection.

It is present for HTTP/1.1 only, because a response without a length is chunked there.
"""


class DirectWriter:
    """A writer of a chunked response body to the connection.

    Only the sender of the response's start and end may use it, between the two.
    """

    def __init__(self, transport: asyncio.Transport, is_half_closed: Callable[[], bool] = lambda: False) -> None:
        """Wrap the transport of an HTTP connection.

        Args:
            transport: The connection.
            is_half_closed: Returns whether the client has shut down its sending side, and may have gone.
        """
        self._transport, self.is_half_closed = transport, is_half_closed

    def write(self, data: bytes) -> None:
        """Send bytes as one chunk; do nothing if the connection is closed."""
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def unread(self) -> int:
        """The number of bytes in the transport's buffer that the client has not read."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the HTTP connection immediately, without sending buffered bytes."""
        self._transport.abort()
