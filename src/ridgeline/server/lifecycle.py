"""Serving: a model, its engine's process and an HTTP server, from the first bound port to the last child."""

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
"""For the last frames of streams that were ended."""

OK, DIED, INTERRUPTED = 0, 1, 130

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=AbstractAsyncContextManager[Any])


@dataclass(frozen=True, slots=True)
class ServedLLM:
    """What is served: name, what answers call it if the settings do not say; device: what finds it, which takes a
    while, None where nothing is predicted; bar: shows how far weights are read; maker, devices: of an engine that is
    not loaded, as engine.worker.process.Start; computing: engines of this server that it asks for prompts; else as
    AsyncLLM.start has it.
    """

    model: str
    name: str
    settings: EngineSettings | None = None
    dummy_weights: bool = False
    threads: int | None = None
    device: Callable[[], Device | None] | None = None
    bar: Callable[[], AbstractContextManager[Callable[[int, int], None] | None]] = nullcontext
    maker: str = ""
    devices: int = 1
    transfer: KVTransfer | None = None
    computing: Sequence[AsyncLLM] = ()

    async def start(self) -> AsyncLLM:
        """The engine, ready in a process of its own, with room for a request of the whole context. Errors are those of
        AsyncLLM.start.
        """
        logger.info("loading %s", self.name)
        with self.bar() as progress:
            return await AsyncLLM.start(
                self.model,
                replace(self.settings or EngineSettings(), whole_context=True),
                dummy_weights=self.dummy_weights,
                threads=self.threads,
                device=None if self.device is None else await asyncio.to_thread(self.device),
                progress=progress,
                inspector="" if self.maker else INSPECTOR,
                maker=self.maker,
                devices=self.devices,
                transfer=self.transfer,
            )

    @asynccontextmanager
    async def serving(self, llm: AsyncLLM, settings: ServerSettings) -> AsyncIterator["ServingContext"]:
        """The engine behind its routes, with what watches it."""
        queue = RequestQueue(llm.info, settings)
        service = build_service(llm, queue, settings)
        observability = observe_one_engine(service, llm, settings, settings.models[0])
        async with self.behind_routes(llm, service, queue, observability, settings) as serving:
            yield serving

    @asynccontextmanager
    async def behind_routes(
        self,
        llm: "MonitoredEngineClient",
        service: Service,
        queue: RequestQueue,
        observability: Observability,
        settings: ServerSettings,
    ) -> AsyncIterator["ServingContext"]:
        """The routes of an engine, or of several as one."""
        self._count_computing(llm, observability, settings)
        async with observability.running(), aclosing(GrammarCheck(settings)) as grammars:
            app = build_app(
                service,
                settings,
                grammars,
                speech=self.speech(llm),
                routes=[*observability.routes(), *PageData(self.priced(llm, settings), settings).routes()],
            )
            yield ServingContext(app, llm, observability.metrics.exchanged, [queue], service.live, service.end_all)

    def _count_computing(self, llm: EngineClient, observability: Observability, settings: ServerSettings) -> None:
        """Metrics of the engines that compute prompts, under the numbers after those that write answers."""
        for number, engine in enumerate(self.computing, llm.info.replicas):
            metrics = EngineMetrics(engine, settings.models[0], alias=settings.metrics_alias, engine=number)
            engine.observers.append(metrics.stepped)
            observability.metrics.beside.append(metrics)

    def priced(self, llm: EngineClient, settings: ServerSettings) -> Mapping[str, str]:
        """What opens the model that the page has a price of, by its name; nothing for one that writes no text."""
        return {} if llm.info.vectors is not None else {settings.models[0]: self.model}

    def speech(self, llm: EngineClient) -> SpeechVocabulary | None:
        """What the tokens of a speech model mean, None for a model of another sort. Raises ValueError where what reads
        uploads is not installed.
        """
        vocabulary = speech_vocabulary(self.model, llm.texts.tokenizer)
        if vocabulary is not None:
            check_packages()
        return vocabulary


class MonitoredEngineClient(EngineClient, HealthSource, Protocol):
    """What completes prompts, as health watches it."""


class AdmissionQueue(Protocol):
    """The queue before a model. draining: nobody is let in any more."""

    draining: bool


