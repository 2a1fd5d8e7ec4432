"""Hostile connections: how requests come, from whom, how many and when they leave. Numbers as in
test_hostile_requests.py. After each, one normal request succeeds, no KV page is held, and nothing has leaked.
"""

import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ridgeline.engine.engine import Engine
from ridgeline.engine.sampling.sample_row import PROCESSED, RowFailure
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.logs import TextFormatter
from server import attacks, crowds
from server.attacked import Attacked, attacked
from server.attacks import CHAT, COMPLETE, GREET, HOST, LONG
from server.crowds import http_bytes
from server.test_hostile_requests import numbered
from server.wire import eventually, read_all, status_of

SETTINGS = ServerSettings(header_seconds=0.3, body_seconds=0.6, idle_seconds=20.0, connections=60)
SECRET = "what a user has written"


@pytest.fixture(scope="module")
def module_server() -> Iterator[Attacked]:
    with attacked(SETTINGS) as server:
        yield server


@pytest.fixture
def server(module_server: Attacked) -> Iterator[Attacked]:
    yield module_server
    module_server.check()


# -- who asks ----------------------------------------------------------------------------------------------------------


RIGHT_KEY = {"Authorization": "Bearer sk-Right-Key"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Attacked]:
    with attacked(replace(SETTINGS, keys=("sk-Right-Key", "sk-other"))) as server:
        yield server


@pytest.mark.parametrize(
    "header",
    numbered(
        ("34-missing", {}),
        ("34-bearer", {"Authorization": "Bearer"}),
        ("34-lower-case", {"Authorization": "Bearer sk-right-key"}),
        ("34-space", {"Authorization": "Bearer sk-Right-Key x"}),
        ("34-prefix", {"Authorization": "Bearer sk-Right-Ke"}),
        ("34-basic", {"Authorization": "Basic sk-Right-Key"}),
        ("34-other-header", {"X-API-Key": "sk-Right-Key"}),
    ),
)
def test_wrong_keys(locked: Attacked, header: dict[str, str]) -> None:
    for method, path in (
        ("POST", COMPLETE),
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("POST", "/tokenize"),
        ("GET", "/version"),
        ("GET", "/v1/trace/x"),
        ("GET", "/nowhere"),
    ):
        reply = locked.request(method, path, b"{}" if method == "POST" else None, header)
        assert reply.status == 401, (path, reply.status)
        assert reply.json()["error"]["type"] == "authentication_error"
    assert locked.get("/health").status == 200
    counted = locked.get("/metrics", RIGHT_KEY).data
    assert re.search(rb'http_requests_total{handler="none",method="GET",status="4xx"} [1-9]', counted)
    assert re.search(rb'request_errors_total{[^}]*code="invalid_api_key"[^}]*} [1-9]', counted)
    assert b"health" not in counted
    assert locked.post(COMPLETE, {"prompt": "a", "max_tokens": 1}, RIGHT_KEY).status == 200
    locked.idle()


def test_34_a_key_of_a_mebibyte_is_too_large_a_header(locked: Attacked) -> None:
    status, _ = locked.raw(
        b"GET /v1/models HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + b"k" * (1 << 20) + b"\r\n\r\n"
    )
    assert status == 431
    assert locked.post(COMPLETE, {"prompt": "a", "max_tokens": 1}, RIGHT_KEY).status == 200
    locked.idle()


