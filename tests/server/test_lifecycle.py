"""How a server begins and ends: in this process, on real sockets and real signals, with an engine in a thread."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from ridgeline.core.models import ModelRefused
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.worker.engine_messages import Died
from ridgeline.server.http.health import Health
from ridgeline.server.lifecycle import ServedLLM, serve
from ridgeline.server.server_settings import ServerSettings

SETTINGS = ServerSettings(port=0, drain_seconds=20.0)
LONG = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}
SHORT = {"prompt": "Once", "max_tokens": 1}


@pytest.fixture(scope="module")
def tales() -> LoadedEngine:
    """Of our own: the session's has a thread."""
    return load_engine("tales")


@dataclass(frozen=True, slots=True)
class InThread(ServedLLM):
    """`tales` in a thread of this process. gate: loading lasts until it is set."""

    loaded: LoadedEngine | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Exception | None = None

    async def start(self) -> AsyncLLM:
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        assert self.loaded is not None
        return AsyncLLM(self.loaded)


@dataclass
class Up:
    """A server that serves, and a client's session with it."""

    session: aiohttp.ClientSession
    url: str
    llm: AsyncLLM
    ended: "asyncio.Task[int]"

    async def health(self, path: str = "/health") -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, (await response.json())["status"]

    async def post(self, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.session.post(self.url + "/v1/completions", json=body) as response:
            return response.status, await response.json()

    async def stream(self, begun: asyncio.Event, body: dict[str, Any] = LONG) -> list[Any]:
        """The frames of a stream; `begun` is set with the first."""
        frames = []
        async with self.session.post(self.url + "/v1/completions", json=body) as response:
            assert response.status == 200
            async for line in response.content:
                if line.startswith(b"data: {"):
                    frames.append(json.loads(line[6:]))
                    begun.set()
        return frames


def lives(
    tales: LoadedEngine, scenario: Callable[[Up], Coroutine[Any, Any, None]], settings: ServerSettings = SETTINGS
) -> int:
    """Run a server through a scenario, which ends it; the exit code."""

    async def run() -> int:
        served = InThread("tales", "tales", loaded=tales)
        served.gate.set()
        is_up: asyncio.Future[tuple[str, AsyncLLM]] = asyncio.get_running_loop().create_future()
        ended = asyncio.create_task(serve(served, settings, lambda url, llm: is_up.set_result((url, llm))))
        await asyncio.wait((is_up, ended), return_when=asyncio.FIRST_COMPLETED)
        async with aiohttp.ClientSession() as session:
            await scenario(Up(session, *is_up.result(), ended))
            return await asyncio.wait_for(ended, 30)

    return asyncio.run(run())


def interrupt(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def idle(llm: AsyncLLM) -> bool:
    return not (llm.stats.running or llm.stats.waiting or llm.stats.held_pages)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_nothing_new_begin(tales: LoadedEngine, number: int) -> None:
    async def scenario(up: Up) -> None:
        begun = asyncio.Event()
        stream = asyncio.create_task(up.stream(begun, {**LONG, "max_tokens": 400, "n": 8}))
        await begun.wait()
        assert await up.health() == (200, "ready")
        interrupt(number)
        while (await up.health("/health/ready"))[1] == "ready":
            pass
        if not stream.done():  # else the machine was too fast to see it
            assert await up.health("/health/ready") == (503, "draining")
            assert await up.health("/health/live") == (200, "draining")
            status, error = await up.post(SHORT)
            assert (status, error["error"]["code"]) == (503, "shutting_down")
        frames = await stream
        assert frames[-1]["choices"][0]["finish_reason"] == "length"

    assert lives(tales, scenario) == 0


def test_what_does_not_finish_in_time_is_told_why(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        begun = asyncio.Event()
        stream = asyncio.create_task(up.stream(begun, {**LONG, "n": 8}))
        await begun.wait()
        interrupt()
        assert (await stream)[-1]["error"]["code"] == "shutting_down"

    assert lives(tales, scenario, ServerSettings(port=0, drain_seconds=0.01)) == 0


def test_the_second_signal_ends_everything_at_once(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        begun = asyncio.Event()
        stream = asyncio.create_task(up.stream(begun, {**LONG, "n": 8}))
        await begun.wait()
        interrupt()
        await asyncio.sleep(0)
        interrupt(signal.SIGINT)
        assert (await stream)[-1]["error"]["code"] == "shutting_down"

    assert lives(tales, scenario, ServerSettings(port=0, drain_seconds=600.0)) == 130


def test_a_server_with_nothing_to_do_ends_at_once_though_clients_keep_connections(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        for _ in range(3):
            assert (await up.post(SHORT))[0] == 200
        interrupt()
        assert await asyncio.wait_for(up.ended, 5) == 0

    assert lives(tales, scenario) == 0


def test_an_engine_that_is_gone_for_good_ends_the_server_with_1(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        begun = asyncio.Event()
        stream = asyncio.create_task(up.stream(begun))
        await begun.wait()
        up.llm._receive(Died("killed by the test"))
        assert (await stream)[-1]["error"]["code"] == "engine_died"

    assert lives(tales, scenario) == 1


def test_an_engine_that_is_started_again_is_not_ready_until_it_is(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        up.llm.alive = False
        assert await up.health("/health/ready") == (503, "restarting")
        assert await up.health("/health/live") == (200, "restarting")
        async with up.session.post(up.url + "/v1/completions", json=SHORT) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (503, "engine_restarting")
            assert error["message"] == "the engine is restarting"
            assert int(response.headers["Retry-After"]) > 0
        up.llm.alive = True
        assert (await up.post(SHORT))[0] == 200
        interrupt()

    assert lives(tales, scenario) == 0


def test_while_the_model_loads_only_health_is_told(tales: LoadedEngine) -> None:
    async def run() -> None:
        served, url = InThread("tales", "tales", loaded=tales), asyncio.get_running_loop().create_future()
        port = _free_port()
        ended = asyncio.create_task(serve(served, ServerSettings(port=port), lambda given, _: url.set_result(given)))
        async with aiohttp.ClientSession() as session:
            up = Up(session, f"http://127.0.0.1:{port}", None, ended)  # type: ignore[arg-type]
            while True:
                try:
                    assert await up.health() == (503, "loading")
                    break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.01)
            assert await up.health("/health/live") == (200, "loading")
            status, error = await up.post(SHORT)
            assert (status, error["error"]["code"]) == (503, "loading")
            served.gate.set()
            assert await url == up.url
            assert await up.health() == (200, "ready")
            interrupt()
            assert await asyncio.wait_for(ended, 10) == 0

    asyncio.run(run())


def test_a_model_that_is_refused_is_the_callers_to_tell(tales: LoadedEngine) -> None:
    async def run() -> int:
        served = InThread("x", "x", refusal=ModelRefused("no such model"))
        served.gate.set()
        return await serve(served, SETTINGS, lambda url, llm: None)

    with pytest.raises(ModelRefused, match="no such model"):
        asyncio.run(run())


def test_a_signal_while_the_model_loads_ends_it(tales: LoadedEngine) -> None:
    async def run() -> int:
        asyncio.get_running_loop().call_later(0.2, interrupt)
        return await serve(InThread("tales", "tales", loaded=tales), SETTINGS, lambda url, llm: None)

    assert asyncio.run(run()) == 0


def test_a_port_that_is_taken_is_refused_in_one_line(tales: LoadedEngine) -> None:
    async def scenario(up: Up) -> None:
        taken = ServerSettings(port=int(up.url.rsplit(":", 1)[1]))
        with pytest.raises(ValueError, match="--port") as refused:
            await serve(InThread("tales", "tales", loaded=tales), taken, lambda url, llm: None)
        assert "\n" not in str(refused.value)
        interrupt()

    assert lives(tales, scenario) == 0


class Engine:
    """As much of an AsyncLLM as health looks at."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.Future(loop=asyncio.new_event_loop())
        self.alive, self.num_awaited, self.messages_received = True, 0, 0


def test_an_engine_that_does_not_move_though_it_has_work_makes_liveness_red(caplog: pytest.LogCaptureFixture) -> None:
    health, engine = Health(3.0), Engine()
    health.watched = engine  # type: ignore[assignment]
    for _ in range(10):  # idle
        health.look(1.0)
    assert health.answer("/health/live").status_code == 200
    engine.num_awaited = 1
    for _ in range(10):  # it works
        engine.messages_received += 1
        health.look(1.0)
    assert health.state == "ready"
    for _ in range(2):
        health.look(1.0)
    assert health.state == "ready"
    health.look(1.0)
    assert health.state == "stalled"
    assert [health.answer(path).status_code for path in ("/health", "/health/live", "/health/ready")] == [503] * 3
    engine.messages_received += 1
    health.look(1.0)
    assert health.answer("/health/live").status_code == 200
    for engine.alive in (False, False, True, True):
        health.look(1.0)
    assert [record.message for record in caplog.records] == [
        "the engine's process died and is restarting",
        "the engine is running again",
    ]
    engine.ended.set_result("gone")
    assert health.answer("/health/live").status_code == 503


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
