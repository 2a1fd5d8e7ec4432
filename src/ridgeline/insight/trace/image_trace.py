"""The trace of one image or video request: predicted and measured time of every op in its stages.

The stages are text encoding (by one or two encoders), preparation of the denoiser, one denoising step and decoding. A
step with guidance has two passes, which run in one call if that is expected to be faster; each call is a step of the
ledger. Steps before the traced one run without measurement. Most videos are decoded by another library's model, which
is measured and priced only as a whole.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ridgeline.core.models.common.denoiser import Prepared
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.trace.anatomy import layer_numbers
from ridgeline.insight.trace.denoise_step import DenoiseStep
from ridgeline.insight.trace.guidance_delta import GuidanceDelta
from ridgeline.insight.trace.measure import measure
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.pricing import price_steps
from ridgeline.insight.trace.timeline import Clock
from ridgeline.insight.trace.trace_ledger import StepLedger
from ridgeline.insight.trace.tracer import HookCost, Tracer, hook_cost
from ridgeline.insight.trace.word_attention import WordAttention
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice
from ridgeline.price.device import Device
from ridgeline.price.price import Price

NEGATIVE = ", negative"
"""The suffix of step names that belong to the negative prompt."""


@dataclass(frozen=True, slots=True)
class BorrowedDecode:
    """The predicted and measured seconds of a decode by another library's model."""

    expected: float
    measured: float


@dataclass(frozen=True, slots=True)
class ImageLedger:
    """The predicted and measured times of a traced image or video request, by stage."""

    plan: DiffusionPlan
    number: int
    """The number of the traced denoising step, counted from 1."""
    stages: Mapping[str, StepLedger]
    """The ledgers of the stages: encode, pooled, prepare, denoise and decode.

    `pooled` exists with a second text encoder, `prepare` if the denoiser precomputes inputs from the texts, and
    `decode` if this package decodes the latents.
    """
    borrowed: BorrowedDecode | None = None
    """The decode by another library's model; None if this package decodes the latents."""
    guidance_delta: GuidanceDelta | None = None
    """The effect of guidance on the traced step, if requested."""
    words: WordAttention | None = None
    """The attention to the prompt's words, if requested."""

    @property
    def denoise(self) -> StepLedger:
        """The ledger of the traced denoising step."""
        return self.stages["denoise"]

    def impossible(self) -> list[str]:
        """Return a line for each measurement that is faster than physics allows, over all stages."""
        return [line for stage in self.stages.values() for line in stage.impossible()]


def trace_image(
    moment: DenoiseStep,
    device: Device,
    *,
    repeats: int | None = None,
    at_hand: bool = True,
    threads: int = 1,
    clock: Clock = time.perf_counter,
    cost: HookCost | None = None,
) -> ImageLedger:
    """Trace a diffusion request at one of its denoising steps.

    Args:
        moment: The denoising step to trace, with the state before it.
        device: The device whose price is used.
        repeats: Repeats of each measurement; None for as many as a few seconds allow.
        at_hand: Whether `device` is the machine that measures.
        threads: The number of CPU threads, for the report.
        clock: Returns the time in seconds.
        cost: The time that hooks take; measured by default.

    Raises:
        ValueError: If `repeats` is below 1, or repeats on a CPU give different results.
    """
    if repeats is not None and repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1")
    pipeline, plan = moment.pipeline, moment.plan
    hooks = cost or hook_cost(clock)

    def ledger(network: PricedModule, measured: _Measured) -> StepLedger:
        found = measured(moment, partial(measure, Tracer(network, clock), hooks, repeats=repeats))
        layer = layer_numbers(network).get
        steps, rows = price_steps(Price(network), found, device, at_hand=at_hand, layer=layer)
        return StepLedger(pipeline.name, device, at_hand, threads, steps, rows)

    encoder, *pooling = pipeline.encoder.models
    stages = {"encode": ledger(encoder, _encode)}
    if pooling:
        stages["pooled"] = ledger(pooling[0], _pool)
    if any(moment.denoiser.prepare_work(moment.lengths((0,))).rows.values()):
        stages["prepare"] = ledger(moment.denoiser, _prepare)
    stages["denoise"] = ledger(moment.denoiser, _denoise)
    if isinstance(pipeline.autoencoder, VideoAutoencoder):
        return ImageLedger(plan, moment.number, stages, _borrowed(moment, pipeline.autoencoder, device, clock))
    stages["decode"] = ledger(pipeline.autoencoder, _decode)
    return ImageLedger(plan, moment.number, stages)


