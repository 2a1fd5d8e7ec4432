"""/v1/engine/state and /v1/engine/events: on a script, and on a server of `tales`."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import LoadedEngine
from ridgeline.engine.worker.engine_messages import EngineSnapshot, PageChange, SequenceState
from ridgeline.server.errors import ApiError
from ridgeline.server.http.event_stream import StreamOutbox
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.telemetry import live_state
from ridgeline.server.telemetry.live_state import LAG_BYTES, LiveState
from server.conftest import Everybody, Running, running
from server.scripted import SECOND, Gate, Scripted, turn
from server.wire import eventually

FRAME = 0.001


def run(script: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_state, "FRAME_SECONDS", FRAME)
    asyncio.run(asyncio.wait_for(script, 30))


def served() -> tuple[Scripted, LiveState]:
    llm = Scripted()
    service = Service(llm, Gate())  # type: ignore[arg-type]
    state = LiveState(service, service.llm)
    service.step_observers.append(state.stepped)
    return llm, state


class Client:
    """Who listens, and reads when told to."""

    def __init__(self, state: LiveState) -> None:
        self.outbox = StreamOutbox(1 << 40)
        self.task = asyncio.create_task(state._listen(self.outbox))

    async def read(self) -> list[dict[str, Any]]:
        """All that waits, once there is something."""
        data = await self.outbox.take()
        self.outbox.read(len(data))
        return [json.loads(frame.removeprefix("data: ")) for frame in data.decode().split("\n\n")[:-1]]

    async def read_to(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind."""
        while True:
            for frame in await self.read():
                if frame["type"] == kind:
                    return frame


@asynccontextmanager
async def listening(state: LiveState) -> AsyncIterator[Client]:
    client = Client(state)
    try:
        yield client
    finally:
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)


def test_steps_are_merged_into_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        async with listening(state) as client:
            (snapshot,) = await client.read()
            assert snapshot["type"] == "snapshot"
            assert snapshot["pages"] == [[0, 7, "held", 1, 16, 1, 0]]
            llm.step([(1, 0, 0, 16), (2, 0, 4, 1)], 1, 0.5, 0.25)
            llm.page_observers[0]([PageChange(0, 3, "held", 1, 0, 1), PageChange(0, 4, "held", 2, 32, 1, 3)])
            llm.step([(1, 0, 16, 1), (2, 0, 5, 1), (2, 1, 4, 1)], 2, 0.5)
            llm.page_observers[0]([PageChange(0, 3, "published", 1, 0, 1)])
            llm.step([(1, 0, 3, 9)], 3, 1, 1.5, output_tokens=3, running=2)  # preempted in between
            frame = await client.read_to("steps")
            assert (frame["step"], frame["steps"], frame["clock"]) == (3, 3, 4)
            assert frame["items"] == [[1, 0, 17, 0], [1, 3, 9, 0], [2, 4, 2, 0], [2, 4, 1, 1]]
            assert frame["pages"] == [[0, 3, "published", 1, 0, 1, 0], [0, 4, "held", 2, 32, 1, 3]]
            assert (frame["seconds"], frame["predicted"], frame["priced_seconds"]) == (2, 1.75, 1.5)
            assert (frame["counters"]["output_tokens"], frame["counters"]["running"]) == (3, 2)

    run(script(), monkeypatch)


