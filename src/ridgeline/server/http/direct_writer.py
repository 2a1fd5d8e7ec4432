"""The short way for a stream's frames: from the route to the connection, beside ASGI's messages.

On its way through the layers of the application, uvicorn and h11 a frame costs more time than all else that the server
does for its token. Our protocol (protocol.py) therefore offers its connection as an extension of the ASGI scope, as
other servers offer theirs to send files. The start and the end of an answer go the long way, so that every layer sees
them.
"""

import asyncio
from collections.abc import Callable

EXTENSION = "ridgeline.direct"
"""The name in `scope["extensions"]`. Only where the body of an answer without a length is chunked: HTTP/1.1."""


class DirectWriter:
    """Writes a chunked body. Between the start and the end of an answer, and by whoever sends those."""

    def __init__(self, transport: asyncio.Transport, is_half_closed: Callable[[], bool] = lambda: False) -> None:
        """is_half_closed: whether the client has shut down its sending side, and may have gone."""
        self._transport, self.is_half_closed = transport, is_half_closed

    def write(self, data: bytes) -> None:
        """Send bytes as a chunk; nothing once the connection is closed."""
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def unread(self) -> int:
        """Bytes that wait here for the client to read those before them."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cut the connection off."""
        self._transport.abort()
