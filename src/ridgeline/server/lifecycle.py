"""The life of a server: it binds the port, loads the model, serves requests, drains and exits."""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from starlette.types import ASGIApp

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.transfer.config import KVTransfer
from ridgeline.engine.worker.engine_process import EngineProcess, EngineStart
from ridgeline.learn.page.recorder import INSPECTOR
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, speech_vocabulary
from ridgeline.price.device import Device
from ridgeline.server.admission import RequestQueue, shutting_down
from ridgeline.server.app import build_app
from ridgeline.server.errors import ApiError
from ridgeline.server.event_loop import responsive_event_loop
from ridgeline.server.http.auth import Access
from ridgeline.server.http.exchanges import ExchangeObserver, Exchanges, log_exchange
from ridgeline.server.http.health import Health, HealthSource, ReadinessGate
from ridgeline.server.http.http_server import http_server, listen, most_connections, url_of
from ridgeline.server.http.page_data import PageData
from ridgeline.server.routes.generation import engine_died
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.transcriptions import check_packages
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import EngineClient, Service
from ridgeline.server.telemetry.engine_metrics import EngineMetrics
from ridgeline.server.telemetry.observability import Observability, observe_one_engine

FLUSH_SECONDS = 1.0
"""The seconds granted to write the last frames of streams that the server ends."""

OK, DIED, INTERRUPTED = 0, 1, 130

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=AbstractAsyncContextManager[Any])


@dataclass(frozen=True, slots=True)
class ServedLLM:
    """A language model to serve with one engine, and the options to start that engine with.

    The fields that are not described here are those of `EngineStart`.
    """

    model: str
    name: str
    """The model name in responses unless the settings give one."""
    settings: EngineSettings | None = None
    dummy_weights: bool = False
    threads: int | None = None
    device: Callable[[], Device | None] | None = None
    """The function that detects the device for predictions, which takes a while; None disables predictions."""
    progress_bar: Callable[[], AbstractContextManager[Callable[[int, int], None] | None]] = nullcontext
    """The context manager that shows the progress of loading weights."""
    engine_factory: str = ""
    """The name of a function that builds the engine instead of loading a model, as in `EngineStart`; "" for none."""
    devices: int = 1
    """The number of devices for an engine that `engine_factory` builds."""
    transfer: KVTransfer | None = None
    prefill_engines: Sequence[AsyncLLM] = ()
    """Prefill engines of this server, from which its own engine fetches the KV cache of prompts."""

    async def start(self) -> AsyncLLM:
        """Start the engine in its own process, with a KV cache that holds at least one request of the whole context.

        It raises the errors of `EngineProcess.start`.
        """
        logger.info("loading %s", self.name)
        with self.progress_bar() as progress:
            return AsyncLLM(await EngineProcess.start(await self.engine_start(), progress=progress))

    async def engine_start(self) -> EngineStart:
        """Detect the device, and return what an engine's process is started with."""
        return EngineStart(
            self.model,
            replace(self.settings or EngineSettings(), whole_context=True),
            self.dummy_weights,
            self.threads,
            None if self.device is None else await asyncio.to_thread(self.device),
            inspector="" if self.engine_factory else INSPECTOR,
            maker=self.engine_factory,
            devices=self.devices,
            transfer=self.transfer,
        )

    @asynccontextmanager
    async def serving(self, llm: AsyncLLM, settings: ServerSettings) -> AsyncIterator["ServingContext"]:
        """Serve an engine: build its queue, service, observers and application, and yield them while they run."""
        queue = RequestQueue(llm.info, settings)
        service = build_service(llm, queue, settings)
        observability = observe_one_engine(service, llm, settings, settings.models[0])
        async with self.serve_engine(llm, service, queue, observability, settings) as serving:
            yield serving

    @asynccontextmanager
    async def serve_engine(
        self,
        llm: "MonitoredEngineClient",
        service: Service,
        queue: RequestQueue,
        observability: Observability,
        settings: ServerSettings,
    ) -> AsyncIterator["ServingContext"]:
        """Build the application for one engine, or for several replicas as one, and yield it while it runs."""
        self._count_computing(llm, observability, settings)
        async with observability.running(), aclosing(GrammarCheck(settings)) as grammars:
            app = build_app(
                service,
                settings,
                grammars,
                speech=self.speech(llm),
                routes=[*observability.routes(), *PageData(self.price_sources(llm, settings), settings).routes()],
            )
            yield ServingContext(app, llm, observability.metrics.exchanged, [queue], service.live, service.end_all)

    def _count_computing(self, llm: EngineClient, observability: Observability, settings: ServerSettings) -> None:
        """Add metrics of the prefill engines, numbered after the decode engines."""
        for number, engine in enumerate(self.prefill_engines, llm.info.replicas):
            metrics = EngineMetrics(engine, settings.models[0], alias=settings.metrics_alias, engine=number)
            engine.observers.append(metrics.stepped)
            observability.metrics.others.append(metrics)

    def price_sources(self, llm: EngineClient, settings: ServerSettings) -> Mapping[str, str]:
        """Return the model's source by its name, for the page's price calculator; {} if it generates no text."""
        return {} if llm.info.vectors is not None else {settings.models[0]: self.model}

    def speech(self, llm: EngineClient) -> SpeechVocabulary | None:
        """Return the vocabulary of a speech model, or None for any other model.

        Raises:
            ValueError: If the model is a speech model, but the packages that read audio uploads are not installed.
        """
        vocabulary = speech_vocabulary(self.model, llm.texts.tokenizer)
        if vocabulary is not None:
            check_packages()
        return vocabulary