def test_frames_say_which_requests_changed_and_which_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the snapshot said of them, which may be of before any frame."""

    async def script() -> None:
        llm, state = served()
        first, second = (SequenceState(number, 0, "prefill", SECOND, 20, 20, 0, 0, 0) for number in (1, 2))
        llm.sequences = [first, second]
        async with listening(state) as client:
            (snapshot,) = await client.read()
            assert [each["request"] for each in snapshot["requests"]] == [1, 2]
            llm.sequences = [first._replace(stage="decode", known=21, computed=20)]
            llm.step([(1, 0, 0, 20), (2, 0, 19, 1)], 1, 0.5, 0.25)
            frame = await client.read_to("steps")
            assert frame["gone"] == [[2, 0]]
            assert [(each["request"], each["known"], each["arrived"]) for each in frame["requests"]] == [(1, 21, 1)]
            (told,) = frame["recent"]
            assert (told["step"], told["positions"], told["decodes"], told["floor"]) == (1, 21, 1, 0.125)
            assert told["items"] == [[1, 0, 20, 0], [2, 19, 1, 0]]
            assert frame["priced"] == {"predicted": 0.25, "floor": 0.125, "measured": 0.5}
            llm.step([(1, 0, 20, 1)], 2, 0.5)
            frame = await client.read_to("steps")
            assert (frame["requests"], frame["gone"], frame["decodes"]) == ([], [], 1)

    run(script(), monkeypatch)


def test_nothing_is_collected_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        llm.step([(1, 0, 0, 16)], 1, 0.5)
        llm.page_observers[0]([PageChange(0, 3, "held", 1)])
        assert (llm.watched, llm.looks) == ([], 0)
        assert not state._feed.due
        assert state._service.observers == []
        async with listening(state) as first:
            await first.read()
            async with listening(state) as second:
                await second.read()
            assert llm.watched == [True]
        assert llm.watched == [True, False]
        assert state._ticking is None

    run(script(), monkeypatch)


def test_who_lags_gets_a_snapshot_instead_of_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        items = [(request, 0, 0, 1) for request in range(1000)]
        async with listening(state) as slow, listening(state) as quick:
            await asyncio.gather(slow.read(), quick.read())
            most = 0
            for step in range(40):  # about 15 kB each
                llm.step(items, step, 0.5)
                await quick.read_to("steps")
                most = max(most, slow.outbox.waiting)
            assert LAG_BYTES - 30_000 < most <= LAG_BYTES
            before = await slow.read()  # what waited has no gap
            assert [frame["step"] for frame in before] == list(range(1, len(before) + 1))
            assert len(before) < 40
            assert (await slow.read())[0]["type"] == "snapshot"
            assert llm.looks == 3  # two at first, one for the one who lagged
            llm.step(items, 41, 0.5)
            assert (await slow.read_to("steps"))["step"] == 41

    run(script(), monkeypatch)


def test_listeners_who_come_together_share_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has one at once; all who come right after it share the next."""

    async def script() -> None:
        llm, state = served()
        monkeypatch.setattr(live_state, "FRAME_SECONDS", 0.1)
        clients = [Client(state) for _ in range(20)]
        for client in clients:
            assert [frame["type"] for frame in await client.read()] == ["snapshot"]
        assert llm.looks == 2
        llm.step([(1, 0, 0, 16)], 1, 0.5)
        assert {(await client.read_to("steps"))["step"] for client in clients} == {1}
        for client in clients:
            client.task.cancel()
        await asyncio.gather(*(client.task for client in clients), return_exceptions=True)

    run(script(), monkeypatch)


