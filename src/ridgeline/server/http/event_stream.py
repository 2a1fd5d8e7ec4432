"""Server-sent events: a stream of frames to one client, which may read slowly or leave.

The framing is what openai-python's decoder needs (its source, and the HTML standard's event streams): each frame is
`data: ...` and a blank line, the last one too; keep-alive is a comment; there is no `id:`, `retry:` or empty data.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.types import Message, Receive, Scope, Send

from ridgeline.server.errors import ApiError, internal
from ridgeline.server.http.direct_writer import EXTENSION, DirectWriter
from ridgeline.server.http.disconnect import end, wait_for_disconnect

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"
ALIVE_SECONDS = 10.0
"""The seconds without a frame after which a comment keeps proxies from closing the connection."""
_LOOK_SECONDS = 0.5
"""The seconds between two checks of whether the client has shut down its sending side."""

LAST_SECONDS = 30.0
"""The seconds that a client gets to read the rest of a stream after its last frame."""

logger = logging.getLogger(__name__)


class SlowReader(Exception):
    """The exception that ends a stream because its client has left too many bytes unread."""


class StreamOutbox:
    """A queue of frames for one client, of at most `limit` unread bytes.

    The response takes frames from it and sends them; once a direct writer is open, `put` writes frames to the
    connection itself.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._frames: list[bytes] = []
        self._closed = False
        self._silent = True  # no frame since the last call of keep_alive
        self._waiter: asyncio.Future[None] | None = None  # wakes `take`; a future costs half as much as an Event
        self._direct: DirectWriter | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """The number of bytes of the stream that the client has not read."""
        return self._size + (self._direct.unread if self._direct is not None else 0)

    def put(self, frame: bytes) -> None:
        """Queue a frame of the stream, or write it directly to the connection.

        Raises:
            SlowReader: If too many bytes are unread.
        """
        if self.waiting + len(frame) > self._limit:
            raise SlowReader
        self._silent = False
        if self._direct is not None:
            self._direct.write(frame)
            return
        self._size += len(frame)
        self._frames.append(frame)
        self._wake()

    def expect(self, size: int) -> None:
        """Allow `size` more unread bytes, for a frame that is written before the client can start to read it."""
        self._limit += size

    def keep_alive(self) -> None:
        """Put a comment if the stream is open, nothing is unread, and there was no frame since the last call."""
        if self._silent and not self._closed and not self.waiting:
            self.put(ALIVE)
        self._silent = True

    def close(self) -> None:
        """Mark the end of the stream, after which no frames come."""
        self._closed = True
        self._wake()

    async def take(self) -> bytes:
        """Wait for frames and return them all as bytes; return b"" at the end of the stream."""
        if not self._frames and not self._closed:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._all()

    def read(self, size: int) -> None:
        """Record that the connection has taken `size` bytes."""
        self._size -= size

    def open(self, direct: DirectWriter) -> None:
        """Write all frames through a direct writer from now on, starting with the queued ones."""
        self._direct = direct
        direct.write(self._all())
        self._size = 0

    def _all(self) -> bytes:
        data = b"".join(self._frames)
        self._frames.clear()
        return data

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None


class EventStreamResponse:
    """An ASGI response that streams server-sent events.

    It starts with the first frame, so that an earlier error can still set the HTTP status. The producer is cancelled as
    soon as the client leaves or reads too slowly.
    """

    def __init__(
        self, produce: Callable[[StreamOutbox], Awaitable[None]], limit: int, headers: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a streamed response, whose producer starts with the response.

        Args:
            produce: Puts the frames into the outbox.
            limit: The bytes that a client may leave unread.
            headers: Further headers of the response.
        """
        self._produce, self._limit = produce, limit
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"} | dict(
            headers or {}
        )
        self._start: Message = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the producer and send its frames until both have ended, the client leaves, or it reads too slowly."""
        outbox, direct = StreamOutbox(self._limit), scope.get("extensions", {}).get(EXTENSION)
        producer = asyncio.ensure_future(self._produce(outbox))
        producer.add_done_callback(lambda _: outbox.close())
        writer = asyncio.ensure_future(self._write(outbox, producer, direct, send))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        alive = asyncio.ensure_future(_keep_alive(outbox, direct))
        try:
            await asyncio.wait((producer, writer, gone), return_when=asyncio.FIRST_COMPLETED)
            slow = producer.done() and isinstance(producer.exception(), SlowReader)
            if slow and direct is not None:
                direct.abort()
            elif producer.done() and not slow:
                await asyncio.wait((writer, gone), timeout=LAST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            await end(producer, writer, gone, alive)

    async def _write(
        self, outbox: StreamOutbox, producer: "asyncio.Future[None]", direct: DirectWriter | None, send: Send
    ) -> None:
        """Send the frames of the outbox; raise the producer's error if nothing has been sent yet."""
        data = await outbox.take()
        started = bool(data)
        if started:
            await send(self._start)
        while data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            outbox.read(len(data))
            if direct is not None:
                outbox.open(direct)
                await asyncio.wait((producer,))
            data = await outbox.take()
        await self._close(producer, started, send)

    async def _close(self, producer: "asyncio.Future[None]", started: bool, send: Send) -> None:
        """End the stream, with an error frame if the producer failed."""
        error = producer.exception()
        if error is not None and not started:
            raise error
        if error is not None and not isinstance(error, ApiError):
            logger.error("an event stream failed", exc_info=error)
            error = internal()
        last = b"" if error is None else error_frame(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _keep_alive(outbox: StreamOutbox, direct: DirectWriter | None) -> None:
    """Send comments during silence, and more often to a half-closed client, whose host then reports if it has left."""
    pause, waited = min(_LOOK_SECONDS, ALIVE_SECONDS), 0.0
    while True:
        await asyncio.sleep(pause)
        waited += pause
        if waited >= ALIVE_SECONDS or (direct is not None and direct.is_half_closed()):
            outbox.keep_alive()
            waited = 0.0


def frame(value: object) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_frame(error: ApiError) -> bytes:
    """Return the last events of a failed stream: the error, which openai-python raises as APIError, and `[DONE]`."""
    return frame(error.body()) + DONE