class MonitoredEngineClient(EngineClient, HealthSource, Protocol):
    """The interface of an engine that both the service and the health monitor use."""


class AdmissionQueue(Protocol):
    """The interface of the queue in front of a model; while `draining` is set it admits no requests."""

    draining: bool


@dataclass(frozen=True, slots=True)
class ServingContext:
    """The running parts of a served model, or of several models behind one server."""

    app: ASGIApp
    """The ASGI application with all routes."""
    health_source: HealthSource
    """The engine that the health monitor watches."""
    on_exchange: ExchangeObserver
    """The observer of each finished HTTP request."""
    queues: Sequence[AdmissionQueue]
    """The admission queues, one per kind of request."""
    live: Mapping[str, object]
    """The requests in progress whose clients wait for a response, by id; video jobs are not among them.

    A draining server waits until there are none.
    """
    end_all: Callable[[ApiError], None]
    """The function that ends all requests in progress with an error."""

    def stop_admission(self) -> None:
        """Stop all queues from admitting requests."""
        for door in self.queues:
            door.draining = True


class Servable(Protocol[Model]):
    """The interface of a model that a server can serve, such as `ServedLLM`, `ServedImages` or `ServedMultiModel`."""

    @property
    def name(self) -> str:
        """The model name in responses unless the settings give one."""

    async def start(self) -> Model:
        """Load the model and return its running engine.

        Raises:
            ModelRefused: If the model cannot be served; a ValueError.
            ValueError: If the settings do not fit the model.
        """

    def serving(self, model: Model, settings: ServerSettings) -> AbstractAsyncContextManager[ServingContext]:
        """Yield the application of a started model while it serves requests."""


def run_server(served: Servable[Model], settings: ServerSettings, ready: Callable[[str, Model], None]) -> int:
    """Serve until a signal arrives or the model is gone for good, and return the exit code.

    The first SIGTERM or SIGINT stops admission, and gives requests in progress `drain_seconds` to finish. The second
    ends them.

    Args:
        served: The model to serve.
        settings: The settings of the server.
        ready: Called with the URL and the model once requests are accepted.

    Raises:
        ModelRefused: If the model cannot be served; a ValueError.
        ValueError: If the port is not available, or the settings do not fit the model.
    """
    return asyncio.run(serve(served, settings, ready))