_Measure = Callable[..., Measurement]
"""A function that measures a model run, given its work, the function to run, and what processes its result."""
_Measured = Callable[[DenoiseStep, _Measure], Mapping[str, Measurement]]


def _named(what: str, texts: Sequence[int]) -> str:
    """Return the name of a step by its texts: `denoise`, `denoise, negative` or `denoise, both`."""
    if len(texts) > 1:
        return f"{what}, both"
    return f"{what}{NEGATIVE * texts[0]}"


def _encode(moment: DenoiseStep, measuring: _Measure) -> dict[str, Measurement]:
    """Measure the text encoder on each text of the request."""
    encoder = moment.pipeline.encoder

    def read(ids: Sequence[int]) -> Measurement:
        return measuring(encoder.work(ids), lambda: encoder.encode(ids))

    return {_named("encode", (text,)): read(ids) for text, ids in enumerate(moment.plan.token_ids)}


def _pool(moment: DenoiseStep, measuring: _Measure) -> dict[str, Measurement]:
    """Measure the second text encoder, which returns one vector for the prompt."""
    encoder, prompt = moment.pipeline.encoder, moment.plan.request.prompt
    tokens = len(encoder.pooled_ids(prompt))
    work = Work.of([StepSegment(tokens, tokens)], encoder.models[1].attention_patterns, 1)

    def read() -> Tensor:
        vector = encoder.pooled(prompt)
        assert vector is not None, "only a second encoder has no weights here"
        return vector

    return {"pooled": measuring(work, read)}


def _prepare(moment: DenoiseStep, measuring: _Measure) -> dict[str, Measurement]:
    """Measure the denoiser's preparation of the texts of each call, which a request runs once."""

    def prepare(texts: Sequence[int]) -> Measurement:
        work = moment.denoiser.prepare_work(moment.lengths(texts))
        return measuring(work, lambda: moment.prepare(texts).rows[-1])

    return {_named("prepare", texts): prepare(texts) for texts in moment.calls}


@torch.inference_mode()
def _denoise(moment: DenoiseStep, measuring: _Measure) -> dict[str, Measurement]:
    """Measure each denoiser call of the step; guidance and the sampler count as sampling of the last call."""
    size = moment.plan.geometry.latents[1:]
    prepared = [moment.prepare(texts) for texts in moment.calls]
    before = [moment.predict(each) for each in prepared[:-1]]

    def step(prediction: Tensor) -> None:
        moment.after(moment.guided(torch.cat((*before, prediction))))

    def call(texts: Sequence[int], given: Prepared) -> Measurement:
        work = moment.denoiser.pass_work(size, moment.lengths(texts))
        return measuring(work, lambda: moment.predict(given), *[step] * (texts == moment.calls[-1]))

    return {_named("denoise", texts): call(texts, given) for texts, given in zip(moment.calls, prepared, strict=True)}


def _decode(moment: DenoiseStep, measuring: _Measure) -> dict[str, Measurement]:
    """Measure the decoding of the latents before the step, for a video one frame of them.

    The content of the latents does not change how long decoding takes.
    """
    autoencoder, latents = moment.pipeline.autoencoder, moment.state.x
    is_video = moment.plan.geometry.layout.is_video
    if is_video:
        latents = latents[:, :, 0]
    assert isinstance(autoencoder, AutoencoderKL)
    factor, size = autoencoder.factor, moment.plan.geometry.size
    work = autoencoder.decode_work(PixelGrid(1, size.height // factor, size.width // factor))
    return {"decode, a frame" if is_video else "decode": measuring(work, lambda: autoencoder.decode(latents))}


def _borrowed(moment: DenoiseStep, autoencoder: VideoAutoencoder, device: Device, clock: Clock) -> BorrowedDecode:
    """Measure one decode of the same latents by another library's model."""
    price = VideoDecodePrice(autoencoder.config, torch.float32).price(device, moment.plan.geometry, 1)
    begin = clock()
    autoencoder.decode(moment.state.x)
    return BorrowedDecode(price.seconds.expected, clock() - begin)
