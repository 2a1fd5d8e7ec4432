"""The cost of a diffusion request before it runs: encoding its texts, denoising and decoding its images.

Each stage consists of steps of a model, priced like any other model: `price/price.py` sums its ops, whose rows are
tokens of texts, patches of latents or pixels. n steps are n passes of the denoiser, with guidance 2n.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.models.common.activation_peak import ActivationTracker
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.padded_text import padded_work
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import Work
from ridgeline.media.diffusion.diffusion_parallel import (
    WHOLE,
    ParallelDegrees,
    ParallelPass,
    divisions,
    exchange,
    heads_of,
    message_bytes,
)
from ridgeline.media.diffusion.eager import Unfused, unfused_phase
from ridgeline.media.diffusion.geometry import Geometry
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice
from ridgeline.price.bounded_cache import put
from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval, own_intervals
from ridgeline.price.op_time import communication_seconds
from ridgeline.price.plan.request_phases import Estimate, Phase, PhasePrice, price_phase, sum_phase
from ridgeline.price.price import Price, StepPrice

_NOTHING = Estimate(0.0, 0.0, 0.0)


class ImageDecodePrice:
    """The price of decodes with an image autoencoder."""

    def __init__(self, autoencoder: AutoencoderKL) -> None:
        self._autoencoder, self._price = autoencoder, Price(autoencoder)
        self.weight_bytes, self.parameters = self._price.weight_bytes, _parameters(autoencoder)

    def price(self, device: Device, geometry: Geometry, images: int, tiling: Tiling | None = None) -> PhasePrice:
        """Return the price of decoding images, or all frames of videos, one after the other, as a phase."""
        latents = self._latents(geometry)
        tiles = 1 if tiling is None else tiling.tiles(latents)
        work = self._autoencoder.decode_work(latents if tiling is None else tiling.tile(latents))
        frames = f"{geometry.frames} frames of " if geometry.layout.is_video else ""
        about = f"{frames}{geometry.size} pixels" + (f" in {tiles} tiles" if tiles > 1 else "")
        return price_phase(self._price, device, Phase("decode", (work,), tiles * images * geometry.frames, about))

    def activations(self, geometry: Geometry, tiling: Tiling | None = None) -> float:
        """Return the peak bytes of activations of decoding one image."""
        return self._autoencoder.decode_bytes(self._latents(geometry), tiling)

    def _latents(self, geometry: Geometry) -> PixelGrid:
        """Return the rows and columns of an image's latents, as the autoencoder takes them."""
        factor, size = self._autoencoder.factor, geometry.size
        return PixelGrid(1, size.height // factor, size.width // factor)


def _parameters(autoencoder: AutoencoderKL) -> int:
    return sum(op.parameter_count() for _, op in autoencoder.weighted_ops())


@dataclass(frozen=True, slots=True)
class PipelineComponents:
    """The models of a pipeline, with weights or on the meta device, each in the dtype that it runs in."""

    encoders: tuple[Model, ...]
    """The text encoders, each of which reads every text; cut off if the denoiser takes states of an inner layer."""
    denoisers: tuple[Denoiser, ...]
    """The denoiser, or experts of the same shape for different noise levels; a pass runs one of them."""
    autoencoder: AutoencoderKL | VideoDecodePrice
    """The VAE, or the price of a video VAE."""


@dataclass(frozen=True, slots=True)
class PipelineWorkload:
    """The properties of a diffusion request that determine its cost."""

    geometry: Geometry
    """The shapes of an image or a video."""
    steps: int
    """The number of denoising steps."""
    texts: tuple[int, ...]
    """The tokens that the denoiser receives for the text of each pass of a step: one text, or with guidance two."""
    images: int = 1
    """The number of images, generated one after the other from the same texts."""
    read: tuple[tuple[int, ...], ...] = ()
    """The number of tokens of each text as each encoder reads it, with padding, by encoder; if empty, as in `texts`."""
    seen: tuple[int, ...] = ()
    """The number of tokens of each text that the encoder attends to if it masks padding; if empty, all tokens."""

    @property
    def passes(self) -> int:
        """The number of denoiser passes per image: n for n steps, with guidance 2n."""
        return self.steps * len(self.texts)


@dataclass(frozen=True, slots=True)
class StagePrice:
    """The price of one stage of a request on one GPU: encode, denoise or decode."""

    once: PhasePrice
    """The price of one repetition of the stage's work, which the stage does `count` times.

    It is encoding all texts, a step with all its passes, or one decode: of an image, one of its tiles, a video, or with
    an image autoencoder a frame of a video.
    """
    communication: Estimate = _NOTHING
    """The time of the communication between GPUs in one repetition of the stage's work."""
    message_bytes: float = 0.0
    """The bytes of the messages between GPUs in one repetition of the stage's work, counted on one GPU.

    Each message counts with the bytes that a GPU has after it, its own part included.
    """

    @property
    def name(self) -> str:
        """The name of the pipeline stage: encode, denoise or decode."""
        return self.once.name

    @property
    def count(self) -> int:
        """The number of repetitions of the stage's work."""
        return self.once.count

    @property
    def runs(self) -> int:
        """The number of model runs in one stage of a request.

        Encoding runs once per text and encoder, and once per text and denoiser that processes texts in advance.
        Denoising runs once per pass, and decoding once per image, tile, frame or video, as `once` states.
        """
        return self.count * self.once.steps

    @property
    def seconds(self) -> Estimate:
        """The seconds of the whole pipeline stage."""
        return (self.once.seconds + self.communication) * self.count

    @property
    def flops(self) -> float:
        """The FLOPs of the whole pipeline stage."""
        return self.once.flops * self.count

    @property
    def nbytes(self) -> float:
        """The bytes moved in the whole stage: weights, and the inputs and outputs of ops."""
        return (self.once.memory_bytes + self.once.activation_bytes) * self.count

    @property
    def attention(self) -> float:
        """The share of attention in the stage's FLOPs."""
        return sum(row.flops for row in self.once.classes if row.kind == "attention") / self.once.flops

    @property
    def limit(self) -> str:
        """The roof that limits most of the stage's time: compute, memory (including activations) or communication."""
        under: dict[str, float] = defaultdict(float, communication=self.communication.bound)
        for row in self.once.classes:
            under[row.limit] += row.bound
        return max(under, key=lambda roof: under[roof])


@dataclass(frozen=True, slots=True)
class PipelineMemory:
    """The bytes of a diffusion request on one GPU if all parts of the pipeline stay there."""

    weights: Mapping[str, float]
    """The bytes of the pipeline's weights by part."""
    encode: float
    """The bytes of activations of encoding a text."""
    denoise: float
    """The bytes of activations of a denoiser pass."""
    decode: float
    """The bytes of activations of the requested decode."""
    whole: float
    """The bytes of activations of a decode without tiles."""
    tiled: float
    """The bytes of activations of a decode with the default tiles; a video is decoded without tiles."""
    experts: int = 1
    """The number of the pipeline's denoisers."""

    @property
    def all_weights(self) -> float:
        """The bytes of the weights of all parts of the pipeline."""
        return sum(self.weights.values())

    @property
    def peak(self) -> float:
        """The peak bytes of the diffusion request."""
        return self.with_decode(self.decode)

    def with_decode(self, activations: float) -> float:
        """Return the peak bytes of the request if its decode needed `activations` bytes of activations."""
        return self.all_weights + max(self.encode, self.denoise, activations)


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """The price of a request on a device, by stage."""

    job: PipelineWorkload
    division: ParallelDegrees
    encode: StagePrice
    denoise: StagePrice
    decode: StagePrice
    memory: PipelineMemory

    @property
    def stages(self) -> tuple[StagePrice, StagePrice, StagePrice]:
        """The prices of the stages in order: encode, denoise, decode."""
        return self.encode, self.denoise, self.decode

    @property
    def seconds(self) -> Estimate:
        """The seconds of all images of the request."""
        return sum((stage.seconds for stage in self.stages), _NOTHING)


class PipelinePrice:
    """The prices of a pipeline's parts, computed once and used for every request."""

    def __init__(self, parts: PipelineComponents) -> None:
        self.parts = parts
        self._encoders = tuple(Price(encoder) for encoder in parts.encoders)
        self._denoiser, autoencoder = Price(parts.denoisers[0]), parts.autoencoder
        self.decoder = autoencoder if isinstance(autoencoder, VideoDecodePrice) else ImageDecodePrice(autoencoder)
        self._memories: dict[tuple[Hashable, ...], PipelineMemory] = {}

    @property
    def weights(self) -> str:
        """The name of the denoiser's weight format."""
        return format_of(self.parts.denoisers[0].model_dtype).name

    def interval(self, device: Device) -> ErrorInterval:
        """Return the interval in which 8 of 10 measured times of Ridgeline's pipelines lie, for images and videos."""
        return own_intervals(device, self.weights)["image"]

    def on(
        self,
        device: Device,
        job: PipelineWorkload,
        tiling: Tiling | None = None,
        division: ParallelDegrees = WHOLE,
        eager: Unfused | None = None,
    ) -> RequestPrice:
        """Return the price of a diffusion request on a device.

        Args:
            device: Device of the request.
            job: Workload of the request.
            tiling: Tiling of the decode; None for none.
            division: Division of the denoiser passes among GPUs; every GPU does all other work itself.
            eager: Ops of the denoiser other than products and attention if they are not fused.

        Raises:
            ValueError: If the denoiser cannot take the size or a text, or the GPUs have no link.
        """
        stages = self.stages(device, job, tiling, division, eager)
        return RequestPrice(job, division, *stages, self.memory(job, tiling))

    def stages(
        self,
        device: Device,
        job: PipelineWorkload,
        tiling: Tiling | None = None,
        division: ParallelDegrees = WHOLE,
        eager: Unfused | None = None,
    ) -> tuple[StagePrice, StagePrice, StagePrice]:
        """Return the prices of encode, denoise and decode.

        They do not include the memory, for which every part has to run on the meta device.
        """
        denoise = self._denoise(device, job, division, eager)
        return self._encode(device, job), denoise, self._decode(device, job, tiling)

    def call(self, device: Device, geometry: Geometry, texts: Sequence[int]) -> StepPrice:
        """Return the price of one denoiser call with one image for each of the texts."""
        return self._denoiser.price_step(device, _pass(self.parts.denoisers[0], geometry, texts))

    def prepare(self, device: Device, texts: Sequence[int]) -> float:
        """Return the expected seconds of all denoisers' one-time processing of some texts, in one call.

        This is a part of the encode stage.
        """
        work = self.parts.denoisers[0].prepare_work(texts)
        return len(self.parts.denoisers) * self._denoiser.price_step(device, work).expected if work.rows else 0.0

    def divisions(self, job: PipelineWorkload, gpus: int) -> list[ParallelDegrees]:
        """Return the possible ways to divide a request among `gpus` GPUs."""
        return divisions(gpus, len(job.texts), heads_of(self._denoiser))

    def _encode(self, device: Device, job: PipelineWorkload) -> StagePrice:
        """Return the price of the encode stage: every text through every text encoder, once per request.

        The encoders run one after the other. The price includes the parts of the denoiser that do not depend on the
        noise level.
        """
        read = list(zip(self._encoders, self._texts_read(job), strict=True))
        steps = [
            (price, padded_work(price.reaches, *each))
            for price, texts in read
            for each in zip(job.seen or texts, texts, strict=True)
        ]
        prepared = [self.parts.denoisers[0].prepare_work([tokens]) for tokens in job.texts]
        steps += [(self._denoiser, work) for _ in self.parts.denoisers for work in prepared if work.rows]
        about = f"{sum(tokens for texts in self._texts_read(job) for tokens in texts):,} tokens"
        phase = Phase("encode", tuple(work for _, work in steps), 1, about)
        return StagePrice(sum_phase(phase, [price.price_step(device, work) for price, work in steps], device))

    def _denoise(
        self, device: Device, job: PipelineWorkload, division: ParallelDegrees, eager: Unfused | None
    ) -> StagePrice:
        """Return the price of denoising, in which a step is one pass per text.

        If each half of the GPUs runs one of the passes, a step takes the time of the longer one.
        """
        own, each = ParallelPass(self._denoiser, division.sequence), job.texts
        if division.guidance > 1:
            each = (max(job.texts),)
        works = tuple(own.of(_pass(self.parts.denoisers[0], job.geometry, [tokens])) for tokens in each)
        once = price_phase(self._denoiser, device, Phase("denoise", works, job.steps * job.images, _about(job, each)))
        if eager is not None:
            tokens = math.ceil(job.geometry.tokens / division.sequence)
            once = unfused_phase(once, self._denoiser, device, works, eager, tokens)
        talks = [(message, division.sequence) for work in works for message in own.messages(work)]
        if division.guidance > 1:
            talks.append((exchange(job.geometry.latents), division.guidance))
        seconds = [communication_seconds(message, device, gpus) for message, gpus in talks]
        bound, expected = (sum(times) for times in zip(*seconds, strict=True)) if seconds else (0.0, 0.0)
        return StagePrice(once, Estimate(bound, bound, expected), message_bytes(message for message, _ in talks))

    def _decode(self, device: Device, job: PipelineWorkload, tiling: Tiling | None) -> StagePrice:
        if isinstance(self.decoder, VideoDecodePrice):
            assert tiling is None, "videos are decoded frame by frame, not in tiles"
            return StagePrice(self.decoder.price(device, job.geometry, job.images))
        return StagePrice(self.decoder.price(device, job.geometry, job.images, tiling))

    def memory(self, job: PipelineWorkload, tiling: Tiling | None = None) -> PipelineMemory:
        """Return the memory of a request, cached by geometry, texts and tiling.

        The device and the numbers of steps, images and GPUs do not change it. The parts run on the meta device, so no
        other thread may run them at the same time.
        """
        key = (job.geometry, job.texts, self._texts_read(job), tiling)
        found = self._memories.get(key)
        return put(self._memories, key, self._measured(job, tiling)) if found is None else found

    def _measured(self, job: PipelineWorkload, tiling: Tiling | None) -> PipelineMemory:
        """Return the memory of a request from a run on the meta device."""
        encoders = self.parts.encoders
        names = ["text encoder", *(f"text encoder {i}" for i in range(2, len(encoders) + 1))][: len(encoders)]
        weights = {name: price.weight_bytes for name, price in zip(names, self._encoders, strict=True)}
        weights["denoiser"] = self._denoiser.weight_bytes * len(self.parts.denoisers)
        weights["autoencoder"] = self.decoder.weight_bytes
        longest = (max(texts) for texts in self._texts_read(job))
        reads = [
            _alive(encoder, padded_work(encoder.attention_patterns, tokens, tokens))
            for encoder, tokens in zip(encoders, longest, strict=True)
        ]
        denoiser = self.parts.denoisers[0]
        size = job.geometry.latents[1:]
        passes = [_alive(denoiser, denoiser.work(size, [tokens])) for tokens in set(job.texts)]
        whole = activations = tiled = self.decoder.activations(job.geometry)
        if isinstance(self.decoder, ImageDecodePrice) and not job.geometry.layout.is_video:
            activations, tiled = (self.decoder.activations(job.geometry, tiles) for tiles in (tiling, Tiling()))
        return PipelineMemory(
            weights, max(reads, default=0), max(passes), activations, whole, tiled, len(self.parts.denoisers)
        )

    def _texts_read(self, job: PipelineWorkload) -> tuple[tuple[int, ...], ...]:
        """Return the token counts of the request's texts as each text encoder reads them, with padding."""
        return job.read or (job.texts,) * len(self._encoders)


def _pass(denoiser: Denoiser, geometry: Geometry, texts: Sequence[int]) -> Work:
    """Return the work of a denoiser call with one image for each of some texts."""
    _, *size = geometry.latents
    return denoiser.pass_work(tuple(size), texts)


def _about(job: PipelineWorkload, passes: Sequence[int]) -> str:
    """Return a description of the rows of a step's denoiser passes, like `2 x 4,096 latent tokens`."""
    return f"{len(passes)} x {job.geometry.tokens:,} latent tokens"


def _alive(network: PricedModule, work: Work) -> int:
    """Return the peak bytes of activations in a step of a model, measured by a run on the meta device."""
    alive = ActivationTracker()
    network.trace_calls({space: work.rows.get(space, 0) for space in network.row_axes}, alive)
    return alive.peak
