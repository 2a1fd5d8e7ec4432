"""What a request of a loaded pipeline will take, its pictures drawn as they are planned."""

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

STAGES = ("encode", "denoise", "decode")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of each stage of a plan, and its memory."""

    seconds: Mapping[str, float]
    memory: PipelineMemory
    device: Device


class Forecaster:
    """Prices a pipeline's requests on a device."""

    def __init__(self, pipeline: Pipeline, device: Device) -> None:
        self._device, self._encoder = device, pipeline.encoder
        vae = pipeline.autoencoder
        decoder = VideoDecodePrice(vae.config, torch.float32) if isinstance(vae, VideoAutoencoder) else vae
        denoisers = (pipeline.denoiser, *([pipeline.second.denoiser] if pipeline.second else []))
        self._price = PipelinePrice(PipelineComponents(pipeline.encoder.models, denoisers, decoder))

    def call(self, geometry: Geometry, texts: Sequence[int]) -> float:
        """Seconds of a call of the denoiser, as `CallSeconds`."""
        return self._price.call(self._device, geometry, texts).expected

    def forecast(self, plan: DiffusionPlan, tiling: Tiling | None) -> Forecast:
        """What a plan takes, with pictures side by side as it says. The parts are run on meta, as PipelinePrice.memory
        runs them: nobody else may run them meanwhile.
        """
        return Forecast(self.seconds(plan, tiling), self._price.memory(self._job(plan), tiling), self._device)

    def seconds(self, plan: DiffusionPlan, tiling: Tiling | None) -> dict[str, float]:
        """Expected seconds of each stage of a plan. What a denoiser makes of texts once is a part of its first step."""
        encode, _, decode = self._price.stages(self._device, self._job(plan), tiling)
        read = encode.seconds.expected - sum(self._price.prepare(self._device, [len(text)]) for text in plan.texts)
        denoise = 0.0
        for images in plan.groups:
            calls = self._calls(plan, len(images))
            denoise += sum(self._price.prepare(self._device, texts) for texts in calls)
            denoise += plan.schedule.steps * sum(self.call(plan.geometry, texts) for texts in calls)
        return {"encode": read, "denoise": denoise, "decode": decode.seconds.expected}

    def apart(self, plan: DiffusionPlan) -> float:
        """Seconds of a plan's denoising by two processes at once, each with this device, of which each runs one pass of
        every step. What they exchange is not in it.
        """
        texts = [len(text) for text in plan.texts]
        each = (max(self.call(plan.geometry, [text] * len(images)) for text in texts) for images in plan.groups)
        return plan.schedule.steps * sum(each)

    def activations(self, geometry: Geometry, text: int) -> float:
        """Bytes of a text of so many tokens being read, or of one picture in one pass of the denoiser, whichever is
        more. The parts are run on meta.
        """
        memory = self._price.memory(PipelineWorkload(geometry, 1, (text,)))
        return max(memory.encode, memory.denoise)

    def decode_activations(self, geometry: Geometry) -> float:
        """Bytes of a picture being decoded whole, or of a clip, frame by frame."""
        return self._price.decoder.activations(geometry)

    def _calls(self, plan: DiffusionPlan, images: int) -> list[list[int]]:
        """Of each call of the denoiser in a step of so many images side by side, the tokens of every picture's text."""
        texts = [len(text) for text in plan.texts]
        if plan.batching.paired:
            return [[text for text in texts for _ in range(images)]]
        return [[text] * images for text in texts]

    def _job(self, plan: DiffusionPlan) -> PipelineWorkload:
        texts, encoder = tuple(map(len, plan.texts)), self._encoder
        seen = tuple(map(encoder.seen, plan.texts))
        pooled = () if encoder.pooled_width is None else ((len(encoder.pooled_ids(plan.request.prompt)),),)
        return PipelineWorkload(
            plan.geometry, plan.schedule.steps, texts, plan.request.images, (texts, *pooled),
            seen if seen != texts else (),
        )  # fmt: skip
