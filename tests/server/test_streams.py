"""What a stream does when it fails, when nobody reads it and when the client leaves; and its bytes."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from starlette.types import Message, Receive, Scope, Send

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.server.errors import ApiError
from ridgeline.server.http import event_stream
from ridgeline.server.http.disconnect import ClientGone, run_unless_disconnected
from ridgeline.server.http.event_stream import ALIVE, DONE, EventStreamResponse, SlowReader, StreamOutbox, frame
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.routes.stream_chunks import BLOCK
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Running, running
from server.wire import connect, eventually, exchange, listening, read_all

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def test_frames_are_what_openai_s_decoder_takes(server: Running) -> None:
    body = {"prompt": ["Once", "A dog"], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    reply = server.post("/v1/completions", body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    text = reply.data.decode()
    assert text.endswith("\n\n")
    *frames, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    assert all(one.startswith("data: {") and "\n" not in one for one in frames)
    values = [json.loads(one.removeprefix("data: ")) for one in frames]
    assert all(isinstance(value["choices"], list) for value in values)
    assert values[-1]["choices"] == []
    assert reply.headers["x-request-id"] == values[0]["id"]
    server.idle()


TEXTS = {
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 12},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12},
    "/v1/responses": {"input": "Once upon a time", "max_output_tokens": 12},
}


@pytest.mark.parametrize("path", TEXTS)
def test_obfuscated_events_of_any_text_differ_by_whole_blocks_in_length(server: Running, path: str) -> None:
    """What they say is the same as without; there their lengths tell the tokens'."""

    def events(**options: bool) -> list[bytes]:
        body = {**TEXTS[path], "temperature": 0, "stream": True, "stream_options": options}
        lines = server.post(path, body).data.split(b"\n")
        return [line for line in lines if b'"choices":[{' in line or (b"text.delta" in line and b"data:" in line)]

    plain, filled = events(), events(include_obfuscation=True)
    assert len({len(line) % BLOCK for line in plain}) > 1
    assert len({len(line) % BLOCK for line in filled}) == 1
    drawn = {"id", "created", "timings", "item_id"}
    for before, after in zip(plain, filled, strict=True):
        said, obfuscated = (json.loads(line.removeprefix(b"data: ")) for line in (before, after))
        assert obfuscated.pop("obfuscation").isascii()
        assert {k: v for k, v in said.items() if k not in drawn} == {
            k: v for k, v in obfuscated.items() if k not in drawn
        }
    server.idle()


# -- leaving ----------------------------------------------------------------------------------------------------------


