"""ServedImages: pipelines behind HTTP, loaded one after the other and stepped by one thread."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.device import Device
from ridgeline.server.background_loading import LoadCancellation, load_in_thread
from ridgeline.server.http.page_data import PageData
from ridgeline.server.images.diffusion_engine import DiffusionEngine
from ridgeline.server.images.image_app import build_image_app
from ridgeline.server.images.image_service import ImageQueue, ImageService
from ridgeline.server.images.pipeline_names import PipelineNames
from ridgeline.server.images.video_job_store import VideoJobStore
from ridgeline.server.lifecycle import ServingContext
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.image_metrics import ImageMetrics
from ridgeline.util.host import available_memory, threads_for

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedImages:
    """What is served. models: folders of pipelines, by their names. device: what strides are priced on, for so many
    threads. threads: None for as many as suit the weights. bar: shows how far the weights of a name are read.
    """

    models: Mapping[str, str]
    device: Callable[[int], Device]
    threads: int | None = None
    bar: Bar = lambda _: nullcontext()

    @property
    def name(self) -> str:
        """Of the first of them."""
        return next(iter(self.models))

    async def start(self) -> DiffusionEngine:
        """All of them, loaded. Raises ModelRefused as `load_pipeline`."""
        return await load_in_thread(self._drawer)

    def _drawer(self, waiting: LoadCancellation) -> DiffusionEngine:
        free = available_memory()
        pipelines = self.load(waiting)
        weights = sum(map(weight_bytes, pipelines.values()))
        threads = threads_for(weights, self.threads)
        return DiffusionEngine(pipelines, self.device(threads), free - weights, ModelLoop(threads))

    def load(self, waiting: LoadCancellation) -> dict[str, Pipeline]:
        """The pipelines by their names. Raises ModelRefused as `load_pipeline`."""
        pipelines = {}
        for name, folder in self.models.items():
            logger.info("loading %s", name)
            with self.bar(name) as shown:
                pipelines[name] = load_pipeline(folder, threads=self.threads, progress=waiting.progress(shown))
        return pipelines

    @asynccontextmanager
    async def serving(self, drawer: DiffusionEngine, settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """The pipelines behind their routes, with what counts their requests."""
        names = names_of(self.models, settings)
        service, metrics = build_image_service(drawer, names, settings)
        jobs = VideoJobStore(service, settings)
        app = build_image_app(
            service, jobs, settings, names, routes=[metrics.route(), *PageData({}, settings).routes()]
        )
        lag = asyncio.create_task(metrics.watch_loop())
        try:
            yield ServingContext(app, drawer, metrics.exchanged, [service.queue], service.held, service.end_all)
        finally:
            lag.cancel()
            await jobs.aclose()


def names_of(models: Mapping[str, str], settings: ServerSettings) -> PipelineNames:
    """What requests call the pipelines: each its own name, or the one pipeline the names of the settings."""
    if len(models) == 1:
        return PipelineNames(dict.fromkeys(settings.models, next(iter(models))))
    return PipelineNames({name: name for name in models})


def build_image_service(
    drawer: DiffusionEngine, names: PipelineNames, settings: ServerSettings
) -> tuple[ImageService, ImageMetrics]:
    """A service that holds requests to the limits of the settings, and what counts them."""
    service = ImageService(
        drawer, ImageQueue(settings), queue_seconds=settings.queue_seconds, total_seconds=settings.total_seconds
    )
    said = tuple(map(names.said, drawer.pipelines))
    metrics = ImageMetrics(service.live, said, settings.metrics_alias)
    service.observers.append(metrics)
    return service, metrics


def weight_bytes(pipeline: Pipeline) -> int:
    """Of all parts of a pipeline."""
    experts = [pipeline.second.denoiser] if pipeline.second is not None else []
    networks = (*pipeline.encoder.models, pipeline.denoiser, *experts, pipeline.autoencoder)
    return sum(parameter.nbytes for network in networks for parameter in network.parameters())
