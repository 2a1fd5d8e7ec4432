"""ServedMultiModel: a language model and pipelines behind HTTP, in one process, stepped by one thread; and
LoopedEngine, the language model's engine as that thread steps it.
"""

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
from ridgeline.server.images.image_app import ImageApi, image_routes, writes_no_text
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
    """An engine and a drawer in one loop, as health watches them. Use `async with`."""

    llm: AsyncLLM
    drawer: DiffusionEngine

    @property
    def alive(self) -> bool:
        """Whether requests are taken now."""
        return self.llm.alive and self.drawer.alive

    @property
    def heard(self) -> int:
        """Grows with each step of either."""
        return self.llm.heard + self.drawer.heard

    @property
    def awaited(self) -> int:
        """Requests that somebody waits for. While a stride of a picture is within its price, none is waited for in
        vain: a token waits for it too.
        """
        return 0 if self.drawer.on_time else self.llm.awaited + self.drawer.awaited

    @property
    def ended(self) -> Future[str]:
        """Done, with the reason, when the loop is gone."""
        return self.drawer.ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.drawer.close)


@dataclass(frozen=True, slots=True)
class ServedMultiModel:
    """What is served. language: without threads or a device of its own; pictures: with those of all models."""

    language: ServedLLM
    pictures: ServedImages

    @property
    def name(self) -> str:
        """Of the language model."""
        return self.language.name

    async def start(self) -> MultiModelEngine:
        """All of them, loaded: the pipelines, and an engine with KV memory of what they leave. Raises as
        ServedImages.start and Served.start.
        """
        return await load_in_thread(self._load)

    def _load(self, waiting: LoadCancellation) -> MultiModelEngine:
        free = available_memory()
        pipelines = self.pictures.load(waiting)
        drawn = sum(map(weight_bytes, pipelines.values()))
        loaded = self._engine(free - drawn, waiting)
        # A step of either has it while it runs: what the engine kept free for its own is room to draw in.
        room = free - drawn - loaded.kept_bytes
        threads = threads_for(drawn + loaded.weight_bytes, self.pictures.threads)
        device = self.pictures.device(threads)
        loop = ModelLoop(threads)
        return MultiModelEngine(
            AsyncLLM(LoopedEngine(loaded, device, loop, INSPECTOR)), DiffusionEngine(pipelines, device, room, loop)
        )

    def _engine(self, memory: float, waiting: LoadCancellation) -> LoadedEngine:
        """The language model, with so many bytes for all of it and for the pictures' activations."""
        language = self.language
        logger.info("loading %s", language.name)
        settings = replace(language.settings or EngineSettings(), whole_context=True, memory=memory)
        with language.bar() as shown:
            return load_engine(
                language.model, settings, dummy_weights=language.dummy_weights, progress=waiting.progress(shown)
            )

    @asynccontextmanager
    async def serving(self, models: MultiModelEngine, settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """All of them behind their routes, with what watches them."""
        llm, own = models.llm, replace(settings, models=(self.language.name,))
        names = PipelineNames({name: name for name in self.pictures.models}, others=self._writers(llm))
        drawn, picture_metrics = build_image_service(models.drawer, names, settings)
        queue = RequestQueue(llm.info, own)
        service = build_service(llm, queue, own)
        observability = observe_one_engine(service, llm, own, self.language.name)
        observability.metrics.beside.append(picture_metrics)
        drawing = {name: writes_no_text([pipeline]) for name, pipeline in models.drawer.pipelines.items()}
        model = served_model(llm, own, drawing)
        pictures, jobs = ImageApi(drawn, settings, names), VideoJobStore(drawn, settings)
        videos = VideoApi(drawn, jobs, settings, names)
        async with observability.running(), aclosing(GrammarCheck(own)) as grammars, aclosing(jobs):
            speech = self.language.speech(llm)
            app = application(
                (
                    *text_routes(service, model, own, grammars, speech),
                    *image_routes(pictures, videos),
                    *model_routes(lambda: {**text_cards(model, own), **pictures.cards()}),
                    *observability.routes(),
                    *PageData(self.language.priced(llm, own), own).routes(),
                )
            )

            def end(error: ApiError) -> None:
                service.end_all(error)
                drawn.end_all(error)

            live = ChainMap[str, object](service.live, drawn.held)  # type: ignore[arg-type]
            yield ServingContext(app, models, observability.metrics.exchanged, [queue, drawn.queue], live, end)

    def _writers(self, llm: AsyncLLM) -> dict[str, str]:
        """What is said of the language model, by its name and those of its adapters, to who asks it for a picture."""
        return dict.fromkeys((self.language.name, *llm.info.adapters), GENERATES_NO_IMAGES)


class LoopedEngine:
    """A loaded engine as AsyncLLM has one: its Host. What it says is said in the loop's thread.

    To the loop it is one party, however many requests it has: they run in one step.
    """

    def __init__(self, loaded: LoadedEngine, device: Device, loop: ModelLoop, inspector: str = "") -> None:
        """device: that steps are priced on. loop: closed with the engine. inspector: as engine.worker.process.Start."""
        self.texts = loaded.texts
        self.info = msgspec.structs.replace(loaded.info(device), threads=loop.threads)
        self._loaded, self._device, self._loop, self._inspector = loaded, loaded.joined(device), loop, inspector
        self._engine: EngineLoop
        self._tell: Callable[[FromEngine], None]

    def connect(self, tell: Callable[[FromEngine], None]) -> None:
        """As Host.connect."""
        self._tell = tell
        inspect = inspection(self._inspector, self._loaded, self._device)
        self._engine = EngineLoop(self._loaded.engine, tell, self._loaded.price, self._device, inspect)
        self._loop.join(self)

    def send(self, message: ToEngine) -> None:
        """As Host.send."""
        self._loop.ask(partial(self._engine.take, message))

    def close(self) -> None:
        """As Host.close. The loop ends, and whatever else it steps."""
        self._loop.close()

    # -- in the loop's thread: a Party ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """As Party.busy."""
        return self._loaded.engine.has_work

    def step(self) -> float:
        """As Party.step. A step that failed has no price: it ends a request, or finds out whose fault it was."""
        report = self._engine.step()
        return 0.0 if report is None or report.predicted is None else report.predicted

    def gone(self, reason: str) -> None:
        """As Party.gone."""
        self._tell(Died(reason))
