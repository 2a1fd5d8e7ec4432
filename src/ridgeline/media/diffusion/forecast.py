"""Forecasts of the time and memory of a request to a loaded pipeline, with the batching of its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.geometry import Geometry
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_price import PipelineComponents, PipelineMemory, PipelinePrice, PipelineWorkload
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice
from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval

STAGES = ("encode", "denoise", "decode")


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected seconds of each stage of a diffusion plan, and the memory that the plan needs."""

    seconds: Mapping[str, float]
    memory: PipelineMemory
    device: Device
    interval: ErrorInterval
    """The interval in which 8 of 10 measured times lie."""


class Forecaster:
    """A calculator of the prices of a pipeline's requests on a device."""

    def __init__(self, pipeline: Pipeline, device: Device) -> None:
        self._device, self._encoder = device, pipeline.encoder
        vae = pipeline.autoencoder
        decoder = VideoDecodePrice(vae.config, torch.float32) if isinstance(vae, VideoAutoencoder) else vae
        denoisers = (pipeline.denoiser, *([pipeline.low_noise_expert.denoiser] if pipeline.low_noise_expert else []))
        self._price = PipelinePrice(PipelineComponents(pipeline.encoder.models, denoisers, decoder))

    @property
    def interval(self) -> ErrorInterval:
        """The interval in which 8 of 10 measured times of the pipeline lie on the device."""
        return self._price.interval(self._device)

    def call(self, geometry: Geometry, texts: Sequence[int]) -> float:
        """Return the expected seconds of one denoiser call; this method can be passed as a `CallSeconds`."""
        return self._price.call(self._device, geometry, texts).expected

    def forecast(self, plan: DiffusionPlan, tiling: Tiling | None) -> Forecast:
        """Return the expected time and memory of a diffusion plan, with its batching.

        The models run on the meta device, as in `PipelinePrice.memory`, so no other thread may run them at the same
        time.
        """
        memory = self._price.memory(self._job(plan), tiling)
        return Forecast(self.seconds(plan, tiling), memory, self._device, self.interval)

    def seconds(self, plan: DiffusionPlan, tiling: Tiling | None) -> dict[str, float]:
        """Return the expected seconds of each stage of a plan.

        The denoiser's one-time processing of texts counts as part of its first step.
        """
        encode, _, decode = self._price.stages(self._device, self._job(plan), tiling)
        read = encode.seconds.expected - sum(self._price.prepare(self._device, [len(text)]) for text in plan.token_ids)
        denoise = 0.0
        for images in plan.groups:
            calls = self._calls(plan, len(images))
            denoise += sum(self._price.prepare(self._device, texts) for texts in calls)
            denoise += plan.schedule.steps * sum(self.call(plan.geometry, texts) for texts in calls)
        return {"encode": read, "denoise": denoise, "decode": decode.seconds.expected}

    def cfg_parallel_seconds(self, plan: DiffusionPlan) -> float:
        """Return the seconds of denoising a plan with two processes, each running one guidance pass of every step.

        Each process has a device like this one. The time of their communication is not included.
        """
        texts = [len(text) for text in plan.token_ids]
        each = (max(self.call(plan.geometry, [text] * len(images)) for text in texts) for images in plan.groups)
        return plan.schedule.steps * sum(each)

    def activations(self, geometry: Geometry, text: int) -> float:
        """Return the peak bytes of activations while a text is encoded or a denoiser pass over one image runs.

        The text has `text` tokens. The models run on the meta device.
        """
        memory = self._price.memory(PipelineWorkload(geometry, 1, (text,)))
        return max(memory.encode, memory.denoise)

    def decode_activations(self, geometry: Geometry) -> float:
        """Return the bytes of activations of decoding one image whole, or a video frame by frame."""
        return self._price.decoder.activations(geometry)

    def _calls(self, plan: DiffusionPlan, images: int) -> list[list[int]]:
        """Return the denoiser calls of a step with `images` images, each as the token counts of its texts."""
        texts = [len(text) for text in plan.token_ids]
        if plan.batching.paired:
            return [[text for text in texts for _ in range(images)]]
        return [[text] * images for text in texts]

    def _job(self, plan: DiffusionPlan) -> PipelineWorkload:
        texts, encoder = tuple(map(len, plan.token_ids)), self._encoder
        seen = tuple(map(encoder.unmasked_length, plan.token_ids))
        pooled = () if encoder.pooled_width is None else ((len(encoder.pooled_ids(plan.request.prompt)),),)
        return PipelineWorkload(
            plan.geometry, plan.schedule.steps, texts, plan.request.images, (texts, *pooled),
            seen if seen != texts else (),
        )  # fmt: skip