def test_no_listener_gets_a_snapshot_of_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot lacks changes of pages between it and a listener who came after all others had left."""

    async def script() -> None:
        llm, state = served()
        told: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(llm, "look", lambda tell, **_: told.append(tell))
            async with listening(state):
                await turn()
        assert len(told) == 1
        with monkeypatch.context() as patch:
            patch.setattr(llm, "look", lambda tell, **_: told.append(tell))
            async with listening(state) as client:
                await turn()
                told[0](EngineSnapshot(0, llm.stats, [1], [], []))
                assert not client.outbox.waiting
                told[1](EngineSnapshot(0, llm.stats, [2], [PageChange(0, 7, "held", 1, 16, 1)], []))
                (snapshot,) = await client.read()
                assert snapshot["pages"] == [[0, 7, "held", 1, 16, 1, 0]]

    run(script(), monkeypatch)


def test_another_engine_begins_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        async with listening(state) as client:
            await client.read()
            llm.step([(1, 0, 0, 16)], 1, 0.5)
            assert (await client.read_to("steps"))["step"] == 1
            llm.stats = type(llm.stats)()
            llm.step([(1, 0, 0, 8)], 2, 0.5)
            assert [frame["type"] for frame in await client.read()] == ["snapshot"]
            llm.alive = False
        async with listening(state) as client:
            with pytest.raises(ApiError) as refused:
                await client.task
            assert refused.value.status == 503

    run(script(), monkeypatch)


def test_streams_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        async with listening(state) as client:
            await client.read()
            state.close()
            await client.task
            assert llm.watched == [True, False]

    run(script(), monkeypatch)


def test_listeners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        _, state = served()
        monkeypatch.setattr(live_state, "_LISTENERS", 1)
        async with listening(state) as client:
            await client.read()
            with pytest.raises(ApiError) as refused:
                await state.events(None)  # type: ignore[arg-type]
            assert refused.value.status == 429
        await turn()
        await state.events(None)  # type: ignore[arg-type]

    run(script(), monkeypatch)


def test_many_who_ask_for_the_state_stop_the_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        llm, state = served()
        monkeypatch.setattr(live_state, "FRAME_SECONDS", 3600)
        answers = [await state.state(None) for _ in range(3)]  # type: ignore[arg-type]
        assert llm.looks == 1
        assert len({bytes(answer.body) for answer in answers}) == 1
        monkeypatch.setattr(live_state, "FRAME_SECONDS", -1)
        await state.state(None)  # type: ignore[arg-type]
        assert llm.looks == 2
        llm.alive = False
        with pytest.raises(ApiError) as refused:
            await state.state(None)  # type: ignore[arg-type]
        assert refused.value.status == 503

    run(script(), monkeypatch)


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tales: LoadedEngine) -> Iterator[Running]:
    llm = AsyncLLM(tales)
    service = Service(llm, Everybody())
    state = LiveState(service, service.llm)
    service.step_observers.append(state.stepped)
    try:
        with running(service, ServerSettings(models=("tales",)), routes=state.routes()) as up:
            yield up
    finally:
        llm.close()


def events(connection: socket.socket) -> Generator[dict[str, Any], None, None]:
    """Frames of a chunked event stream, as they come."""
    with connection.makefile("rb") as file:
        while file.readline().strip():
            pass
        while size := int(file.readline(), 16):
            data = file.read(size)
            file.readline()
            for frame in data.decode().split("\n\n"):
                if frame.startswith("data: "):
                    yield json.loads(frame.removeprefix("data: "))


def _picture(pages: list[list[Any]]) -> dict[int, tuple[Any, ...]]:
    return {page: (group, state, *rest) for group, page, state, *rest in pages}


def test_the_state_of_a_server_and_its_events_end_in_the_same_picture(server: Running) -> None:
    pool = server.service.llm.host._loaded.engine.kv_cache_manager.pool  # type: ignore[attr-defined]
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection,
        closing(events(connection)) as stream,
    ):
        connection.sendall(b"GET /v1/engine/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = next(stream)
        assert first["type"] == "snapshot"
        assert pool.touched is not None
        answer = server.post(
            "/v1/completions",
            {"prompt": "Once upon a time there was a fox", "max_tokens": 40, "ignore_eos": True, "temperature": 0},
        ).json()
        server.idle()
        state = server.get("/v1/engine/state").json()
        picture, last = _picture(first["pages"]), _picture(state["pages"])
        ran, steps = 0, 0
        # An engine in a thread counts ahead of what is heard of its pages: the last frame may be one later.
        while steps < state["step"] - first["step"] or {p: t for p, t in picture.items() if t[1] != "free"} != last:
            frame = next(stream)  # none comes, and the connection times out, if the two never meet
            assert frame["type"] == "steps"
            steps += frame["steps"]
            ran += sum(count for _, _, count, _ in frame["items"])
            picture |= _picture(frame["pages"])
    usage = answer["usage"]
    assert ran == usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] + 40 - 1
    assert frame["counters"] == state["counters"]
    assert state["pages"], "what the prompt filled is kept"
    assert state["requests"] == []
    assert {"context", "pages", "page_size", "requests", "step_tokens", "groups"} <= state["limits"].keys()
    assert state["recent"][-1]["step"] == state["step"] - 1
    assert "fox" not in json.dumps(state)
    assert eventually(lambda: pool.touched is None), "the listener has gone"


def test_the_state_names_requests_under_way_by_their_ids(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_state, "FRAME_SECONDS", -1)  # each state is a new one
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        body = json.dumps({"prompt": "A", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        stream = events(connection)
        chunk = next(stream)
        (told,) = server.get("/v1/engine/state").json()["requests"]
        assert told["id"] == chunk["id"]
        assert told["stage"] == "decode"
        assert told["prompt"] <= told["computed"] < told["known"] < 400
        stream.close()
    server.idle()
