"""Attacks of many connections, by the port of a server. Those of attacks.py are data."""

import json
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from server import attacks
from server.attacks import COMPLETE, HOST, LONG
from server.wire import connect, exchange, read_all, status_of

EVENTS = b"GET /v1/engine/events HTTP/1.1\r\n" + HOST + b"\r\n"

_Result = TypeVar("_Result")


def http_bytes(path: str, body: Any, *headers: bytes) -> bytes:
    """A POST as bytes."""
    data = json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\n%s" % (path.encode(), HOST) + b"".join(line + b"\r\n" for line in headers)
    return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def at_once(count: int, ask: Callable[[], _Result]) -> list[_Result]:
    """Ask so often at the same time, and return what comes of each."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: ask(), range(count)))


def leave_after_first_tokens(port: int, requests: int) -> None:
    """Leave streams with their first token, 16 at a time."""
    whole = http_bytes(COMPLETE, {**LONG, "stream": True})

    def leave(_: int) -> None:
        with connect(port) as connection:
            connection.sendall(whole)
            received = b""
            while b"data:" not in received and (part := connection.recv(4096)):
                received += part

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(requests)))


def listen(port: int, count: int) -> tuple[list[socket.socket], list[int]]:
    """Listen to the engine's events with so many connections that come at once; return them, and each one's status."""
    connections = [connect(port) for _ in range(count)]
    for connection in connections:
        connection.sendall(EVENTS)
    return connections, [status_of(connection.recv(12)) for connection in connections]


def _close(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _idle(port: int) -> None:
    _close([connect(port) for _ in range(150)])


def _unread(port: int) -> None:
    """A stream of large frames whose client reads nothing of it."""
    with connect(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(http_bytes(COMPLETE, {**LONG, "stream": True, "logprobs": 20, "n": 8}))
        connection.recv(1)


def _burst(port: int) -> None:
    data = http_bytes(COMPLETE, {**LONG, "max_tokens": 12}, b"Connection: close")
    at_once(200, partial(exchange, port, data))


def _listeners(port: int) -> None:
    _close(listen(port, 40)[0])


def _heads(port: int) -> None:
    for _, head, status in attacks.HEADS:
        if status != 408:  # those wait for the server's deadline
            exchange(port, head)


def _left_bodies(port: int) -> None:
    whole = http_bytes(COMPLETE, {**LONG, "prompt": [5] * 100})
    for data in (whole[:-1], whole) * 20:
        with connect(port) as connection:
            connection.sendall(data)


def _form(port: int) -> None:
    """A form of the largest size, to a route that reads forms on servers of pipelines."""
    body = attacks.whole(b"--x\r\nContent-Disposition: form-data; name=f\r\n\r\n", b"--x\r\n", b"")
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
    head += b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(port) as connection:
        connection.sendall(head + body)
        read_all(connection)


CROWDS: Sequence[tuple[str, Callable[[int], None]]] = (
    ("36-heads", _heads),
    ("39-unread", _unread),
    ("40-idle", _idle),
    ("41-left", _left_bodies),
    ("42-burst", _burst),
    ("43-left-streams", partial(leave_after_first_tokens, requests=100)),
    ("56-form", _form),
    ("57-listeners", _listeners),
)
"""Attacks with the row of the table in docs/serving.md that each belongs to."""
