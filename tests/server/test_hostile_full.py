"""Hostile inputs in the numbers of the table in docs/serving.md, which take minutes: `make slow`. In smaller numbers
they are in the other test_hostile files."""

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path

import pytest

from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.server_settings import ServerSettings
from server.attacked import Attacked, attacked
from server.attacks import COMPLETE, LONG
from server.crowds import http_bytes
from server.test_hostile_connections import SETTINGS, leave_after_first_tokens
from server.wire import eventually

pytestmark = pytest.mark.slow

GROWTH = 1.05
"""What memory may grow by that is called flat."""


def held_bytes() -> int:
    """Memory of this process, in which server and engine are, and of its children."""
    children = [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in ("self", *children)]
    return sum(pages) * resource.getpagesize()


@pytest.fixture(scope="module")
def module_server() -> Iterator[Attacked]:
    with attacked(replace(SETTINGS, header_seconds=120, idle_seconds=120, connections=None)) as server:
        yield server


@pytest.fixture
def server(module_server: Attacked) -> Iterator[Attacked]:
    yield module_server
    module_server.check()


async def follow(forms: Iterator[StructuredOutputs], grammars: GrammarCheck, engine: Engine) -> None:
    """Each form as a server does it: tried in the limited child, then followed by the engine for a token."""
    for form in forms:
        await grammars.check(form, "guided_json")
        engine.add(GenerationRequest([5], SamplingParams(max_tokens=1, structured_outputs=form)))
        (event,) = engine.step()
        assert event.error is None


def test_28_ten_thousand_schemas() -> None:
    """What keeps grammars is full after the first 2,000: from then on what comes in pushes out as much. Not over HTTP,
    where it takes minutes."""
    limit = 16 << 20
    engine = load_engine("tales", EngineSettings(kv_bytes=64 << 20, grammar_bytes=limit)).engine

    async def run() -> int:
        grammars = GrammarCheck(ServerSettings())
        forms = (StructuredOutputs(json=json.dumps({"const": f"value {i}"})) for i in range(10_000))
        try:
            await follow(islice(forms, 2_000), grammars, engine)
            before = held_bytes()
            assert engine.stats.grammar_bytes > 0.9 * limit
            await follow(forms, grammars, engine)
            assert held_bytes() < GROWTH * before
            return grammars.failures
        finally:
            await grammars.aclose()

    assert asyncio.run(run()) == 0
    assert engine.stats.grammars == 10_000
    assert engine.stats.grammar_bytes <= limit
    assert not engine.stats.held_pages


def test_40_five_thousand_idle_connections(server: Attacked) -> None:
    """Or as many as this process may have, which holds both ends."""
    most = min(5_000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 2)
    idle: list[socket.socket] = []
    try:
        for _ in range(most):
            idle.append(server.connect())
        server.check()
        assert server.chat().status == 200
        idle[0].sendall(http_bytes(COMPLETE, {"prompt": "a", "max_tokens": 1}))  # it was not closed for the others
        assert idle[0].recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in idle:
            connection.close()


def test_43_a_thousand_requests_that_are_left_after_their_first_token(server: Attacked) -> None:
    leave_after_first_tokens(server, 1_000)


def test_42_bursts_of_ten_times_what_there_is_room_for_take_no_more_memory() -> None:
    """Those that were let in finish; the second burst and those after it find the memory that the first one took."""
    settings = replace(SETTINGS, connections=None, queued_requests=16)
    with attacked(settings, limits=Limits(requests=4)) as server, ThreadPoolExecutor(200) as pool:
        body = {**LONG, "max_tokens": 12}
        held = []
        for _ in range(5):
            replies = list(pool.map(lambda _: server.post(COMPLETE, body), range(200)))
            accepted = [reply.json()["usage"]["completion_tokens"] for reply in replies if reply.status == 200]
            assert len(accepted) >= 20
            assert set(accepted) == {12}
            assert {reply.status for reply in replies} <= {200, 429}
            server.check()
            held.append(held_bytes())
        assert max(held[1:]) < GROWTH * held[0]


def test_12_four_megabytes_are_refused_untokenized_while_a_stream_goes_on(
    server: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make tokens of them would hold up the stream; what is not done takes no time, on whatever machine."""
    tokenizer, tokenized = server.service.llm.texts.tokenizer, list[int]()
    encode = tokenizer.encode

    def counted(text: str, **options: bool) -> list[int]:
        tokenized.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", counted)
    long = json.dumps({"prompt": "a" * 4_000_000}).encode()
    frames: list[bytes] = []

    def stream() -> None:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", COMPLETE, json.dumps({**LONG, "stream": True}))
        frames.extend(line[6:] for line in connection.getresponse() if line.startswith(b"data: "))
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        streamed = pool.submit(stream)
        assert eventually(server.pages)
        refused = 0
        while not streamed.done():
            assert server.post(COMPLETE, long).status == 400
            refused += 1
        streamed.result()
    assert refused > 1  # the last may have been answered after the stream's end
    assert frames[-1].strip() == b"[DONE]"
    assert json.loads(frames[-2])["choices"][0]["finish_reason"] == "length"
    assert max(tokenized) < 100
