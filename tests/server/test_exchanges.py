"""What is told of requests that are over: each once, with the status that its client saw, or with 499."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ridgeline.server.http.exchanges import Exchange, Exchanges, log_exchange
from ridgeline.server.server_settings import ServerSettings
from server.wire import connect, eventually, exchange, listening, status_of

SETTINGS = ServerSettings(header_seconds=0.2, body_seconds=0.4, idle_seconds=0.4, body_rate=0, header_bytes=4096)
HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


async def answers(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the body; without an answer where none comes. Fails at /fail."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        return
    if scope["path"] == "/fail":
        raise RuntimeError("a bug")
    await PlainTextResponse(body)(scope, receive, send)


@dataclass(frozen=True)
class Server:
    """told: what its observer has heard."""

    port: int
    told: list[Exchange]

    def one(self) -> Exchange:
        """The only exchange so far, soon."""
        assert eventually(lambda: self.told)
        (exchange,) = self.told
        return exchange


@pytest.fixture
def server() -> Iterator[Server]:
    told: list[Exchange] = []
    observers = [told.append]
    with listening(Exchanges(answers, observers), SETTINGS, observers) as port:
        yield Server(port, told)


def test_an_answer_is_told(server: Server) -> None:
    assert status_of(exchange(server.port, HEAD + b"Content-Length: 3\r\n\r\nabc")) == 200
    told = server.one()
    assert (told.method, told.path, told.status, told.code) == ("POST", "/x", 200, None)
    assert told.client is not None
    assert 0 < told.seconds < 10


def test_what_fails_is_a_500_for_both(server: Server) -> None:
    assert status_of(exchange(server.port, HEAD.replace(b"/x", b"/fail") + b"\r\n")) == 500
    assert server.one().status == 500


def test_a_client_that_leaves_before_an_answer_is_a_499(server: Server) -> None:
    with connect(server.port) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")
    assert (server.one().path, server.one().status) == ("/x", 499)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /x HTTP/1.1\r\nHost: loc", 408, "request_timeout"),
        (b"GET /x HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 70_000, 431, "headers_too_large"),
        (b"GET /x\r\n\r\n", 400, "invalid_request"),
    ],
)
def test_a_head_that_the_protocol_refuses_is_told(server: Server, data: bytes, status: int, code: str) -> None:
    assert status_of(exchange(server.port, data)) == status
    told = server.one()
    assert (told.method, told.path, told.handler, told.status, told.code) == (None, None, None, status, code)


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"Content-Length: 100\r\n\r\nabc", 408, "request_timeout"),
        (b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "invalid_request"),
    ],
)
def test_a_body_that_the_protocol_refuses_is_told_once(server: Server, rest: bytes, status: int, code: str) -> None:
    """The application has the request by then, and is left without an answer of its own."""
    assert status_of(exchange(server.port, HEAD + rest)) == status
    told = server.one()
    assert (told.method, told.path, told.status, told.code) == ("POST", "/x", status, code)


def test_health_is_not_told() -> None:
    told: list[Exchange] = []

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
        await Exchanges(answers, [told.append])(scope, receive, send)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(message: object) -> None:
        """Nobody reads it."""

    asyncio.run(ask())
    assert told == []


def test_the_access_logs_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ridgeline.server.access"):
        log_exchange(Exchange(("1.2.3.4", 5), "GET", "/a\r\nb", "/{x}", 499, 0.25))
        log_exchange(Exchange(None, None, None, None, 408, 0.2))
    assert [record.getMessage() for record in caplog.records] == [
        '1.2.3.4:5 "GET /a%0D%0Ab" 499 0.250 s',
        '- "-" 408 0.200 s',
    ]
