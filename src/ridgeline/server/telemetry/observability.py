"""The observability of a service: metrics, traces, live state, throughput log and traffic recorder."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.server.errors import ApiError
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.telemetry.engine_metrics import EngineMetrics
from ridgeline.server.telemetry.live_state import LiveState
from ridgeline.server.telemetry.throughput import ThroughputLog
from ridgeline.server.telemetry.traces import Traces
from ridgeline.server.telemetry.traffic_recorder import TrafficRecorder
from ridgeline.server.telemetry.transfers import TransferLog

LINE_SECONDS = 10.0


class EngineMonitor(Protocol):
    """The interface of a monitor of a service's engines: `SingleEngineMonitor`, or `FleetMonitor` for replicas.

    `metrics` are those that also count HTTP requests.
    """

    metrics: EngineMetrics

    def begin(self) -> None:
        """Start monitoring, because the server accepts requests from now on."""

    def say(self, seconds: float) -> None:
        """Log the throughput of the last `seconds`."""

    def close(self) -> None:
        """End the event streams, because the server ends."""

    def routes(self) -> list[Route]:
        """Return the routes that show the state of the engines."""


class SingleEngineMonitor:
    """The monitor of a service's only engine."""

    def __init__(self, service: Service, llm: AsyncLLM, settings: ServerSettings, model: str) -> None:
        self.metrics = EngineMetrics(llm, model, alias=settings.metrics_alias)
        self._throughput, self._live_state = ThroughputLog(llm, priced=bool(settings.priced)), LiveState(service, llm)
        self._llm, self._transfers = llm, TransferLog(self.metrics)
        service.observers += [self.metrics, self._throughput]
        service.step_observers += [self._live_state.stepped, self.metrics.stepped, self._throughput.stepped]
        self.say = self._throughput.say
        self.close, self.routes = self._live_state.close, self._live_state.routes

    def begin(self) -> None:
        """Log the engine's capacity, and observe its KV transfers."""
        self._throughput.begin()
        self._transfers.follow(self._llm)


def observe_one_engine(service: Service, llm: AsyncLLM, settings: ServerSettings, model: str) -> "Observability":
    """Return the observability of a service with one engine; `model` is the model name in responses."""
    return Observability(service, SingleEngineMonitor(service, llm, settings, model), settings, model)


class Observability:
    """The observability of a service; the application includes its `routes` and runs inside `running`.

    Raises:
        ValueError: If the recording cannot be written.
    """

    def __init__(self, service: Service, engines: EngineMonitor, settings: ServerSettings, model: str) -> None:
        """Add the observers to a service.

        Args:
            service: The service.
            engines: The monitor of its engines.
            settings: The settings of the server.
            model: The model name in responses.
        """
        self._engines, self.metrics = engines, engines.metrics
        self.traces = Traces(service, settings.trace_bytes)
        self.recorder: TrafficRecorder | None = None
        observers: list[Traces | TrafficRecorder] = [self.traces]
        if settings.record:
            self.recorder = TrafficRecorder(Path(settings.record), service.llm.info, model, time.perf_counter_ns())
            observers.append(self.recorder)
        service.observers += observers
        service.step_observers += [observer.stepped for observer in observers]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Monitor the service inside the `with` block, and close the recording at its end.

        Every ten seconds it logs the throughput; every second it measures the delay of the event loop.
        """
        self._engines.begin()
        tasks = [asyncio.create_task(self._say()), asyncio.create_task(self.metrics.watch_loop())]
        try:
            yield
        finally:
            self._engines.close()
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            if self.recorder is not None:
                await asyncio.to_thread(self.recorder.close)

    def routes(self) -> list[Route]:
        """Return the routes /metrics and /v1/trace/{id}, and those of the engine monitor."""
        return [
            *self._engines.routes(),
            self.metrics.route(),
            Route("/v1/trace/{id}", self._trace, methods=["GET"]),
        ]

    async def _trace(self, request: Request) -> Response:
        found = self.traces.find(request.path_params["id"])
        if found is None:
            raise ApiError(
                404,
                "no trace of this request: the id is wrong, or the trace was dropped; give the id of a recent response",
                code="not_found",
            )
        return JSONResponse(found)

    async def _say(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(LINE_SECONDS)
            now = time.perf_counter()
            self._engines.say(now - before)
            before = now
