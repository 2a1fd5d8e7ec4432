"""A language model together with image and video pipelines in one process, whose steps one thread runs."""

import asyncio
import logging
from collections import ChainMap
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import msgspec

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.worker.engine_messages import Died, FromEngine, ToEngine
from ridgeline.engine.worker.inspector import inspection
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.learn.page.recorder import INSPECTOR
from ridgeline.price.device import Device
from ridgeline.server.admission import RequestQueue
from ridgeline.server.app import GENERATES_NO_IMAGES, application, model_routes, text_cards, text_routes
from ridgeline.server.background_loading import LoadCancellation, load_in_thread
from ridgeline.server.errors import ApiError
from ridgeline.server.http.page_data import PageData
from ridgeline.server.images.diffusion_engine import DiffusionEngine
from ridgeline.server.images.image_app import ImageApi, image_routes, no_text_message
from ridgeline.server.images.pipeline_names import PipelineNames
from ridgeline.server.images.served_images import ServedImages, build_image_service, weight_bytes
from ridgeline.server.images.video_job_store import VideoJobStore
from ridgeline.server.images.video_routes import VideoApi
from ridgeline.server.lifecycle import ServedLLM, ServingContext, build_service
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.served_model import served_model
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import observe_one_engine
from ridgeline.util.host import available_memory, threads_for

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MultiModelEngine:
    """A language-model engine and a diffusion engine that share one loop, as the health monitor sees them.

    Use it with `async with`.
    """

    llm: AsyncLLM
    diffusion_engine: DiffusionEngine

    @property
    def alive(self) -> bool:
        """Whether both engines accept requests."""
        return self.llm.alive and self.diffusion_engine.alive

    @property
    def messages_received(self) -> int:
        """A counter that grows with each step of either engine."""
        return self.llm.messages_received + self.diffusion_engine.messages_received

    @property
    def num_awaited(self) -> int:
        """The number of unfinished requests of both engines; 0 while the latest diffusion work unit is on time.

        Text requests wait for that unit too, so they do not count as stalled.
        """
        return 0 if self.diffusion_engine.on_time else self.llm.num_awaited + self.diffusion_engine.num_awaited

    @property
    def ended(self) -> Future[str]:
        """A future that completes with the reason when the loop has ended."""
        return self.diffusion_engine.ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.diffusion_engine.close)


