"""The construction of the HTTP server, its listening socket, and its limit of connections."""

import errno
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from ridgeline.server.http.exchanges import ExchangeObserver
from ridgeline.server.http.protocol import protocol_of
from ridgeline.server.http.uvicorn_adapter import HTTPServer
from ridgeline.server.server_settings import ServerSettings

PRICED = "x-ridgeline-priced"
"""The response header, on a server without a running model, that names the device its steps are priced for."""

SPARE_DESCRIPTORS = 64
"""The open files reserved for other uses than connections: weights, the engine's socket, logs."""


def most_connections(settings: ServerSettings) -> int:
    """Raise the process's open-file limit as far as possible, and return how many connections may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, soft - SPARE_DESCRIPTORS)
    return most if settings.connections is None else min(settings.connections, most)


def listen(settings: ServerSettings) -> socket.socket:
    """Return a socket that listens at the address in the settings.

    TCP_NODELAY is set: otherwise a frame waits for the client to acknowledge the previous one, which clients on a
    reused connection do 40 ms late.

    Raises:
        ValueError: If the address cannot be used.
    """
    where = f"{settings.host} port {settings.port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address, family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it on its own sockets only
        return listener
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        fix = "is another server using it? Give another --port" if taken else "give another --host or --port"
        named = isinstance(error, socket.gaierror)  # other messages repeat the address
        reason = error.strerror if named or error.errno is None else os.strerror(error.errno)
        raise ValueError(f"cannot listen on {where}: {reason}; {fix}") from None


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_server(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver] = ()) -> HTTPServer:
    """Return the HTTP server of an application, without uvicorn's own logs, signals and proxy headers.

    Args:
        app: The application.
        settings: The deadlines and limits.
        observers: Called with each request that is refused before it reaches the application.
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
