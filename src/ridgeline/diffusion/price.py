"""What a request costs, before anything of it is drawn: its texts encoded, its pictures denoised and decoded.

Each stage is steps of a model that is priced as any other: `roofline/price.py` sums its ops, whose rows are tokens of
texts, patches of latents or pixels. n steps are n passes of the denoiser, with guidance 2n.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ridgeline.diffusion.geometry import Geometry
from ridgeline.models.alive import Alive
from ridgeline.models.autoencoder_kl import AutoencoderKL
from ridgeline.models.denoiser import Denoiser
from ridgeline.models.model import Model
from ridgeline.models.network import Network
from ridgeline.models.tiling import Tiling
from ridgeline.ops.grid import Grid
from ridgeline.ops.work import Reach, Segment, Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.phases import Estimate, Phase, PhasePrice, price_phase, sum_phase
from ridgeline.roofline.price import Price


@dataclass(frozen=True, slots=True)
class Parts:
    """The models of a pipeline, filled or on meta, each in the number format that it runs in.

    encoders: each reads every text; as they are cut off where a denoiser takes states from further in. denoisers: one,
    or experts of one shape, each for some noise levels, of which a pass asks one.
    """

    encoders: tuple[Model, ...]
    denoisers: tuple[Denoiser, ...]
    autoencoder: AutoencoderKL


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of a pipeline, as far as it costs anything.

    texts: tokens of the text of each pass of a step, as the denoiser is given it: one, or with guidance two. read: the
    same as each encoder reads it, padding included, by the place of the encoder; as `texts` where there is none.
    pictures: drawn one after the other from these texts.
    """

    geometry: Geometry
    steps: int
    texts: tuple[int, ...]
    pictures: int = 1
    read: tuple[tuple[int, ...], ...] = ()

    @property
    def passes(self) -> int:
        """How often the denoiser is asked for a picture: n steps are n passes, with guidance 2n."""
        return self.steps * len(self.texts)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request on one card: encode, denoise or decode.

    once: what is done `count` times: all texts read, a step with all its passes, a picture or a tile of it decoded.
    """

    once: PhasePrice

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
        return self.once.seconds * self.count

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
        under: dict[str, float] = defaultdict(float)
        for row in self.once.classes:
            under[row.limit] += row.bound
        return max(under, key=lambda roof: under[roof])


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one card, where every part stays there. weights: by part. encode, denoise: activations of a run of
    either. decode: those of the decode that was asked for; whole, tiled: without tiles, and with such as are cut where
    nobody says otherwise."""

    weights: Mapping[str, float]
    encode: float
    denoise: float
    decode: float
    whole: float
    tiled: float

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

    job: Job
    encode: Stage
    denoise: Stage
    decode: Stage
    memory: Memory

    @property
    def stages(self) -> tuple[Stage, Stage, Stage]:
        """In their order."""
        return self.encode, self.denoise, self.decode

    @property
    def seconds(self) -> Estimate:
        """Of all pictures."""
        return sum((stage.seconds for stage in self.stages), Estimate(0.0, 0.0, 0.0))


class PipelinePrice:
    """The prices of a pipeline's parts: made once, and asked for each request."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._encoders = tuple(Price(encoder) for encoder in parts.encoders)
        self._denoiser, self._autoencoder = Price(parts.denoisers[0]), Price(parts.autoencoder)

    def on(self, device: Device, job: Job, tiling: Tiling | None = None) -> RequestPrice:
        """What a request takes on a device. tiling: of its decode; None for none.

        Raises ValueError for a size or a text that the denoiser cannot take.
        """
        encode, denoise = self._encode(device, job), self._denoise(device, job)
        return RequestPrice(job, encode, denoise, self._decode(device, job, tiling), self._memory(job, tiling))

    def _encode(self, device: Device, job: Job) -> Stage:
        """Every text through every encoder, one after the other, once a request."""
        read = list(zip(self._encoders, self._texts_read(job), strict=True))
        steps = [(price, _reading(price.reaches, tokens)) for price, texts in read for tokens in texts]
        about = f"{sum(tokens for texts in job.read or (job.texts,) for tokens in texts):,} tokens"
        phase = Phase("encode", tuple(work for _, work in steps), 1, about)
        return Stage(sum_phase(phase, [price.on(device, work) for price, work in steps], device))

    def _denoise(self, device: Device, job: Job) -> Stage:
        """A step is a pass for each of its texts."""
        about = f"{len(job.texts)} x {job.geometry.tokens:,} tokens of latents"
        return Stage(price_phase(self._denoiser, device, Phase("denoise", self._passes(job), self._steps(job), about)))

    def _decode(self, device: Device, job: Job, tiling: Tiling | None) -> Stage:
        autoencoder, latents = self.parts.autoencoder, self._latents(job)
        tiles = 1 if tiling is None else tiling.tiles(latents)
        work = autoencoder.decode_work(latents if tiling is None else tiling.tile(latents))
        about = f"{job.geometry.size} pixels" + (f" in {tiles} tiles" if tiles > 1 else "")
        return Stage(price_phase(self._autoencoder, device, Phase("decode", (work,), tiles * job.pictures, about)))

    def _memory(self, job: Job, tiling: Tiling | None) -> Memory:
        encoders, autoencoder = self.parts.encoders, self.parts.autoencoder
        names = ["text encoder", *(f"text encoder {i}" for i in range(2, len(encoders) + 1))][: len(encoders)]
        weights = {name: price.weight_bytes for name, price in zip(names, self._encoders, strict=True)}
        weights["denoiser"] = self._denoiser.weight_bytes * len(self.parts.denoisers)
        weights["autoencoder"] = self._autoencoder.weight_bytes
        longest = (max(texts) for texts in self._texts_read(job))
        reads = [
            _alive(encoder, _reading(encoder.reaches, tokens))
            for encoder, tokens in zip(encoders, longest, strict=True)
        ]
        passes = [_alive(self.parts.denoisers[0], work) for work in self._passes(job)]
        latents = self._latents(job)
        whole, asked, usual = (autoencoder.decode_bytes(latents, tiles) for tiles in (None, tiling, Tiling()))
        return Memory(weights, max(reads, default=0), max(passes), asked, whole, usual)

    def _steps(self, job: Job) -> int:
        """Of all pictures."""
        return job.steps * job.pictures

    def _passes(self, job: Job) -> tuple[Work, ...]:
        """Those of a step."""
        _, *size = job.geometry.latents
        return tuple(self.parts.denoisers[0].work((size[0], size[1]), [tokens]) for tokens in job.texts)

    def _texts_read(self, job: Job) -> tuple[tuple[int, ...], ...]:
        """By encoder, tokens of each text."""
        return job.read or (job.texts,) * len(self._encoders)

    def _latents(self, job: Job) -> Grid:
        """Of a picture, as the autoencoder has them, before a denoiser packs several into one."""
        factor, size = self.parts.autoencoder.factor, job.geometry.size
        return Grid(1, size.height // factor, size.width // factor)


def _reading(reaches: Iterable[Reach], tokens: int) -> Work:
    """A text encoder over one text, all of whose states are wanted."""
    return Work.of([Segment(tokens, tokens)], reaches, tokens)


def _alive(network: Network, work: Work) -> int:
    """Most bytes of activations at once in a step of a network, which is run on meta, over as many rows."""
    alive = Alive()
    network.trace_calls({space: work.rows.get(space, 0) for space in network.spaces}, alive)
    return alive.peak