@dataclass(frozen=True, slots=True)
class ServedMultiModel:
    """A language model and pipelines to serve from one process."""

    language: ServedLLM
    """The language model, without threads or a device of its own."""
    pipelines: ServedImages
    """The pipelines, with the threads and the device for all models."""

    @property
    def name(self) -> str:
        """The name of the language model."""
        return self.language.name

    async def start(self) -> MultiModelEngine:
        """Load the pipelines, then the language model with a KV cache that fits into the remaining memory.

        It raises the errors of `ServedImages.start` and `ServedLLM.start`.
        """
        return await load_in_thread(self._load)

    def _load(self, waiting: LoadCancellation) -> MultiModelEngine:
        free = available_memory()
        pipelines = self.pipelines.load(waiting)
        pipeline_bytes = sum(map(weight_bytes, pipelines.values()))
        loaded = self._engine(free - pipeline_bytes, waiting)
        # Only one model runs at a time, so the memory reserved for the engine's activations also serves the pipelines.
        room = free - pipeline_bytes - loaded.resident_bytes
        threads = threads_for(pipeline_bytes + loaded.weight_bytes, self.pipelines.threads)
        device = self.pipelines.device(threads)
        loop = ModelLoop(threads)
        return MultiModelEngine(
            AsyncLLM(LoopedEngine(loaded, device, loop, INSPECTOR)), DiffusionEngine(pipelines, device, room, loop)
        )

    def _engine(self, memory: float, waiting: LoadCancellation) -> LoadedEngine:
        """Load the language model within `memory` bytes, which also have to hold the activations of the pipelines."""
        language = self.language
        logger.info("loading %s", language.name)
        settings = replace(language.settings or EngineSettings(), whole_context=True, memory=memory)
        with language.progress_bar() as shown:
            return load_engine(
                language.model, settings, dummy_weights=language.dummy_weights, progress=waiting.progress(shown)
            )

    @asynccontextmanager
    async def serving(self, models: MultiModelEngine, settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """Yield the application of all models, with its metrics, while it serves requests."""
        llm, own = models.llm, replace(settings, models=(self.language.name,))
        names = PipelineNames({name: name for name in self.pipelines.models}, others=self._writers(llm))
        image_service, image_metrics = build_image_service(models.diffusion_engine, names, settings)
        queue = RequestQueue(llm.info, own)
        service = build_service(llm, queue, own)
        observability = observe_one_engine(service, llm, own, self.language.name)
        observability.metrics.others.append(image_metrics)
        no_text = {name: no_text_message([pipeline]) for name, pipeline in models.diffusion_engine.pipelines.items()}
        model = served_model(llm, own, no_text)
        images, jobs = ImageApi(image_service, settings, names), VideoJobStore(image_service, settings)
        videos = VideoApi(image_service, jobs, settings, names)
        async with observability.running(), aclosing(GrammarCheck(own)) as grammars, aclosing(jobs):
            speech = self.language.speech(llm)
            app = application(
                (
                    *text_routes(service, model, own, grammars, speech),
                    *image_routes(images, videos),
                    *model_routes(lambda: {**text_cards(model, own), **images.cards()}),
                    *observability.routes(),
                    *PageData(self.language.price_sources(llm, own), own).routes(),
                )
            )

            def end(error: ApiError) -> None:
                service.end_all(error)
                image_service.end_all(error)

            live = ChainMap[str, object](service.live, image_service.held)  # type: ignore[arg-type]
            yield ServingContext(app, models, observability.metrics.exchanged, [queue, image_service.queue], live, end)

    def _writers(self, llm: AsyncLLM) -> dict[str, str]:
        """Return the error text for image requests to the language model, by its name and those of its adapters."""
        return dict.fromkeys((self.language.name, *llm.info.adapters), GENERATES_NO_IMAGES)


class LoopedEngine:
    """A language-model engine that runs in a `ModelLoop`; the `EngineHost` of an `AsyncLLM`.

    It is one participant of the loop, however many requests it has, because they all run in one step. Its messages are
    sent from the loop's thread.
    """

    def __init__(self, loaded: LoadedEngine, device: Device, loop: ModelLoop, inspector: str = "") -> None:
        """Wrap a loaded engine, which starts with `connect`.

        Args:
            loaded: The engine.
            device: The device that predicts the time of steps.
            loop: The loop that runs the steps; closed together with this engine.
            inspector: The name of an inspector, as in `EngineStart`; "" for none.
        """
        self.texts = loaded.text_processor
        self.info = msgspec.structs.replace(loaded.info(device), threads=loop.threads)
        self._loaded, self._device = loaded, loaded.with_interconnect(device)
        self._loop, self._inspector = loop, inspector
        self._engine: EngineLoop
        self._send_event: Callable[[FromEngine], None]

    def connect(self, send: Callable[[FromEngine], None]) -> None:
        """Start the engine: join the loop and send the engine's messages to `send`."""
        self._send_event = send
        inspect = inspection(self._inspector, self._loaded, self._device)
        self._engine = EngineLoop(self._loaded.engine, send, self._loaded.price, self._device, inspect)
        self._loop.join(self)

    def send(self, message: ToEngine) -> None:
        """Deliver a message to the engine before its next step."""
        self._loop.call_soon(partial(self._engine.take, message))

    def close(self) -> None:
        """End the loop, and with it every other model that it runs."""
        self._loop.close()

    # -- in the loop's thread: Participant -----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the engine has requests to run."""
        return self._loaded.engine.has_work

    def step(self) -> float:
        """Run one engine step and return its predicted seconds; 0 if it has no prediction.

        A failed step has none, because it only ends a request or isolates the one at fault.
        """
        report = self._engine.step()
        return 0.0 if report is None or report.predicted is None else report.predicted

    def on_loop_end(self, reason: str) -> None:
        """Report the end of the loop to `AsyncLLM` as the engine's death."""
        self._send_event(Died(reason))
