"""Everything that the server uses of uvicorn and that uvicorn does not document, in one file.

uvicorn documents its settings, `Server.serve`, `Server.should_exit` and the name of its logger. Deadlines and limits
need more. A release of uvicorn may change the following, which tests/server/test_uvicorn_adapter.py checks by name and
behaviour against the installed release:

- `Server.startup` calls `Config.http` with the keywords `config`, `server_state`, `app_state` and `_loop`.
- `Server.capture_signals()` is the context manager in which `serve` runs, for signal handlers.
- `Server.main_loop()` is awaited by `serve`, which ends after it.
- `Server.on_tick(0)` sets the Date header, and returns `should_exit`.
- `Server.shutdown` calls `shutdown()` of each of `ServerState.connections`, which closes an idle connection.
- `H11Protocol.conn` is the h11 connection that parses the bytes; one that is set after `__init__` is used.
- `H11Protocol.app` is the application that is called for the next request.
- `H11Protocol.loop`, `transport`, `client` and `connections`: the event loop, the connection, the client's address, and
  the set of open connections, which holds the protocol from `connection_made` to `connection_lost`.
- `H11Protocol.flow` is paused (`read_paused`) at a large body, and `resume_reading()` ends that.
- `H11Protocol.cycle` is the last request, or None: `scope`, `response_started`, `response_complete`; if `disconnected`
  is set and then `message_event`, the application's `receive` returns that the client has left.
- `H11Protocol.send_400_response(msg)` is called for bytes that h11 rejects.
- `H11Protocol.on_response_complete()` is called after each response, and starts a timer that closes an idle connection.
- `H11Protocol._unset_keepalive_if_required()` stops this timer.
- `H11Protocol._unsupported_upgrade_warning()` is called for a WebSocket upgrade without a WebSocket library.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class UvicornProtocol(H11Protocol):
    """An HTTP/1.1 connection of uvicorn without its own timer for idle connections and its own error responses."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None,
        parser: h11.Connection,
        wrap: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        """Create the protocol of a connection; uvicorn passes the first four arguments.

        Args:
            config: The settings of uvicorn.
            server_state: The state that all connections of the server share.
            app_state: The state that the application gets with each request.
            _loop: The event loop.
            parser: Parses the requests.
            wrap: Returns the application to call instead of the configured one.
        """
        super().__init__(config, server_state, app_state, _loop)
        self.conn = parser
        self.app = cast(Any, wrap(cast(ASGIApp, self.app)))

    @property
    def open_scope(self) -> dict[str, Any] | None:
        """The ASGI scope of the request whose response is not complete; None without such a request."""
        open_request = self.cycle is not None and not self.cycle.response_complete
        return cast(dict[str, Any], self.cycle.scope) if open_request else None

    @property
    def has_begun_response(self) -> bool:
        """Whether the response of the last request has begun."""
        return self.cycle is not None and self.cycle.response_started

    def drop_request(self) -> None:
        """Mark the open request, if there is one, as left by its client; `receive` returns that."""
        if self.open_scope is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def refuse_invalid(self) -> None:
        """Refuse a request that h11 has rejected."""
        raise NotImplementedError

    def end_response(self) -> None:
        """Do what a complete response needs."""
        raise NotImplementedError

    @override
    def send_400_response(self, msg: str) -> None:
        self.refuse_invalid()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self.end_response()

    @override
    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing for a WebSocket upgrade, which gets an HTTP response.

        uvicorn would recommend packages for WebSockets in the log.
        """


class HTTPServer(uvicorn.Server):
    """The uvicorn server without its signal handlers and without its polling for shutdown ten times a second.

    With a slow model, that polling takes more processor time between two steps than anything else.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    @contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: lifecycle.py handles signals.

        uvicorn's own handlers would close the listening socket at the first signal and end the process at the second.
        """
        yield

    @override
    async def main_loop(self) -> None:
        """Serve until `end` is called; refresh the Date header once a second (`on_tick`)."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1)

    def end(self) -> None:
        """Make the HTTP server's `serve` return; safe to call from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
