"""A server in a thread, and clients that write bytes to it as they please."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from ridgeline.server.http import protocol_of
from ridgeline.server.settings import ServerSettings


@contextmanager
def listening(app: ASGIApp, settings: ServerSettings) -> Iterator[int]:
    """The port of a server with `app` behind our protocol."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=protocol_of(settings),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the server closes; b"" where it closes without a word."""
    received = bytearray()
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return bytes(received)


def exchange(port: int, data: bytes) -> bytes:
    """What comes back for these bytes, until the server closes the connection."""
    with connect(port) as connection:
        connection.sendall(data)
        return read_all(connection)


def status_of(answer: bytes) -> int:
    """The status of the first answer in these bytes."""
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])
