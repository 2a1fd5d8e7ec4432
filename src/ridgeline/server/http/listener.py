"""The socket on which connections come, and how many of them there may be."""

import errno
import os
import resource
import socket
from contextlib import suppress

from ridgeline.server.settings import ServerSettings

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
