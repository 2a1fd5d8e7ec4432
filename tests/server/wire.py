"""A server in a thread, and clients that write bytes to it as they please."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.types import ASGIApp

from ridgeline.server.http.exchanges import ExchangeObserver
from ridgeline.server.http.http_server import http_server
from ridgeline.server.http.uvicorn_adapter import HTTPServer
from ridgeline.server.server_settings import ServerSettings


@contextmanager
def listening(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver] = ()) -> Iterator[int]:
    """The port of a server with `app` behind our protocol."""
    with up(app, settings, observers) as server:
        yield port_of(server)


@contextmanager
def up(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver] = ()) -> Iterator[HTTPServer]:
    """The server itself."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        server = http_server(app, settings, observers)
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listener]),), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        try:
            yield server
        finally:
            server.force_exit = True
            server.end()
            thread.join(10)


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


def port_of(server: HTTPServer) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


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