def send(server: Running, path: str, body: Any) -> socket.socket:
    """A request on a connection that the test holds."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(head.encode() + b"\r\n" + data)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_client_that_leaves_frees_its_pages_at_once(server: Running, stream: bool, tokens: int) -> None:
    """tokens: how many it waits for before it goes; 0: it goes at once."""
    before = server.service.llm.stats.output_tokens
    connection = send(server, "/v1/completions", {**LONG, "stream": stream})
    assert eventually(lambda: server.service.llm.stats.output_tokens - before >= tokens)
    connection.close()
    server.idle()
    assert server.service.llm.stats.output_tokens - before < 200, "it went on for nobody"
    server.check()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_a_client_that_sends_no_more_gets_what_another_gets(server: Running, path: str, stream: bool) -> None:
    """`nc -N` shuts down its sending side once it has sent its request."""
    body: dict[str, Any] = {"prompt": "Once upon", "max_tokens": 200, "temperature": 0, "stream": stream}
    if path != "/v1/completions":
        asked = {"messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 200}
        asked = asked if "chat" in path else {"input": "Once upon", "max_output_tokens": 200}
        body = {"temperature": 0, "stream": stream, **asked}
    with send(server, path, body) as connection:
        connection.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection)
        response.begin()
        said = response.read()
        assert connection.recv(1) == b"", "the connection ends with the response"
    texts = re.compile(rb'"(?:text|content|delta|finish_reason|type)":"((?:[^"\\]|\\.)*)"')
    assert response.status == 200
    assert texts.findall(said) == texts.findall(server.post(path, body).data)
    assert len(texts.findall(said)) > (200 if stream else 0)
    server.idle()


def test_a_client_that_leaves_in_prefill_frees_its_pages(server: Running) -> None:
    connection = send(server, "/v1/completions", {"prompt": [[i] * 400 for i in range(5, 25)], "max_tokens": 100})
    assert eventually(lambda: server.service.llm.stats.running > 0)
    connection.close()
    server.check()


class Closed:
    """An admission that is full, or becomes so after a number of requests."""

    def __init__(self, room: int) -> None:
        self.room = room

    def admit(self, live: InFlightRequest) -> None:
        if not self.room:
            raise ApiError(429, "no room", code="queue_full", headers={"retry-after": "1"})
        self.room -= 1

    def leave(self, live: InFlightRequest) -> None:
        self.room += 1


@contextlib.contextmanager
def with_room_for(tales: LoadedEngine, room: int) -> Iterator[Running]:
    llm = AsyncLLM(tales)
    try:
        with running(Service(llm, Closed(room)), ServerSettings(models=("tales",))) as up:
            yield up
    finally:
        llm.close()


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_before_the_first_token_has_a_status(stream: bool) -> None:
    with with_room_for(load_engine("tales"), 1) as server:
        reply = server.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 50, "stream": stream})
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert reply.json()["error"]["type"] == "rate_limit_error"
        server.check()


# -- the stream by itself, with an application's three callables -------------------------------------------------------


class Reader:
    """An ASGI client that takes so many messages and then reads no more, or leaves."""

    def __init__(self, takes: int | None = None, leaves: bool = False) -> None:
        self.takes, self.leaves = takes, leaves
        self.got: list[Message] = []
        self.gone = asyncio.Event()

    async def send(self, message: Message) -> None:
        if self.takes is not None and len(self.got) >= self.takes:
            if self.leaves:
                self.gone.set()
            await asyncio.Event().wait()
        self.got.append(message)

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def data(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


def play(produce: Callable[[StreamOutbox], Awaitable[None]], reader: Reader, limit: int = 1000) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await EventStreamResponse(produce, limit)({"type": "http"}, reader.receive, reader.send)

    asyncio.run(main())


def test_an_error_before_the_first_frame_is_raised_and_one_after_it_is_a_frame() -> None:
    failure = ApiError(503, "the engine stopped", code="engine_died")

    async def at_once(outbox: StreamOutbox) -> None:
        raise failure

    async def later(outbox: StreamOutbox) -> None:
        outbox.put(frame({"a": 1}))
        await asyncio.sleep(0.01)
        raise failure

    async def unforeseen(outbox: StreamOutbox) -> None:
        outbox.put(frame({"a": 1}))
        await asyncio.sleep(0.01)
        raise RuntimeError("at 0x7f00: what nobody may read")

    with pytest.raises(ApiError, match="the engine stopped"):
        play(at_once, Reader())
    reader = Reader()
    play(later, reader)
    assert reader.data == frame({"a": 1}) + frame(failure.body()) + DONE
    assert reader.got[-1]["more_body"] is False
    reader = Reader()
    play(unforeseen, reader)
    assert b"the server failed" in reader.data
    assert b"0x" not in reader.data


def test_the_official_client_raises_the_error_frame() -> None:
    async def later(outbox: StreamOutbox) -> None:
        outbox.put(frame({"choices": []}))
        await asyncio.sleep(0.01)
        raise ApiError(503, "the engine stopped", code="engine_died")

    reader = Reader()
    play(later, reader)
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=reader.data)
    )
    with openai.OpenAI(base_url="http://x/v1", api_key="x", http_client=httpx2.Client(transport=transport)) as client:
        chunks = client.chat.completions.create(model="m", messages=[], stream=True)
        with pytest.raises(openai.APIError, match="the engine stopped"):
            list(chunks)


def test_who_does_not_read_is_dropped_once_the_limit_is_reached() -> None:
    """The producer is never held up: it is told at the frame that is one too many."""
    put = 0

    async def produce(outbox: StreamOutbox) -> None:
        nonlocal put
        while True:
            outbox.put(b"x" * 100)
            put += 1
            await asyncio.sleep(0)

    reader = Reader(takes=3)  # the start and two bodies
    play(produce, reader, limit=1000)
    read = len(reader.data) // 100
    assert read > 0
    assert put - read == 10


def test_who_does_not_read_the_last_frames_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LAST_SECONDS", 0.05)

    async def produce(outbox: StreamOutbox) -> None:
        outbox.put(b"x" * 100)

    reader = Reader(takes=1)
    play(produce, reader)
    assert reader.data == b""


def test_the_producer_is_cancelled_when_the_client_leaves() -> None:
    cancelled = []

    async def produce(outbox: StreamOutbox) -> None:
        try:
            while True:
                outbox.put(b"x")
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    play(produce, Reader(takes=5, leaves=True))
    assert cancelled == [True]


def test_a_comment_keeps_a_silent_stream_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "ALIVE_SECONDS", 0.01)

    async def produce(outbox: StreamOutbox) -> None:
        await asyncio.sleep(0.05)
        outbox.put(DONE)

    reader = Reader()
    play(produce, reader)
    assert reader.data.startswith(b": waiting\n\n")
    assert reader.data.endswith(DONE)


def test_a_comment_comes_after_silence_only_and_never_after_the_end() -> None:
    """A soak found one behind [DONE]: the timer ran whatever had been sent."""

    async def run() -> None:
        outbox = StreamOutbox(1000)
        outbox.keep_alive()
        outbox.keep_alive()  # the first still waits
        assert await outbox.take() == ALIVE
        outbox.read(len(ALIVE))
        outbox.put(DONE)
        assert await outbox.take() == DONE
        outbox.read(len(DONE))
        outbox.keep_alive()  # a frame has come since the last call
        assert outbox.waiting == 0
        outbox.close()
        outbox.keep_alive()
        assert outbox.waiting == 0

    asyncio.run(run())


@contextlib.contextmanager
def streaming(produce: Callable[[StreamOutbox], Awaitable[None]], limit: int) -> Iterator[int]:
    """The port of a server whose one answer is this stream, behind our own protocol."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await EventStreamResponse(produce, limit)(scope, receive, send)

    with listening(app, ServerSettings()) as port:
        yield port