PATHS = numbered(
    ("35-slashes", "//v1/models"),
    ("35-dots", "/v1/../metrics"),
    ("35-health-dots", "/health/../metrics"),
    ("35-upper-case", "/V1/models"),
    ("35-encoded", "/%2e%2e/"),
    ("35-static", "/static/..%2f..%2fetc/passwd"),
    ("35-nul", "/v1/models%00"),
    ("35-slash-after", "/v1/models/../../metrics"),
)


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_are_none(server: Attacked, locked: Attacked, path: str) -> None:
    status, answer = server.raw(b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    assert status == 404, answer
    assert b"root:" not in answer
    status, _ = locked.raw(b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    assert status == 401


@pytest.mark.parametrize(
    ("head", "status"),
    numbered(*attacks.HEADS),
)
def test_heads_that_are_ambiguous_or_too_large(server: Attacked, head: bytes, status: int) -> None:
    assert server.raw(head)[0] == status


def test_36_forwarded_headers_change_nothing(server: Attacked) -> None:
    plain = server.get("/v1/models")
    spoofed = server.get(
        "/v1/models",
        {
            "X-Forwarded-For": "1.2.3.4",
            "X-Forwarded-Proto": "https",
            "X-Forwarded-Host": "evil",
            "Forwarded": "for=1.2.3.4",
        },
    )
    assert spoofed.data == plain.data


@pytest.mark.parametrize(
    "headers",
    numbered(
        ("52-origin", {"Origin": "https://evil.example"}),
        ("52-null", {"Origin": "null"}),
        ("52-rebound", {"Host": "evil.example:8000"}),
        ("52-rebound-page", {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}),
    ),
)
def test_other_web_origins(server: Attacked, headers: dict[str, str]) -> None:
    for content in ("application/json", "text/plain"):  # a form may post the second without asking first
        assert server.post(COMPLETE, {"prompt": "a"}, {**headers, "content-type": content}).status == 403


# -- how they come -----------------------------------------------------------------------------------------------------


def test_39_a_head_or_a_body_byte_by_byte_is_closed_by_its_deadline(server: Attacked) -> None:
    whole = http_bytes(COMPLETE, {"prompt": "a", "max_tokens": 1})
    for start in (10, whole.index(b"\r\n\r\n") + 6):
        with server.connect() as connection:
            connection.sendall(whole[:start])
            answers: list[bytes] = []
            reader = threading.Thread(target=lambda c=connection, a=answers: a.append(read_all(c)))
            reader.start()
            for byte in whole[start : start + 100]:
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    break
                reader.join(0.05)
                if not reader.is_alive():
                    break
            reader.join(10)
            assert status_of(answers[0]) == 408


def test_39_a_stream_that_nobody_reads_is_ended_and_its_pages_are_freed() -> None:
    """With a buffer of a kilobyte and a socket that takes little; tokens with 20 alternatives each are large."""
    with attacked(replace(SETTINGS, send_buffer_bytes=1024)) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = {**LONG, "stream": True, "logprobs": 20, "n": 8}
        connection.sendall(http_bytes(COMPLETE, body))
        assert eventually(lambda: server.service.live)
        assert eventually(lambda: not server.service.live, 20)
        server.idle()
        assert server.service.llm.stats.output_tokens < 8 * 400
        server.check()


def test_40_idle_connections_do_not_keep_anybody_out(server: Attacked, caplog: pytest.LogCaptureFixture) -> None:
    """More of them than the server may have: the oldest go, and the log says what the limit is."""
    idle = [server.connect() for _ in range(150)]
    try:
        server.check()
        assert "ulimit -n" in caplog.text
    finally:
        for connection in idle:
            connection.close()


# -- when they leave ---------------------------------------------------------------------------------------------------


def aborted(server: Attacked) -> float:
    """Requests that were given up, as the metrics have it."""
    lines = server.get("/metrics").data.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ridgeline:aborted_total{"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETE, CHAT])
def test_41_a_client_that_leaves_while_tokens_come_frees_its_pages_within_a_step(
    server: Attacked, path: str, stream: bool
) -> None:
    before = aborted(server)
    body = {**LONG, "n": 8, "stream": stream, "messages": GREET}
    del body["messages" if path == COMPLETE else "prompt"]
    with server.connect() as connection:
        connection.sendall(http_bytes(path, body))
        assert eventually(server.pages)
        assert eventually(lambda: any(live.tokens for live in server.service.live.values()))
    assert eventually(lambda: not server.service.live)  # the server has noticed
    steps = server.service.llm.stats.steps
    assert eventually(lambda: not server.pages())
    assert server.service.llm.stats.steps <= steps + 2  # that which ran, and one that was planned meanwhile
    assert aborted(server) == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_41_a_client_that_leaves_before_anything_came(server: Attacked, stream: bool) -> None:
    """Before its body is there, and with its last byte: in the queue, or in prefill."""
    whole = http_bytes(COMPLETE, {**LONG, "prompt": [5] * 100, "stream": stream})
    for data in (whole[:-1], whole):
        for _ in range(5):
            with server.connect() as connection:
                connection.sendall(data)
        assert eventually(lambda: not (server.service.live or server.pages()))


@pytest.mark.parametrize("stream", [False, True])
def test_41_a_client_that_leaves_after_the_last_token(server: Attacked, stream: bool) -> None:
    for _ in range(5):
        with server.connect() as connection:
            connection.sendall(http_bytes(COMPLETE, {"prompt": "a", "max_tokens": 1, "stream": stream}))
            connection.recv(1)


def leave_after_first_tokens(server: Attacked, requests: int) -> None:
    """Streams that are left with their first token. Nothing is kept of them."""
    crowds.leave_after_first_tokens(server.port, requests)
    server.idle()
    assert not server.service.by_request
    assert server.service.llm.num_awaited == 0


def test_43_requests_that_are_left_after_their_first_token_leave_no_page(server: Attacked) -> None:
    leave_after_first_tokens(server, 100)


# -- too many ----------------------------------------------------------------------------------------------------------


def test_42_a_burst_of_ten_times_what_there_is_room_for() -> None:
    """Those that fit are answered whole, all others 429 with Retry-After, and nothing is left of them."""
    settings = replace(SETTINGS, connections=None, queued_requests=6)
    with attacked(settings, limits=Limits(requests=2)) as server:
        body = {**LONG, "max_tokens": 12}
        replies = crowds.at_once(80, lambda: server.post(COMPLETE, body))
        accepted = [reply for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status != 200]
        assert len(accepted) >= 8
        assert all(reply.json()["usage"]["completion_tokens"] == 12 for reply in accepted)
        assert refused
        for reply in refused:
            assert (reply.status, reply.json()["error"]["code"]) == (429, "queue_full")
            assert 1 <= int(reply.headers["retry-after"]) <= 60
        server.check()


def test_42_prompt_tokens_are_bounded_too() -> None:
    settings = replace(SETTINGS, queued_tokens=500)
    with attacked(settings, limits=Limits(requests=1)) as server:
        with ThreadPoolExecutor(20) as pool:
            replies = list(pool.map(lambda _: server.complete([5] * 200, max_tokens=4), range(12)))
        codes = {reply.json()["error"]["code"] for reply in replies if reply.status == 429}
        assert {reply.status for reply in replies} == {200, 429}
        assert codes == {"queue_tokens"} or codes == {"queue_tokens", "queue_full"}
        server.check()


@pytest.mark.parametrize("stream", [False, True])
def test_42_who_waits_too_long_for_a_turn_is_told_so(stream: bool) -> None:
    with attacked(SETTINGS, limits=Limits(requests=1)) as server:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.post, COMPLETE, LONG)
            assert eventually(lambda: any(live.tokens for live in server.service.live.values()))
            server.service.deadlines.queue = 0.02  # the first runs for longer than that, however fast the machine is
            late = server.post(COMPLETE, {**LONG, "stream": stream})
            assert (late.status, late.json()["error"]["code"]) == (503, "queue_timeout")
            assert first.result().status == 200, "the one whose turn it was is not touched"
        server.check()


@pytest.mark.parametrize("stream", [False, True])
def test_42_a_first_step_that_takes_long_is_no_waiting(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Who waits behind it does wait, and is told so; then the step ends."""
    with attacked(SETTINGS, limits=Limits(requests=1)) as server:
        engine: Engine = server.service.llm.host._loaded.engine  # type: ignore[attr-defined]
        execute, told = engine.execute, threading.Event()

        def slow(plan: StepPlan) -> Any:
            assert told.wait(30)
            return execute(plan)

        monkeypatch.setattr(engine, "execute", slow)
        server.service.deadlines.queue = 0.05
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.complete, stream=stream)
            assert eventually(lambda: any(live.begun for live in server.service.live.values()))
            late = server.complete()
            assert (late.status, late.json()["error"]["code"]) == (503, "queue_timeout")
            told.set()
            assert first.result().status == 200
        server.service.deadlines.queue = math.inf
        server.check()


def test_42_what_takes_too_long_in_all_ends_with_an_error() -> None:
    with attacked(replace(SETTINGS, total_seconds=0.1)) as server:
        reply = server.post(COMPLETE, {**LONG, "n": 8})
        assert (reply.status, reply.json()["error"]["code"]) == (504, "total_timeout")
        assert reply.headers["x-should-retry"] == "false"
        server.service.deadlines.total = math.inf
        server.check()


def test_42_a_stream_that_takes_too_long_ends_with_a_frame_that_says_so() -> None:
    """Its time is up when its first token has been told, however fast the machine is."""
    with attacked(SETTINGS) as server:
        with server.connect() as connection:
            connection.sendall(http_bytes(COMPLETE, {**LONG, "n": 8, "stream": True}, b"Connection: close"))
            received = b""
            while b"data:" not in received:
                received += connection.recv(4096)
            (live,) = server.service.live.values()
            server.service.on_loop(server.service.deadlines._end_overdue, partial(server.service.end, live))
            received += read_all(connection)
        frames = re.findall(rb"data: (\{.*)", received)
        assert json.loads(frames[-1])["error"]["code"] == "total_timeout"
        server.check()


def test_57_no_more_listeners_get_in_at_once_than_there_is_room_for(server: Attacked) -> None:
    """Also a second time: as many as before get in, and one more does not."""
    for _ in range(2):
        connections, statuses = crowds.listen(server.port, 40)
        try:
            assert sorted(statuses) == [200] * 32 + [429] * 8
            assert server.get("/v1/engine/events").status == 429
        finally:
            for connection in connections:
                connection.close()
        assert eventually(lambda: _heard_by_nobody(server))


def _heard_by_nobody(server: Attacked) -> bool:
    pool = server.service.llm.host._loaded.engine.kv_cache_manager.pool  # type: ignore[attr-defined]
    return pool.touched is None


# -- what fails behind them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_46_memory_that_runs_out_in_a_step_costs_one_request(
    server: Attacked, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The allocation fails again when the request runs by itself, so it is to blame. Another server may have room."""
    engine: Engine = server.service.llm.host._loaded.engine  # type: ignore[attr-defined]
    execute = engine.execute

    def fails(plan: StepPlan) -> Any:
        if any(item.segment.kv_len >= 300 for item in plan.items):
            raise MemoryError("tried to allocate 123 bytes at 0x7fff")
        return execute(plan)

    monkeypatch.setattr(engine, "execute", fails)
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(server.complete, "Once upon a time", max_tokens=30, ignore_eos=True)
        reply = server.complete([5] * 300, stream=stream)
        assert (reply.status, reply.json()["error"]["code"]) == (503, "out_of_memory")
        assert others.result().json()["usage"]["completion_tokens"] == 30


def _raises(plan: StepPlan) -> Any:
    raise IndexError(f"{SECRET}\n\x1b[31m <Tensor object at 0x7f00>")


def _gives_nothing(plan: StepPlan) -> list[RowFailure]:
    return [RowFailure.of(-math.inf, PROCESSED)]


@pytest.mark.parametrize(
    ("execute", "reason"), [(_raises, "IndexError"), (_gives_nothing, f"{PROCESSED} are all -inf")]
)
def test_46_a_step_that_fails_otherwise_is_500_and_not_to_be_tried_again(
    server: Attacked,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    execute: Callable[[StepPlan], Any],
    reason: str,
) -> None:
    """The log has the reason in the engine's own words, and of an exception the class alone."""
    engine: Engine = server.service.llm.host._loaded.engine  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "execute", execute)
        reply = server.complete()
    assert (reply.status, reply.json()["error"]["code"]) == (500, "failed")
    assert reply.headers["x-should-retry"] == "false"
    (said,) = [record.getMessage() for record in caplog.records if record.name == "ridgeline.server.routes.generation"]
    assert said.startswith("request cmpl-")
    assert said.endswith(f" failed in the engine: {reason}")


def test_a_bug_of_ours_in_a_route_is_500_without_its_words(
    server: Attacked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise KeyError(SECRET)

    with monkeypatch.context() as patch:
        patch.setattr("ridgeline.server.app.read_fields", fails)
        reply = server.complete()
    assert (reply.status, reply.json()["error"]["code"]) == (500, "internal")
    assert reply.headers["x-should-retry"] == "false"
    assert eventually(lambda: any(record.exc_info for record in caplog.records))
    (record,) = [record for record in caplog.records if record.exc_info]
    line = TextFormatter().format(record)
    assert "KeyError" in line
    assert "read_fields" in line
    assert SECRET not in line
