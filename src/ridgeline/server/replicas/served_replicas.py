"""The serving of a language model on several engines of a Ray cluster."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from msgspec import structs

from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_process import EngineProcess, EngineStart, load_text_processor_async
from ridgeline.engine.worker.process_handle import ProcessHandle
from ridgeline.insight.traffic.routers import ReplicaRouter
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import ServedLLM, ServingContext, build_service
from ridgeline.server.replicas.engine_fleet import EngineFleet, EngineReplica
from ridgeline.server.replicas.replica_observability import FleetMonitor
from ridgeline.server.replicas.replica_supervisor import ReplicaSupervisor, Start
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import Observability

logger = logging.getLogger("ridgeline.server")


@dataclass(frozen=True, slots=True)
class ServedReplicas:
    """A language model to serve with several replicas."""

    one: ServedLLM
    """The model and the options of a single engine."""
    count: int
    """The initial number of replicas."""
    new_place: Callable[[int], ProcessHandle]
    """The function that returns a process handle for the replica with a given number."""
    new_router: Callable[[], ReplicaRouter]
    """The function that returns a router, as in `EngineFleet`."""
    scaling: Scaling | None = None
    """The autoscaling rule, as in `ReplicaSupervisor`; None for a fixed number of replicas."""
    where: Callable[[ProcessHandle | None], str] = lambda place: ""
    """The function that describes a process handle in words."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.one.name

    async def start(self) -> "StartedReplicas":
        """Start all replicas; if one fails, stop the others.

        It raises the errors of `EngineProcess.start`.
        """
        logger.info("loading %s, replicas: %d", self.name, self.count)
        starter = await _ReplicaStarter.of(self)
        with self.one.progress_bar() as progress:
            starts = [starter.start(number, None if number else progress) for number in range(self.count)]
            started = await asyncio.gather(*(asyncio.create_task(each) for each in starts), return_exceptions=True)
        replicas = [each for each in started if isinstance(each, EngineReplica)]
        if len(replicas) < self.count:
            await asyncio.to_thread(_close, replicas)
            raise next(each for each in started if isinstance(each, BaseException))
        return StartedReplicas(EngineFleet(replicas, self.new_router), starter.start)

    @asynccontextmanager
    async def serving(self, started: "StartedReplicas", settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """Yield the application of the replicas, with their supervision and metrics, while it serves requests."""
        fleet = started.fleet
        queue = RequestQueue(fleet.info, settings)
        fleet.changed.append(lambda: queue.resize(fleet.info))
        service = build_service(fleet, queue, settings)
        watch = ReplicaSupervisor(fleet, started.start, settings.stalled_seconds, self.scaling)
        engines = FleetMonitor(service, fleet, settings, settings.models[0], lambda: watch.starting)
        observability = Observability(service, engines, settings, settings.models[0])
        watching = asyncio.create_task(watch.run())
        try:
            async with self.one.serve_engine(fleet, service, queue, observability, settings) as serving:
                yield serving
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


@dataclass(frozen=True, slots=True)
class StartedReplicas:
    """The running replicas, and the function that starts further ones. Use it with `async with`."""

    fleet: EngineFleet
    start: Start

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(_close, list(self.fleet.replicas.values()))


@dataclass(frozen=True, slots=True)
class _ReplicaStarter:
    """A factory that starts engines of one model."""

    served: ServedReplicas
    first: EngineStart
    """The message that starts the first engine."""
    texts: TextProcessor

    @classmethod
    async def of(cls, served: ServedReplicas) -> "_ReplicaStarter":
        """Return a factory for a served model; it raises the errors of `load_text_processor`."""
        first = await served.one.engine_start()
        return cls(served, first, await load_text_processor_async(first))

    async def start(self, number: int, progress: Progress | None = None) -> EngineReplica:
        """Start the replica with a number and return it ready; it raises the errors of `EngineProcess.start`."""
        served, start = self.served, structs.replace(self.first, replica=number)
        process = EngineProcess(start, self.texts, math.inf, progress, lambda: served.new_place(number))
        await process.begin()
        return EngineReplica(number, AsyncLLM(process), lambda: served.where(process.handle))


def _close(replicas: Sequence[EngineReplica]) -> None:
    for each in replicas:
        each.llm.close()
