"""What a request costs, before anything of it is drawn: its texts encoded, its pictures denoised and decoded.

Each stage is steps of a model that is priced as any other: `price/price.py` sums its ops, whose rows are tokens of
texts, patches of latents or pixels. n steps are n passes of the denoiser, with guidance 2n.
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
from ridgeline.price.op_time import communication_seconds
from ridgeline.price.plan.request_phases import Estimate, Phase, PhasePrice, price_phase, sum_phase
from ridgeline.price.price import Price, StepPrice

_NOTHING = Estimate(0.0, 0.0, 0.0)


class ImageDecodePrice:
    """The price of an autoencoder's decodes."""

    def __init__(self, autoencoder: AutoencoderKL) -> None:
        self._autoencoder, self._price = autoencoder, Price(autoencoder)
        self.weight_bytes, self.parameters = self._price.weight_bytes, _parameters(autoencoder)

    def price(self, device: Device, geometry: Geometry, pictures: int, tiling: Tiling | None = None) -> PhasePrice:
        """So many pictures, or all frames of so many clips, one after the other, as a phase of a request."""
        latents = self._latents(geometry)
        tiles = 1 if tiling is None else tiling.tiles(latents)
        work = self._autoencoder.decode_work(latents if tiling is None else tiling.tile(latents))
        frames = f"{geometry.frames} frames of " if geometry.layout.clips else ""
        about = f"{frames}{geometry.size} pixels" + (f" in {tiles} tiles" if tiles > 1 else "")
        return price_phase(self._price, device, Phase("decode", (work,), tiles * pictures * geometry.frames, about))

    def activations(self, geometry: Geometry, tiling: Tiling | None = None) -> float:
        """Bytes of activations at once, of one picture."""
        return self._autoencoder.decode_bytes(self._latents(geometry), tiling)

    def _latents(self, geometry: Geometry) -> PixelGrid:
        """Lines and columns of a picture's latents, as the autoencoder takes them."""
        factor, size = self._autoencoder.factor, geometry.size
        return PixelGrid(1, size.height // factor, size.width // factor)


def _parameters(autoencoder: AutoencoderKL) -> int:
    return sum(op.parameter_count() for _, op in autoencoder.weighted_ops())


@dataclass(frozen=True, slots=True)
class PipelineComponents:
    """The models of a pipeline, filled or on meta, each in the number format that it runs in.

    encoders: each reads every text; as they are cut off where a denoiser takes states from further in. denoisers: one,
    or experts of one shape, each for some noise levels, of which a pass asks one.
    """

    encoders: tuple[Model, ...]
    denoisers: tuple[Denoiser, ...]
    autoencoder: AutoencoderKL | VideoDecodePrice


@dataclass(frozen=True, slots=True)
class PipelineWorkload:
    """What is asked of a pipeline, as far as it costs anything.

    texts: tokens of the text of each pass of a step, as the denoiser is given it: one, or with guidance two. read: the
    same as each encoder reads it, padding included, by the place of the encoder; as `texts` where there is none. seen:
    of each text, the tokens that are no padding, where padding is masked. pictures: drawn one after the other from
    these texts.
    """

    geometry: Geometry
    steps: int
    texts: tuple[int, ...]
    pictures: int = 1
    read: tuple[tuple[int, ...], ...] = ()
    seen: tuple[int, ...] = ()

    @property
    def passes(self) -> int:
        """How often the denoiser is asked for a picture: n steps are n passes, with guidance 2n."""
        return self.steps * len(self.texts)


@dataclass(frozen=True, slots=True)
class StagePrice:
    """A part of a request on one card: encode, denoise or decode.

    once: what is done `count` times: all texts read, a step with all its passes, a picture or a tile of it decoded.
    talk, message_bytes: what cards exchange in it takes, and the bytes of it that a card has in the end.
    """

    once: PhasePrice
    talk: Estimate = _NOTHING
    message_bytes: float = 0.0

    @property
    def name(self) -> str:
        """encode, denoise or decode."""
        return self.once.name

    @property
    def count(self) -> int:
        """How often it is done."""
        return self.once.count

    @property
    def runs(self) -> int:
        """How often a model is run: for each text and encoder, for each pass, for each tile."""
        return self.count * self.once.steps

    @property
    def seconds(self) -> Estimate:
        """Of all of it."""
        return (self.once.seconds + self.talk) * self.count

    @property
    def flops(self) -> float:
        """Of all of it."""
        return self.once.flops * self.count

    @property
    def nbytes(self) -> float:
        """Of all of it: weights, and what ops read and write."""
        return (self.once.memory_bytes + self.once.activation_bytes) * self.count

    @property
    def attention(self) -> float:
        """The share of its FLOPs that attention has."""
        return sum(row.flops for row in self.once.classes if row.kind == "attention") / self.once.flops

    @property
    def limit(self) -> str:
        """The roof that most of its time is under: compute, memory (activations count), communication."""
        under: dict[str, float] = defaultdict(float, communication=self.talk.bound)
        for row in self.once.classes:
            under[row.limit] += row.bound
        return max(under, key=lambda roof: under[roof])


@dataclass(frozen=True, slots=True)
class PipelineMemory:
    """Bytes on one card, where every part stays there. weights: by part. encode, denoise: activations of a run of
    either. decode: those of the decode that was asked for; whole, tiled: without tiles, and with such as are cut where
    nobody says otherwise. experts: how many denoisers there are.
    """

    weights: Mapping[str, float]
    encode: float
    denoise: float
    decode: float
    whole: float
    tiled: float
    experts: int = 1

    @property
    def all_weights(self) -> float:
        """Of all parts."""
        return sum(self.weights.values())

    @property
    def peak(self) -> float:
        """The most of the request."""
        return self.with_decode(self.decode)

    def with_decode(self, activations: float) -> float:
        """The most of the request, were it decoded with so many bytes of activations."""
        return self.all_weights + max(self.encode, self.denoise, activations)


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """A request on a device, stage by stage."""

    job: PipelineWorkload
    division: ParallelDegrees
    encode: StagePrice
    denoise: StagePrice
    decode: StagePrice
    memory: PipelineMemory

    @property
    def stages(self) -> tuple[StagePrice, StagePrice, StagePrice]:
        """In their order."""
        return self.encode, self.denoise, self.decode

    @property
    def seconds(self) -> Estimate:
        """Of all pictures."""
        return sum((stage.seconds for stage in self.stages), _NOTHING)


class PipelinePrice:
    """The prices of a pipeline's parts: made once, and asked for each request."""

    def __init__(self, parts: PipelineComponents) -> None:
        self.parts = parts
        self._encoders = tuple(Price(encoder) for encoder in parts.encoders)
        self._denoiser, autoencoder = Price(parts.denoisers[0]), parts.autoencoder
        self.decoder = autoencoder if isinstance(autoencoder, VideoDecodePrice) else ImageDecodePrice(autoencoder)
        self._memories: dict[tuple[Hashable, ...], PipelineMemory] = {}

    def on(
        self,
        device: Device,
        job: PipelineWorkload,
        tiling: Tiling | None = None,
        division: ParallelDegrees = WHOLE,
        eager: Unfused | None = None,
    ) -> RequestPrice:
        """What a request takes on a device. tiling: of its decode; None for none. division: of its passes among cards;
        all else each card does for itself. eager: what the denoiser runs beside products and attention where nothing
        fuses it.

        Raises ValueError for a size or a text that the denoiser cannot take, and for cards that nothing joins.
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
        """The same without its memory, for which every part is run on meta: encode, denoise, decode."""
        denoise = self._denoise(device, job, division, eager)
        return self._encode(device, job), denoise, self._decode(device, job, tiling)

    def call(self, device: Device, geometry: Geometry, texts: Sequence[int]) -> StepPrice:
        """One call of the denoiser for pictures of a geometry side by side, one for each of the texts."""
        return self._denoiser.on(device, _pass(self.parts.denoisers[0], geometry, texts))

    def prepare(self, device: Device, texts: Sequence[int]) -> float:
        """Expected seconds of what each denoiser makes of these texts once a request, in one call (a part of
        `encode`).
        """
        work = self.parts.denoisers[0].prepare_work(texts)
        return len(self.parts.denoisers) * self._denoiser.on(device, work).expected if work.rows else 0.0

    def divisions(self, job: PipelineWorkload, cards: int) -> list[ParallelDegrees]:
        """The ways in which a request is divided among so many cards."""
        return divisions(cards, len(job.texts), heads_of(self._denoiser))

    def _encode(self, device: Device, job: PipelineWorkload) -> StagePrice:
        """Every text through every encoder, one after the other, once a request, and through what of the denoiser does
        not depend on the noise level.
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
        return StagePrice(sum_phase(phase, [price.on(device, work) for price, work in steps], device))

    def _denoise(
        self, device: Device, job: PipelineWorkload, division: ParallelDegrees, eager: Unfused | None
    ) -> StagePrice:
        """A step is a pass for each of its texts; where two halves of the cards have one each, the longer of them."""
        own, each = ParallelPass(self._denoiser, division.sequence), job.texts
        if division.guidance > 1:
            each = (max(job.texts),)
        works = tuple(own.of(_pass(self.parts.denoisers[0], job.geometry, [tokens])) for tokens in each)
        once = price_phase(self._denoiser, device, Phase("denoise", works, job.steps * job.pictures, _about(job, each)))
        if eager is not None:
            tokens = math.ceil(job.geometry.tokens / division.sequence)
            once = unfused_phase(once, self._denoiser, device, works, eager, tokens)
        talks = [(message, division.sequence) for work in works for message in own.messages(work)]
        if division.guidance > 1:
            talks.append((exchange(job.geometry.latents), division.guidance))
        seconds = [communication_seconds(message, device, cards) for message, cards in talks]
        bound, expected = (sum(times) for times in zip(*seconds, strict=True)) if seconds else (0.0, 0.0)
        return StagePrice(once, Estimate(bound, bound, expected), message_bytes(message for message, _ in talks))

    def _decode(self, device: Device, job: PipelineWorkload, tiling: Tiling | None) -> StagePrice:
        if isinstance(self.decoder, VideoDecodePrice):
            assert tiling is None, "clips are decoded frame by frame, not in tiles"
            return StagePrice(self.decoder.price(device, job.geometry, job.pictures))
        return StagePrice(self.decoder.price(device, job.geometry, job.pictures, tiling))

    def memory(self, job: PipelineWorkload, tiling: Tiling | None = None) -> PipelineMemory:
        """What a request takes; its parts are run on meta, and by nobody else meanwhile. Once for a size and texts: no
        card, no number of steps or pictures and no division changes it.
        """
        key = (job.geometry, job.texts, self._texts_read(job), tiling)
        found = self._memories.get(key)
        return put(self._memories, key, self._measured(job, tiling)) if found is None else found

    def _measured(self, job: PipelineWorkload, tiling: Tiling | None) -> PipelineMemory:
        """The same, run."""
        encoders = self.parts.encoders
        names = ["text encoder", *(f"text encoder {i}" for i in range(2, len(encoders) + 1))][: len(encoders)]
        weights = {name: price.weight_bytes for name, price in zip(names, self._encoders, strict=True)}
        weights["denoiser"] = self._denoiser.weight_bytes * len(self.parts.denoisers)
        weights["autoencoder"] = self.decoder.weight_bytes
        longest = (max(texts) for texts in self._texts_read(job))
        reads = [
            _alive(encoder, padded_work(encoder.reaches, tokens, tokens))
            for encoder, tokens in zip(encoders, longest, strict=True)
        ]
        denoiser = self.parts.denoisers[0]
        size = job.geometry.latents[1:]
        passes = [_alive(denoiser, denoiser.work(size, [tokens])) for tokens in set(job.texts)]
        whole = asked = tiled = self.decoder.activations(job.geometry)
        if isinstance(self.decoder, ImageDecodePrice) and not job.geometry.layout.clips:
            asked, tiled = (self.decoder.activations(job.geometry, tiles) for tiles in (tiling, Tiling()))
        return PipelineMemory(
            weights, max(reads, default=0), max(passes), asked, whole, tiled, len(self.parts.denoisers)
        )

    def _texts_read(self, job: PipelineWorkload) -> tuple[tuple[int, ...], ...]:
        """By encoder, tokens of each text."""
        return job.read or (job.texts,) * len(self._encoders)


def _pass(denoiser: Denoiser, geometry: Geometry, texts: Sequence[int]) -> Work:
    """A call for pictures side by side, of these texts."""
    _, *size = geometry.latents
    return denoiser.pass_work(tuple(size), texts)


def _about(job: PipelineWorkload, passes: Sequence[int]) -> str:
    """`2 x 4,096 tokens of latents`."""
    return f"{len(passes)} x {job.geometry.tokens:,} tokens of latents"


def _alive(network: PricedModule, work: Work) -> int:
    """Most bytes of activations at once in a step of a network, which is run on meta, over as many rows."""
    alive = ActivationTracker()
    network.trace_calls({space: work.rows.get(space, 0) for space in network.spaces}, alive)
    return alive.peak