async def serve(served: Servable[Model], settings: ServerSettings, ready: Callable[[str, Model], None]) -> int:
    """Serve as `run_server` does, on the running event loop of the main thread, and return the exit code."""
    settings = replace(settings, models=settings.models or (served.name,), connections=most_connections(settings))
    with listen(settings) as listener:
        server = Server(settings)
        http = http_server(server.app, settings, server.observers)
        tasks = [asyncio.create_task(http.serve([listener])), asyncio.create_task(server.health.watch())]
        try:
            with server.signals(), responsive_event_loop():
                return await server.run(served, url_of(listener), ready)
        finally:
            http.end()
            await tasks[0]
            tasks[1].cancel()


class Server:
    """A server process with its health, its application and its reaction to signals."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.health = Health(settings.stalled_seconds)
        self.readiness_gate = ReadinessGate(self.health)
        self.observers: list[ExchangeObserver] = [log_exchange] if settings.access_log else []
        self.app = with_access_control(self.readiness_gate, settings, self.observers)
        self._drain, self._abort = asyncio.Event(), asyncio.Event()

    async def run(self, served: Servable[Model], url: str, ready: Callable[[str, Model], None]) -> int:
        """Load the model, serve it until a signal or the engine's end, drain, and return the exit code."""
        loading = asyncio.create_task(served.start())
        if not await _first(loading, self._drain.wait()):
            await _cancel(loading)
            return OK
        async with await loading as model, served.serving(model, self.settings) as serving:
            self.readiness_gate.app = serving.app
            self.observers.append(serving.on_exchange)
            self.health.watched = serving.health_source
            gc.freeze()  # these objects are permanent; spare the collector from scanning them
            ready(url, model)
            return await self._until_the_end(serving)

    async def _until_the_end(self, serving: ServingContext) -> int:
        ended = asyncio.wrap_future(serving.health_source.ended)
        if await _first(ended, self._drain.wait()):
            logger.error("the engine has stopped: %s", ended.result())
            serving.stop_admission()
            await self._end(serving, engine_died())
            return DIED
        self.health.draining = True
        serving.stop_admission()
        logger.info("draining; requests still running: %d", len(serving.live))
        if not await _first(self._idle(serving), self._abort.wait(), timeout=self.settings.drain_seconds):
            logger.info("requests that the server aborted: %d", len(serving.live))
            await self._end(serving, shutting_down())
        return INTERRUPTED if self._abort.is_set() else OK

    async def _idle(self, serving: ServingContext) -> None:
        while serving.live:
            await asyncio.sleep(0.02)

    async def _end(self, serving: ServingContext, error: ApiError) -> None:
        """End all requests in progress with an error, and wait a moment until their responses are written."""
        serving.end_all(error)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle(serving), FLUSH_SECONDS)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT end the server as `run_server` describes, inside the `with` block."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """Handle a signal: the first starts draining, the second ends the remaining requests."""
        if self._drain.is_set():
            self._abort.set()
        self._drain.set()


def with_access_control(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver]) -> Exchanges:
    """Wrap an application in access control and the observation of finished requests.

    Args:
        app: The application.
        settings: The keys, origins and hosts that have access.
        observers: Called with each finished HTTP request.
    """
    return Exchanges(Access(app, settings), observers)


def build_service(llm: EngineClient, queue: RequestQueue, settings: ServerSettings) -> Service:
    """Return a service that enforces the time limits of the settings."""
    return Service(llm, queue, queue_seconds=settings.queue_seconds, total_seconds=settings.total_seconds)


async def _first(wanted: Awaitable[Any], other: Awaitable[Any], timeout: float | None = None) -> bool:
    """Wait for either awaitable and return whether the first is done; a coroutine that is not done is cancelled."""
    tasks = [asyncio.ensure_future(wanted), asyncio.ensure_future(other)]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    done = tasks[0].done()
    for task, given in zip(tasks, (wanted, other), strict=True):
        if task is not given:
            await _cancel(task)
    return done


async def _cancel(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
