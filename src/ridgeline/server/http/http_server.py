"""The HTTP server: uvicorn with our deadlines, the socket on which connections come, and how many there may be."""

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from ridgeline.server.http.exchanges import ExchangeObserver
from ridgeline.server.http.protocol import protocol_of
from ridgeline.server.server_settings import ServerSettings

PRICED = "x-ridgeline-priced"
"""The header of every answer of a server on which no model runs: the card that its steps are priced for."""

SPARE_DESCRIPTORS = 64
"""Of the process's open files, what is not for connections: weights, the engine's socket, logs."""


def most_connections(settings: ServerSettings) -> int:
    """How many connections may be open, after the process has been allowed all the open files it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, soft - SPARE_DESCRIPTORS)
    return most if settings.connections is None else min(settings.connections, most)


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens where the settings say. Raises ValueError in one line where that cannot be.

    What it accepts sends at once: else a frame waits for the client to acknowledge the one before it, which a client on
    a connection that was used before does 40 ms late.
    """
    where = f"{settings.host} port {settings.port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address, family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does so where it made the socket
        return listener
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        fix = "is another server there? Give another --port" if taken else "give another --host or --port"
        named = isinstance(error, socket.gaierror)  # else the words are Python's own and name the place once more
        reason = error.strerror if named or error.errno is None else os.strerror(error.errno)
        raise ValueError(f"cannot listen on {where}: {reason}; {fix}") from None


def url_of(listener: socket.socket) -> str:
    """Where a client finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HTTPServer(uvicorn.Server):
    """uvicorn's, without its signals, and without looking ten times a second whether it is to end: with a slow
    model that takes more of the processor than anything else between two steps.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    @contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        """Signals are the lifecycle's: uvicorn would stop listening at the first, and die of it in the end."""
        yield

    @override
    async def main_loop(self) -> None:
        """Serve until `end`; once a second the date that answers bear is made anew (`on_tick`)."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1)

    def end(self) -> None:
        """Have `serve` return. From any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)


def http_server(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver] = ()) -> HTTPServer:
    """The HTTP server of an application, with our deadlines, without uvicorn's own logs, signals and proxy headers.
    observers: told of requests that are refused before they reach the application.
    """
    config = uvicorn.Config(
        app,
        http=protocol_of(settings, observers),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[(PRICED, settings.priced)] if settings.priced else [],
        timeout_graceful_shutdown=2,
    )
    return HTTPServer(config)
