"""HTTP/1.1 with deadlines: uvicorn's h11 protocol, which alone lets a client take as long and send as much as it likes.

What uvicorn 0.54 leaves open and this closes: there is no deadline before the first response, and a client that never
reads holds its connection for ever. What h11 leaves open of heads, request_heads.py closes.
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
from typing_extensions import override
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.http.direct_writer import EXTENSION, DirectWriter
from ridgeline.server.http.disconnect import HalfClosedWatch
from ridgeline.server.http.exchanges import REFUSED, Exchange, ExchangeObserver
from ridgeline.server.http.request_heads import LimitedConnection
from ridgeline.server.server_settings import ServerSettings

LINGER_SECONDS = 1.0
"""How long the rest of a refused request is read and dropped. A socket that is closed with bytes unread is reset, and
the client may lose the answer that says why."""

Phase = Literal["idle", "head", "body", "answer"]

logger = logging.getLogger(__name__)


def protocol_of(settings: ServerSettings, observers: Sequence[ExchangeObserver]) -> type[asyncio.Protocol]:
    """What uvicorn makes of each connection (`Config(http=...)`). observers: told of requests that it refuses."""
    made = partial(LimitedProtocol, settings=settings, fullness=ConnectionLimitWarning(), observers=observers)
    return cast(type[asyncio.Protocol], made)


@dataclass(slots=True)
class ConnectionLimitWarning:
    """When the server last said that it has as many connections as it may have. It says so once a minute."""

    said: float = field(default=float("-inf"))

    def say(self, most: int) -> None:
        now = time.monotonic()
        if now - self.said >= 60:
            self.said = now
            logger.warning(
                "%d connections are open, as many as may be; more are let in as idle ones are closed. "
                "The limit follows from the process's open files (ulimit -n)",
                most,
            )


class LimitedProtocol(H11Protocol):
    """A connection. It is idle, or sends a request's head or body, or waits for the answer; all but the last end."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: ServerSettings,
        fullness: ConnectionLimitWarning,
        observers: Sequence[ExchangeObserver],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.settings, self.fullness, self.observers = settings, fullness, observers
        self.conn = self.reader = LimitedConnection(settings)
        self.phase: Phase = "answer"
        self.since = self.loop.time()  # when the phase began
        self.received = 0  # bytes since the connection was last idle
        self.deadline: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None
        self.half_closed: HalfClosedWatch | None = None
        self.lingering = False
        self.app = self._offering(self.app)

    def _offering(self, app: ASGI3Application) -> ASGI3Application:
        """The application, told of the connection where it may write to it."""

        async def told(scope: Any, receive: Any, send: Any) -> None:
            if scope["http_version"] == "1.1":
                scope.setdefault("extensions", {})[EXTENSION] = DirectWriter(
                    self.transport, lambda: self.half_closed is not None
                )
            await app(scope, receive, send)

        return told

    # -- what asyncio tells -------------------------------------------------------------------------------------------

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
        """Keep the connection of a client that sends no more while it has a response to come."""
        if self.lingering or self.cycle is None or self.cycle.response_complete or self._present_phase() != "answer":
            return False
        self.half_closed = HalfClosedWatch(self.transport, self._may_inform)
        return True

    def _may_inform(self) -> bool:
        """Return whether the client of the present request takes an interim response before its response begins."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_started and cycle.scope["http_version"] == "1.1"

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

    # -- what uvicorn calls -------------------------------------------------------------------------------------------

    @override
    def send_400_response(self, msg: str) -> None:
        """Uvicorn's word for whatever the connection could not read."""
        self.refuse(self.reader.refusal or invalid("the request is not valid HTTP/1.1", code="invalid_request"))

    @override
    def _unsupported_upgrade_warning(self) -> None:
        """Whoever wants a WebSocket is answered in HTTP; uvicorn would have the log say which packages to install."""

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the idle phase has its own deadline
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
        """Set the deadline of the phase that the connection is in, if it is a new one."""
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
        state = self.conn.their_state
        if state is h11.IDLE:
            return "head" if self.conn.trailing_data[0] else "idle"
        return "body" if state is h11.SEND_BODY else "answer"

    def _check_body(self) -> None:
        """Once a second: is the body late, or does it come too slowly to become complete?"""
        taken, limits = self.loop.time() - self.since, self.settings
        due = limits.body_rate * (taken - limits.header_seconds)
        if taken >= limits.body_seconds or (self.received < due and not self.flow.read_paused):
            self._time_out()
        else:
            self.deadline = self.loop.call_later(min(1.0, limits.body_seconds - taken), self._check_body)

    def _time_out(self) -> None:
        what = "head" if self.phase == "head" else "body"
        self.refuse(ApiError(408, f"the request's {what} did not come in time", code="request_timeout"))

    def _await_reading(self, unread: int) -> None:
        self.unread = self.loop.call_later(self.settings.body_seconds, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        """Has the client read of its answer since, as fast as a body must come?"""
        unread = self.transport.get_write_buffer_size()
        if before - unread >= max(1, self.settings.body_rate * self.settings.body_seconds):
            self._await_reading(unread)
        else:
            logger.info("a connection was cut off: its client left %d bytes unread", unread)
            self.transport.abort()

    def _make_room(self, most: int) -> None:
        self.fullness.say(most)
        idle = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.phase == "idle" and c is not self]
        if idle:
            min(idle, key=lambda connection: connection.since)._close()
        else:
            self.refuse(ApiError(503, "too many connections are open", kind="server_error", code="connections"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, error: ApiError) -> None:
        """Say why, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # Not through h11, which would hold it to what it thinks of a request that it may not have understood.
            body = msgspec.json.encode(error.body())
            head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self._tell(error)
            self._linger()
        else:
            self._close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _tell(self, error: ApiError) -> None:
        """A request is answered with an error. The application tells of it where it has the request already."""
        if self.cycle is not None and not self.cycle.response_complete:
            cast(dict[str, Any], self.cycle.scope)[REFUSED] = error
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
        """Close an idle connection, or one whose answer has begun and cannot be finished."""
        if self.phase == "idle":
            self.transport.close()
        else:
            self.transport.abort()