def test_who_does_not_read_is_cut_off_by_the_server_and_holds_up_nobody() -> None:
    """At the limit, not after a while; what the kernel holds comes on top."""
    slow = threading.Event()

    async def produce(outbox: StreamOutbox) -> None:
        try:
            while True:
                outbox.put(frame({"x": "y" * 5000}))
                await asyncio.sleep(0)
        except SlowReader:
            slow.set()
            raise

    with streaming(produce, 1 << 18) as port, connect(port) as deaf:
        deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.wait(20)
        data = read_all(deaf)
        assert b"[DONE]" not in data
        assert not data.endswith(b"0\r\n\r\n"), "an answer that was cut off must not look whole"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_is_whole_for_both_versions_of_http(version: str) -> None:
    """HTTP/1.0 knows no chunks: there the connection's end is the answer's."""

    async def produce(outbox: StreamOutbox) -> None:
        for number in range(100):
            outbox.put(frame({"number": number}))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        outbox.put(DONE)

    with streaming(produce, 1 << 18) as port:
        head = f"GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        header, _, body = exchange(port, head).partition(b"\r\n\r\n")
    wanted = b"".join(frame({"number": number}) for number in range(100)) + DONE
    if version == "1.1":
        assert b"transfer-encoding: chunked" in header.lower()
        assert _unchunked(body) == wanted
    else:
        assert body == wanted


def _unchunked(body: bytes) -> bytes:
    """The bytes of a body in chunks, which must be complete."""
    whole = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert rest == b"\r\n"
            return whole
        whole, body = whole + rest[:length], rest[length + 2 :]


def test_an_outbox_counts_what_the_connection_has_taken() -> None:
    async def main() -> None:
        outbox = StreamOutbox(10)
        outbox.put(b"12345")
        outbox.put(b"67890")
        with pytest.raises(SlowReader):
            outbox.put(b"1")

        other = StreamOutbox(10)
        other.put(b"1234567890")
        assert await other.take() == b"1234567890"
        other.read(10)
        other.put(b"1234567890")
        assert await other.take() == b"1234567890"
        other.close()
        assert await other.take() == b""

    asyncio.run(main())


def test_work_is_cancelled_when_the_client_is_gone_and_its_errors_pass() -> None:
    async def main() -> None:
        reader = Reader()
        assert await run_unless_disconnected(reader.receive, asyncio.sleep(0, "done")) == "done"

        async def fails() -> None:
            raise ValueError("its own")

        with pytest.raises(ValueError, match="its own"):
            await run_unless_disconnected(reader.receive, fails())
        endless = asyncio.ensure_future(asyncio.sleep(1000))
        reader.gone.set()
        with pytest.raises(ClientGone):
            await run_unless_disconnected(reader.receive, endless)
        assert endless.cancelled()

    asyncio.run(main())
