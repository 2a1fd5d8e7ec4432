"""Deadlines and limits of a connection, on sockets, with limits of tenths of seconds."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ridgeline.server.http.disconnect import ClientGone, run_unless_disconnected
from ridgeline.server.http.http_server import listen
from ridgeline.server.http.protocol import LimitedProtocol
from ridgeline.server.server_settings import ServerSettings
from server.wire import connect, eventually, exchange, listening, port_of, read_all, status_of, up

SETTINGS = ServerSettings(
    header_seconds=0.2, body_seconds=0.6, idle_seconds=0.4, body_rate=0, headers=20, header_bytes=4096
)
GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 32 << 20
CLOSE = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Echo:
    """Answers with the body's length; /early answers before reading it, /large with much. Counts what was lost."""

    def __init__(self) -> None:
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        answer: Response = PlainTextResponse("early")
        try:
            if scope["path"] == "/large":
                answer = PlainTextResponse("x" * LARGE)
            elif scope["path"] != "/early":
                answer = PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            self.disconnects += 1
            return
        await answer(scope, receive, send)


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def port(echo: Echo) -> Iterator[int]:
    with listening(echo, SETTINGS) as port:
        yield port


def error_of(answer: bytes) -> dict[str, str]:
    """The error of an answer in the one form that clients read."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def works(port: int) -> bool:
    return status_of(exchange(port, CLOSE)) == 200


def test_a_head_that_does_not_end_is_answered_408(port: int) -> None:
    answer = exchange(port, b"GET /x HTTP/1.1\r\nHost: loc")
    assert status_of(answer) == 408
    assert "head" in error_of(answer)["message"]
    assert works(port)


def drip(connection: socket.socket, data: bytes) -> None:
    for byte in data:
        connection.send(bytes([byte]))
        time.sleep(0.02)


def test_a_head_that_comes_byte_by_byte_has_the_same_deadline(port: int) -> None:
    """It would take three seconds to its end; the connection is gone long before."""
    with connect(port) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(connection, b"GET /" + b"x" * 150)


def test_a_body_that_does_not_end_is_answered_408_and_its_route_is_left(port: int, echo: Echo) -> None:
    before = echo.disconnects
    answer = exchange(port, b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
    assert status_of(answer) == 408
    assert "body" in error_of(answer)["message"]
    assert eventually(lambda: echo.disconnects == before + 1)
    assert works(port)


def test_an_idle_connection_is_closed_without_a_word(port: int) -> None:
    assert exchange(port, b"") == b""
    answer = exchange(port, GET)
    assert status_of(answer) == 200
    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_may_come_slowly_but_not_below_the_rate() -> None:
    settings = replace(SETTINGS, body_seconds=20.0, body_rate=1000, header_seconds=0.3)
    with listening(Echo(), settings) as port:
        started = time.monotonic()
        answer = exchange(port, b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert status_of(answer) == 408
        assert time.monotonic() - started < 10  # long before the deadline

        with connect(port) as connection:
            connection.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\n\r\n")
            for _ in range(15):
                connection.sendall(b"x" * 200)
                time.sleep(0.1)
            assert status_of(connection.recv(65536)) == 200


def test_requests_one_after_the_other_have_their_own_deadlines() -> None:
    """Together they take longer than any of the deadlines, which each keeps by far."""
    settings = replace(SETTINGS, header_seconds=0.6, idle_seconds=0.8)
    with listening(Echo(), settings) as port, connect(port) as connection:
        for _ in range(3):
            for part in (GET[:20], GET[20:]):
                connection.sendall(part)
                time.sleep(0.2)
            assert status_of(connection.recv(65536)) == 200


def test_requests_that_are_sent_together_are_all_answered(port: int) -> None:
    post = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
    assert exchange(port, GET + post + CLOSE).count(b"HTTP/1.1 200") == 3


def test_an_early_answer_does_not_end_the_deadline_of_the_body(port: int) -> None:
    answer = exchange(port, b"POST /early HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
    assert status_of(answer) == 200
    assert answer.endswith(b"early")


HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (HEAD + b"Content-Length: -3\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: 3a\r\n\r\nabc", 400),
        (HEAD + b"Content-Length: +3\r\n\r\nabc", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /x HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", 400),
        (HEAD + b"Host: localhost\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost: a/?x\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET http://localhost/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"HEAD http://localhost/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /x\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /x\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET /x HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20 + b"\r\n", 431),
        (b"GET /x HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 4096 + b"\r\n\r\n", 431),
        (b"GET /x HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 70_000, 431),
        (b"GET /" + b"x" * 4096 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    ],
)
def test_what_is_malformed_too_large_or_ambiguous_is_refused(port: int, data: bytes, status: int) -> None:
    answer = exchange(port, data)
    assert status_of(answer) == status
    assert error_of(answer)["message"]
    assert b"Connection: close" in answer
    assert works(port)


def test_equal_lengths_stated_twice_are_one(port: int) -> None:
    """RFC 9110, 8.6: a recipient may take them for one; what h11 drops cannot be seen any more."""
    data = HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    assert status_of(exchange(port, data)) == 200


def test_the_limits_themselves_are_allowed(port: int) -> None:
    assert status_of(exchange(port, CLOSE[:-2] + b"a: b\r\n" * 18 + b"\r\n")) == 200


def test_a_client_that_does_not_read_is_cut_off() -> None:
    settings = replace(SETTINGS, body_seconds=0.2)
    with up(Echo(), settings) as server, connect(port_of(server)) as connection:
        connection.sendall(GET.replace(b"/x", b"/large"))
        assert eventually(lambda: len(server.server_state.connections) == 1)
        assert eventually(lambda: not server.server_state.connections)
        assert len(read_all(connection)) < LARGE
        assert works(port_of(server))


def test_a_client_that_reads_slowly_gets_everything() -> None:
    """Whoever reads at all is not cut off, though the answer takes longer than the deadline."""
    settings = replace(SETTINGS, body_seconds=0.5)
    with listening(Echo(), settings) as port, connect(port) as connection:
        connection.sendall(CLOSE.replace(b"/x", b"/large"))
        received = 0
        while chunk := connection.recv(1 << 20):
            received += len(chunk)
            time.sleep(0.02)
        assert received > LARGE


def test_who_asks_for_a_websocket_is_answered_in_http(port: int, caplog: pytest.LogCaptureFixture) -> None:
    asked = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert status_of(exchange(port, b"GET /x HTTP/1.1\r\nHost: localhost\r\n" + asked)) == 200
    assert not caplog.records


# -- clients that send no more -----------------------------------------------------------------------------------------


class Slow:
    """Answers after a while, as a whole or piece by piece (/stream), unless the client leaves, which it counts."""

    def __init__(self) -> None:
        self.begun = self.left = 0
        self.seconds = 0.12

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        self.begun += 1
        try:
            answer = await run_unless_disconnected(receive, self._answer(scope["path"]))
        except ClientGone:
            self.left += 1
            return
        await answer(scope, receive, send)

    async def _answer(self, path: str) -> Response:
        if path == "/stream":
            return StreamingResponse(self._pieces())
        await asyncio.sleep(self.seconds)
        return PlainTextResponse(f"whole {path}")

    async def _pieces(self) -> AsyncIterator[bytes]:
        for piece in range(4):
            await asyncio.sleep(self.seconds / 4)
            yield b"piece %d;" % piece


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def half_closed(port: int, data: bytes) -> bytes:
    """What comes back to a client that shuts down its sending side, up to the end of the connection."""
    with connect(port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_sends_no_more_gets_its_whole_response(version: bytes) -> None:
    """And nothing but interim responses before it, by which it is asked whether it is there; then the end."""
    with listening(Slow(), SETTINGS) as port:
        for _ in range(2):
            said = half_closed(port, GET.replace(b"1.1", version))
            assert said.count(INTERIM) == (version == b"1.1")
            head, _, body = said.replace(INTERIM, b"").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert body == b"whole /x"
        streamed = half_closed(port, GET.replace(b"/x", b"/stream").replace(b"1.1", version))
        assert streamed.replace(INTERIM, b"").startswith(b"HTTP/1.1 200 OK\r\n")
        assert [streamed.count(b"piece %d;" % piece) for piece in range(4)] == [1] * 4
        assert streamed.endswith(b"0\r\n\r\n" if version == b"1.1" else b"piece 3;")
        posted = b"POST /x HTTP/%b\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc" % version
        assert half_closed(port, posted).endswith(b"whole /x")


def test_requests_that_were_sent_at_once_are_all_answered() -> None:
    with listening(Slow(), SETTINGS) as port:
        said = half_closed(port, GET + GET.replace(b"/x", b"/stream") + GET.replace(b"/x", b"/y"))
        assert (said.count(b"HTTP/1.1 200 OK"), said.count(b"piece 3;")) == (3, 1)
        assert said.endswith(b"whole /y")


@pytest.mark.parametrize("path", [b"/x", b"/stream"])
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_client_that_has_gone_is_noticed_though_nothing_is_sent(path: bytes, seconds: float) -> None:
    """At once, or some time after it said that it sends no more."""
    app = Slow()
    app.seconds = 60.0 if path == b"/x" else 1.0  # what a stream sends is answered too
    with up(app, SETTINGS) as server:
        with connect(port_of(server)) as connection:
            connection.sendall(GET.replace(b"/x", path))
            assert eventually(lambda: app.begun)
            if seconds:
                connection.shutdown(socket.SHUT_WR)
                time.sleep(seconds)
                assert server.server_state.connections
        assert eventually(lambda: not server.server_state.connections, 4.0)
        # The connection is gone a moment before the app hears of it.
        assert eventually(lambda: app.left == (path == b"/x"))


def test_a_client_of_python_reads_over_interim_responses() -> None:
    with listening(Slow(), SETTINGS) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/x")
        connection.sock.shutdown(socket.SHUT_WR)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"whole /x")


def test_half_a_request_is_no_request() -> None:
    with listening(Slow(), SETTINGS) as port:
        assert half_closed(port, GET[:-2]) == b""
        assert half_closed(port, b"") == b""
        assert half_closed(port, b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc") == b""


def phases(server: uvicorn.Server) -> list[str]:
    """Of its connections."""
    return [each.phase for each in list(server.server_state.connections) if isinstance(each, LimitedProtocol)]


def test_more_connections_than_allowed_close_the_one_that_was_idle_longest() -> None:
    settings = replace(SETTINGS, connections=3, idle_seconds=30.0)
    with up(Echo(), settings) as server:
        idle = [connect(port_of(server)) for _ in range(3)]
        assert eventually(lambda: phases(server) == ["idle"] * 3)
        assert works(port_of(server))
        assert idle[0].recv(1) == b""
        idle[2].settimeout(0.1)
        with pytest.raises(TimeoutError):
            idle[2].recv(1)
        for connection in idle:
            connection.close()


def test_where_no_connection_is_idle_a_new_one_is_answered_503() -> None:
    settings = replace(SETTINGS, connections=2, header_seconds=30.0)
    with up(Echo(), settings) as server, connect(port_of(server)) as first, connect(port_of(server)) as second:
        for busy in (first, second):
            busy.sendall(GET[:10])
        assert eventually(lambda: phases(server) == ["head"] * 2)
        answer = exchange(port_of(server), b"")
        assert (status_of(answer), error_of(answer)["code"]) == (503, "connections")


def test_many_hostile_connections_at_once_leave_the_server_whole(port: int) -> None:
    def misbehave(data: bytes) -> None:
        for _ in range(10):
            with connect(port) as connection:
                connection.sendall(data)

    threads = [
        threading.Thread(target=misbehave, args=(data,)) for data in (b"GET ", HEAD, GET[:-1], b"\0" * 5000, GET)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert works(port)


def test_frames_are_sent_at_once() -> None:
    """A frame that waited for the client to acknowledge the one before it would come 40 ms late."""
    with listen(ServerSettings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