@dataclass(frozen=True, slots=True)
class ServingContext:
    """A model that takes requests, or several. app: the routes. watched: what runs. exchanged: told of each HTTP
    request that is over. doors: before each sort of them. live: the requests under way, by their ids. end: has them end
    with an error.
    """

    app: ASGIApp
    watched: HealthSource
    exchanged: ExchangeObserver
    doors: Sequence[AdmissionQueue]
    live: Mapping[str, object]
    end: Callable[[ApiError], None]

    def stop_admission(self) -> None:
        """Nobody is let in any more."""
        for door in self.doors:
            door.draining = True


class Servable(Protocol[Model]):
    """What can be served: `ServedLLM`, `ServedImages`, or both as `ServedMultiModel`."""

    @property
    def name(self) -> str:
        """What answers call it if the settings do not say."""

    async def start(self) -> Model:
        """The model, ready. Raises ValueError, ModelRefused (one of those) where it cannot be served."""

    def serving(self, model: Model, settings: ServerSettings) -> AbstractAsyncContextManager[ServingContext]:
        """The model behind its routes."""


def run_server(served: Servable[Model], settings: ServerSettings, ready: Callable[[str, Model], None]) -> int:
    """Serve until a signal comes or the model is gone for good; the exit code. ready: told the URL and the model when
    requests are taken.

    The first SIGTERM or SIGINT: no new requests; those under way have `drain_seconds` to finish. The second ends them.
    Raises ValueError where the port cannot be had, ModelRefused (a ValueError) where the model cannot be served.
    """
    return asyncio.run(serve(served, settings, ready))


async def serve(served: Servable[Model], settings: ServerSettings, ready: Callable[[str, Model], None]) -> int:
    """As `run_server`, on an event loop of the main thread."""
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
    """A model that is served, and how that ends."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.health = Health(settings.stalled_seconds)
        self.front = ReadinessGate(self.health)
        self.observers: list[ExchangeObserver] = [log_exchange] if settings.access_log else []
        self.app = guarded(self.front, settings, self.observers)
        self._drain, self._abort = asyncio.Event(), asyncio.Event()

    async def run(self, served: Servable[Model], url: str, ready: Callable[[str, Model], None]) -> int:
        """Load, serve, drain. The exit code."""
        loading = asyncio.create_task(served.start())
        if not await _first(loading, self._drain.wait()):
            await _cancel(loading)
            return OK
        async with await loading as model, served.serving(model, self.settings) as serving:
            self.front.app = serving.app
            self.observers.append(serving.exchanged)
            self.health.watched = serving.watched
            gc.freeze()  # what is there by now stays; the collector need not go over it again and again
            ready(url, model)
            return await self._until_the_end(serving)

    async def _until_the_end(self, serving: ServingContext) -> int:
        ended = asyncio.wrap_future(serving.watched.ended)
        if await _first(ended, self._drain.wait()):
            logger.error("the engine is gone: %s", ended.result())
            serving.stop_admission()
            await self._end(serving, engine_died())
            return DIED
        self.health.draining = True
        serving.stop_admission()
        logger.info("draining; requests under way: %d", len(serving.live))
        if not await _first(self._idle(serving), self._abort.wait(), timeout=self.settings.drain_seconds):
            logger.info("requests ended by the server: %d", len(serving.live))
            await self._end(serving, shutting_down())
        return INTERRUPTED if self._abort.is_set() else OK

    async def _idle(self, serving: ServingContext) -> None:
        while serving.live:
            await asyncio.sleep(0.02)

    async def _end(self, serving: ServingContext, error: ApiError) -> None:
        """Tell all that are under way why they end, and let them say it."""
        serving.end(error)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle(serving), FLUSH_SECONDS)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While inside, SIGTERM and SIGINT end the server as `run_server` says."""
        loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """A signal has come."""
        if self._drain.is_set():
            self._abort.set()
        self._drain.set()


def guarded(app: ASGIApp, settings: ServerSettings, observers: Sequence[ExchangeObserver]) -> Exchanges:
    """An application behind all that a request meets before it. observers: told of each request that is over."""
    return Exchanges(Access(app, settings), observers)


def build_service(llm: EngineClient, queue: RequestQueue, settings: ServerSettings) -> Service:
    """A service that holds requests to the limits of time."""
    return Service(llm, queue, queue_seconds=settings.queue_seconds, total_seconds=settings.total_seconds)


async def _first(wanted: Awaitable[Any], other: Awaitable[Any], timeout: float | None = None) -> bool:
    """Wait for either; whether the first is done. What is given as a coroutine and is not done is cancelled."""
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
