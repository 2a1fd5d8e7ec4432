"""The HTTP/1.1 protocol of a connection: uvicorn's h11 protocol with deadlines.

Without this, uvicorn 0.54 has no deadline before the first response, and a client that never reads holds its connection
for ever. request_heads.py handles what h11 leaves open about request heads.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, cast

import h11
import msgspec
from starlette.types import ASGIApp
from typing_extensions import override

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.direct_writer import EXTENSION, DirectWriter
from ridgeline.server.http.disconnect import HalfClosedWatch
from ridgeline.server.http.exchanges import REFUSED, Exchange, ExchangeObserver
from ridgeline.server.http.request_heads import LimitedConnection
from ridgeline.server.http.uvicorn_adapter import UvicornProtocol
from ridgeline.server.server_settings import ServerSettings

LINGER_SECONDS = 1.0
"""The seconds for which the rest of a refused request is read and dropped.

A socket that is closed with unread bytes is reset, and the client may then lose the response with the reason.
"""

Phase = Literal["idle", "head", "body", "answer"]

logger = logging.getLogger(__name__)


def protocol_of(settings: ServerSettings, observers: Sequence[ExchangeObserver]) -> type[asyncio.Protocol]:
    """Return the protocol factory for uvicorn (`Config(http=...)`).

    Args:
        settings: The deadlines and limits.
        observers: Called with each request that the protocol refuses.
    """
    made = partial(LimitedProtocol, settings=settings, fullness=ConnectionLimitWarning(), observers=observers)
    return cast(type[asyncio.Protocol], made)


@dataclass(slots=True)
class ConnectionLimitWarning:
    """The warning that the connection limit is reached, logged at most once a minute."""

    warned_at: float = field(default=float("-inf"))
    """The time at which the warning was last logged, in seconds of `time.monotonic`."""

    def say(self, most: int) -> None:
        """Log that all `most` connections are open, unless this was logged within the last minute."""
        now = time.monotonic()
        if now - self.warned_at >= 60:
            self.warned_at = now
            logger.warning(
                "%d connections are open, which is the limit: a new one closes an idle one, or is refused. The limit "
                "follows from the process's open-file limit (ulimit -n): raise that to allow more",
                most,
            )


class LimitedProtocol(UvicornProtocol):
    """An HTTP connection, which is idle, receives a request's head or body, or sends the response.

    Every phase but the last has a deadline.
    """

    def __init__(
        self,
        *,
        settings: ServerSettings,
        fullness: ConnectionLimitWarning,
        observers: Sequence[ExchangeObserver],
        **given: Any,
    ) -> None:
        self.reader = LimitedConnection(settings)
        super().__init__(**given, parser=self.reader, wrap=self._offering)
        self.settings, self.fullness, self.observers = settings, fullness, observers
        self.phase: Phase = "answer"
        self.since = self.loop.time()  # the start of the phase
        self.received = 0  # bytes since the connection was last idle
        self.deadline: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.half_closed: HalfClosedWatch | None = None
        self.lingering = False

    def _offering(self, app: ASGIApp) -> ASGIApp:
        """Return the application with a `DirectWriter` in its scope for HTTP/1.1 requests."""

        async def offering_app(scope: Any, receive: Any, send: Any) -> None:
            if scope["http_version"] == "1.1":
                scope.setdefault("extensions", {})[EXTENSION] = DirectWriter(
                    self.transport, lambda: self.half_closed is not None
                )
            await app(scope, receive, send)

        return offering_app

    # -- asyncio callbacks --------------------------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.settings.send_buffer_bytes)
        self._enter_phase()
        if self.settings.connections is not None and len(self.connections) > self.settings.connections:
            self._make_room(self.settings.connections)

    @override
    def data_received(self, data: bytes) -> None:
        if self.lingering:
            return
        self.received += len(data)
        super().data_received(data)
        self._enter_phase()

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open if its client stops sending while it still expects a response."""
        if self.lingering or self.open_scope is None or self._present_phase() != "answer":
            return False
        self.half_closed = HalfClosedWatch(self.transport, self._may_inform)
        return True

    def _may_inform(self) -> bool:
        """Return whether the client of the current request accepts an interim response before its response begins."""
        scope = self.open_scope
        return scope is not None and not self.has_begun_response and scope["http_version"] == "1.1"

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.half_closed is not None:
            self.half_closed.close()
        for timer in (self.deadline, self.unread):
            if timer is not None:
                timer.cancel()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading(self.transport.get_write_buffer_size())

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    # -- uvicorn callbacks --------------------------------------------------------------------------------------------

    @override
    def refuse_invalid(self) -> None:
        """Refuse a request that is not valid HTTP/1.1, or whose head is too large or ambiguous."""
        self.refuse(self.reader.refusal or invalid("the request is not valid HTTP/1.1", code="invalid_request"))

    @override
    def end_response(self) -> None:
        if self.half_closed is not None and self._present_phase() != "answer":
            self.transport.close()  # no further request can come
        self._enter_phase()

    @override
    def shutdown(self) -> None:
        if self.lingering:
            self.transport.close()
        else:
            super().shutdown()

    # -- phases -------------------------------------------------------------------------------------------------------

    def _enter_phase(self) -> None:
        """Set the deadline of the connection's phase if the phase has changed."""
        if self.lingering or self.transport.is_closing():
            return
        phase = self._present_phase()
        if phase == self.phase:
            return
        self.phase, self.since = phase, self.loop.time()
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        if phase == "idle":
            self.received = 0
            self.deadline = self.loop.call_later(self.settings.idle_seconds, self._close)
        elif phase == "head":
            self.deadline = self.loop.call_later(self.settings.header_seconds, self._time_out)
        elif phase == "body":
            self._check_body()

    def _present_phase(self) -> Phase:
        state = self.reader.their_state
        if state is h11.IDLE:
            return "head" if self.reader.trailing_data[0] else "idle"
        return "body" if state is h11.SEND_BODY else "answer"

    def _check_body(self) -> None:
        """Refuse the request if its body is late or too slow; otherwise check again within a second."""
        taken, limits = self.loop.time() - self.since, self.settings
        due = limits.body_rate * (taken - limits.header_seconds)
        if taken >= limits.body_seconds or (self.received < due and not self.flow.read_paused):
            self._time_out()
        else:
            self.deadline = self.loop.call_later(min(1.0, limits.body_seconds - taken), self._check_body)

    def _time_out(self) -> None:
        what = "head" if self.phase == "head" else "body"
        self.refuse(ApiError(408, f"the request's {what} did not arrive in time", code="request_timeout"))

    def _await_reading(self, unread: int) -> None:
        self.unread = self.loop.call_later(self.settings.body_seconds, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        """Disconnect the client unless it has read its response at the minimum body rate since the last check."""
        unread = self.transport.get_write_buffer_size()
        if before - unread >= max(1, self.settings.body_rate * self.settings.body_seconds):
            self._await_reading(unread)
        else:
            logger.info("a connection was closed because its client did not read: %d bytes were left", unread)
            self.transport.abort()

    def _make_room(self, most: int) -> None:
        self.fullness.say(most)
        idle = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.phase == "idle" and c is not self]
        if idle:
            min(idle, key=lambda connection: connection.since)._close()
        else:
            self.refuse(ApiError(503, "too many connections are open: try again later", code="connections"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, error: ApiError) -> None:
        """Send an error response if no response has begun, and close the connection."""
        if self.reader.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # This bypasses h11, which may have misread the request and would reject the response.
            body = msgspec.json.encode(error.body())
            head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self._send_error(error)
            self._linger()
        else:
            self._close()
        self.drop_request()

    def _send_error(self, error: ApiError) -> None:
        """Report a refused request to the observers, or through its scope if the application already has it."""
        if self.open_scope is not None:
            self.open_scope[REFUSED] = error
            return
        seconds = self.loop.time() - self.since
        for observer in self.observers:
            observer(Exchange(self.client, None, None, None, error.status, seconds, error.code))

    def _linger(self) -> None:
        self.lingering = True
        if self.deadline is not None:
            self.deadline.cancel()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _close(self) -> None:
        """Close an idle connection, or abort one whose response has begun and cannot be finished."""
        if self.phase == "idle":
            self.transport.close()
        else:
            self.transport.abort()
