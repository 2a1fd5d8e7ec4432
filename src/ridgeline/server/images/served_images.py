"""The serving of image and video pipelines, which are loaded one after the other and run in one thread."""

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
from ridgeline.server.images.image_service import ImageService
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
    """Image and video pipelines to serve."""

    models: Mapping[str, str]
    """The folders of the pipelines, by name."""
    device: Callable[[int], Device]
    """The function that returns the device for predictions, given the number of threads."""
    threads: int | None = None
    """The number of threads; None for the number that suits the weights."""
    bar: Bar = lambda _: nullcontext()
    """The function that returns a progress display for loading the weights of a pipeline, by its name."""

    @property
    def name(self) -> str:
        """The name of the first pipeline."""
        return next(iter(self.models))

    async def start(self) -> DiffusionEngine:
        """Load all pipelines and return the engine that runs them.

        Raises:
            ModelRefused: As `load_pipeline`.
        """
        return await load_in_thread(self._diffusion_engine)

    def _diffusion_engine(self, waiting: LoadCancellation) -> DiffusionEngine:
        free = available_memory()
        pipelines = self.load(waiting)
        weights = sum(map(weight_bytes, pipelines.values()))
        threads = threads_for(weights, self.threads)
        return DiffusionEngine(pipelines, self.device(threads), free - weights, ModelLoop(threads))

    def load(self, waiting: LoadCancellation) -> dict[str, Pipeline]:
        """Load all pipelines and return them by name.

        Raises:
            ModelRefused: As `load_pipeline`.
        """
        pipelines = {}
        for name, folder in self.models.items():
            logger.info("loading %s", name)
            with self.bar(name) as shown:
                pipelines[name] = load_pipeline(folder, threads=self.threads, progress=waiting.progress(shown))
        return pipelines

    @asynccontextmanager
    async def serving(self, engine: DiffusionEngine, settings: ServerSettings) -> AsyncIterator[ServingContext]:
        """Yield the application of the pipelines, with its metrics, while it serves requests."""
        names = names_of(self.models, settings)
        service, metrics = build_image_service(engine, names, settings)
        jobs = VideoJobStore(service, settings)
        app = build_image_app(
            service, jobs, settings, names, routes=[metrics.route(), *PageData({}, settings).routes()]
        )
        lag = asyncio.create_task(metrics.watch_loop())
        try:
            yield ServingContext(app, engine, metrics.exchanged, [service.queue], service.held, service.end_all)
        finally:
            lag.cancel()
            await jobs.aclose()


def names_of(models: Mapping[str, str], settings: ServerSettings) -> PipelineNames:
    """Return the request names of the pipelines: their own, or for a single pipeline the names in the settings."""
    if len(models) == 1:
        return PipelineNames(dict.fromkeys(settings.models, next(iter(models))))
    return PipelineNames({name: name for name in models})


def build_image_service(
    engine: DiffusionEngine, names: PipelineNames, settings: ServerSettings
) -> tuple[ImageService, ImageMetrics]:
    """Return a service that enforces the limits of the settings, and the metrics of its requests."""
    service = ImageService(engine, settings)
    models = {names.response_name(name): interval for name, interval in engine.intervals.items()}
    metrics = ImageMetrics(service.live, models, settings.metrics_alias)
    service.observers.append(metrics)
    return service, metrics


def weight_bytes(pipeline: Pipeline) -> int:
    """Return the bytes of the weights of all parts of a pipeline."""
    experts = [pipeline.low_noise_expert.denoiser] if pipeline.low_noise_expert is not None else []
    networks = (*pipeline.encoder.models, pipeline.denoiser, *experts, pipeline.autoencoder)
    return sum(parameter.nbytes for network in networks for parameter in network.parameters())
