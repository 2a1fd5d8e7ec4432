"""A server of several replicas here, each engine in a process of its own: what Ray would place, without it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.worker.engine_process import EngineProcess
from ridgeline.engine.worker.process_handle import ChildProcess, NewLine, ProcessHandle
from ridgeline.insight.traffic.routers import router_named
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.server.http.http_server import http_server, listen, url_of
from ridgeline.server.lifecycle import ServedLLM, Server
from ridgeline.server.replicas.engine_fleet import EngineFleet, EngineReplica
from ridgeline.server.replicas.replica_supervisor import ReplicaSupervisor
from ridgeline.server.replicas.served_replicas import ServedReplicas, StartedReplicas
from ridgeline.server.server_settings import ServerSettings

SETTINGS = ServerSettings(models=("tales",), access_log=False, stalled_seconds=30.0, connections=1000)
ENGINE = EngineSettings(kv_bytes=64 << 20, limits=Limits(requests=4))


class Held(ChildProcess):
    """One that is started when it may."""

    def __init__(self, may: asyncio.Event) -> None:
        super().__init__()
        self._may = may

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        await self._may.wait()
        await super().begin(line, connected)


def where(place: ProcessHandle | None) -> str:
    assert isinstance(place, ChildProcess)
    return f"process {place.pid}"


@dataclass
class Stream:
    """What a client has heard of a streamed completion."""

    text: str = ""
    error: str | None = None
    finish: str | None = None
    first: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Running:
    """The server, and a client of it. may_start: engines are started while it is set."""

    url: str
    fleet: EngineFleet
    watches: list[ReplicaSupervisor]
    http: aiohttp.ClientSession
    may_start: asyncio.Event

    async def complete(self, prompt: str, tokens: int, **fields: Any) -> Any:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
        async with self.http.post(f"{self.url}/v1/completions", json=body) as response:
            return await response.json()

    async def stream(self, prompt: str, tokens: int, heard: Stream) -> Stream:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        async with self.http.post(f"{self.url}/v1/completions", json=body) as response:
            if response.status != 200:
                heard.error = (await response.json())["error"]["code"]
                return heard
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if not data or data == b"[DONE]":
                    continue
                told = json.loads(data)
                if "error" in told:
                    heard.error = told["error"]["code"]
                    continue
                choice = told["choices"][0]
                heard.text += choice["text"]
                heard.finish = choice["finish_reason"] or heard.finish
                heard.first.set()
        return heard

    async def get(self, path: str) -> Any:
        async with self.http.get(self.url + path) as response:
            return await (response.json() if "json" in response.content_type else response.text())

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels."""
        found = 0.0
        for line in (await self.get("/metrics")).splitlines():
            if line.startswith(f"ridgeline:{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                found += float(line.rsplit(" ", 1)[1])
        return found

    async def until(self, ready: int) -> None:
        """So many replicas take requests, and no others are there."""
        while [each.state for each in self.fleet.replicas.values()] != ["ready"] * ready:
            await asyncio.sleep(0.02)


def process_of(replica: EngineReplica) -> int:
    """The process that a replica's engine runs in."""
    assert isinstance(replica.llm.host, EngineProcess)
    assert isinstance(replica.llm.host.handle, ChildProcess)
    return replica.llm.host.handle.pid


def kill(replica: EngineReplica, number: int = signal.SIGKILL) -> None:
    os.kill(process_of(replica), number)


@asynccontextmanager
async def served(
    count: int,
    router: str = "least",
    settings: ServerSettings = SETTINGS,
    engine: EngineSettings = ENGINE,
    scaling: Scaling | None = None,
) -> AsyncIterator[Running]:
    """All that `ridgeline serve --replicas` has, but Ray."""
    may_start = asyncio.Event()
    may_start.set()
    one = ServedLLM("tales", "tales", engine, threads=1)
    replicas = ServedReplicas(
        one, count, lambda number: Held(may_start), lambda: router_named(router, 0), scaling, where
    )
    watches = list[ReplicaSupervisor]()
    kept = ReplicaSupervisor.__init__

    def noted(watch: ReplicaSupervisor, *arguments: Any, **more: Any) -> None:
        kept(watch, *arguments, **more)
        watches.append(watch)

    ReplicaSupervisor.__init__ = noted  # type: ignore[method-assign]
    ready: asyncio.Future[StartedReplicas] = asyncio.get_running_loop().create_future()
    try:
        with listen(settings) as listener:
            server = Server(settings)
            http = http_server(server.app, settings, server.observers)
            serving = asyncio.create_task(http.serve([listener]))
            running = asyncio.create_task(
                server.run(replicas, url_of(listener), lambda url, started: ready.set_result(started))
            )
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
                await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                yield Running(url_of(listener), (await ready).fleet, watches, client, may_start)
            server.interrupt()
            await running
            http.end()
            await serving
    finally:
        ReplicaSupervisor.__init__ = kept  # type: ignore[method-assign]
