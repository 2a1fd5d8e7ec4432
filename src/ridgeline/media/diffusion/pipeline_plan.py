"""The plan of a pipeline: what a picture or a clip takes on a card or several, and what would change that."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ridgeline.media.diffusion.diffusion_parallel import ParallelDegrees
from ridgeline.media.diffusion.eager import unfused
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.guidance import guidance_of
from ridgeline.media.diffusion.image_comparison import ImageComparison
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults
from ridgeline.media.diffusion.pipeline_price import PipelineMemory, PipelinePrice, PipelineWorkload, RequestPrice
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import OWN_ENGINE, load_engine
from ridgeline.price.plan.request_phases import Estimate

STEPS = (4, 8, 20, 28, 50)
"""Numbers of steps that a release's own are compared with: of distilled models, and of others."""
SIDE_BY_SIDE = (2, 4, 8)
"""Numbers of pictures in one pass that one alone is compared with."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What is asked of a pipeline; None for what its release is usually asked for. guidance: in the convention of the
    release.
    """

    size: Size | None = None
    steps: int | None = None
    guidance: float | None = None
    frames: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """One card's memory in bytes. resident: the most of a request where all parts stay there; tiled: the same with
    tiles in its decode; taking_turns: the most of any stage where each has its own part alone there. overhead: driver
    and libraries. budget: what may be used.
    """

    resident: float
    tiled: float
    taking_turns: float
    overhead: float
    budget: float

    @property
    def least(self) -> float:
        """Bytes without which it cannot be drawn."""
        return self.overhead + self.taking_turns

    @property
    def how(self) -> str:
        """yes, tiled (only with tiles), in turns (only one part at a time), or no."""
        choices = {"yes": self.resident, "tiled": self.tiled, "in turns": self.taking_turns}
        return next((how for how, nbytes in choices.items() if nbytes + self.overhead <= self.budget), "no")


@dataclass(frozen=True, slots=True)
class Variant:
    """The same request, one thing about it changed: what it is called, its seconds and its passes."""

    name: str
    seconds: Estimate
    passes: int


class PipelinePlan:
    """Everything that `ridgeline plan` says of a pipeline. Figures of stages are those of one card; the request is on
    `devices` of them.
    """

    def __init__(
        self,
        name: str,
        price: PipelinePrice,
        usual: PipelineDefaults,
        device: Device,
        asked: PipelineOptions,
        devices: int = 1,
        utilization: float = 0.9,
        *,
        eager: bool = False,
    ) -> None:
        """name: of a release of the catalogue. utilization: the share of a card's memory that may be used. eager:
        whether nothing is fused, as diffusers runs it without torch.compile. Raises ValueError for what cannot be
        asked.
        """
        if devices < 1:
            raise ValueError(f"devices is {devices}; it must be at least 1")
        if not 0 < utilization <= 1:
            raise ValueError(f"memory utilization is {utilization}; it must be above 0 and at most 1")
        self.name, self.price, self.usual, self.asked = name, price, usual, asked
        self.engine = load_engine(OWN_ENGINE)
        self.card, self.devices, self.utilization, self.eager = device, devices, utilization, eager
        self.unfused = unfused(name)
        if eager and self.unfused is None:
            raise ValueError(f"what {name} runs without fusion is not known; leave --eager out")
        self.steps = _positive(usual.steps if asked.steps is None else asked.steps, "--steps")
        self.scale = usual.guidance if asked.guidance is None else asked.guidance
        self.passes = guidance_of(usual.convention, self.scale, None).passes(1)
        frames = usual.frames if asked.frames is None else asked.frames
        self.geometry = usual.layout.geometry(asked.size or usual.size, frames)
        self.job = self._job(self.geometry, self.steps, self.passes)
        self.ways = self._ways(devices)
        if not self.ways:
            raise ValueError(
                f"{devices} cards are more than the attention of {name} has heads for; give fewer --devices"
            )

    def _job(self, geometry: Geometry, steps: int, passes: int) -> PipelineWorkload:
        count, texts = _positive(self.asked.count, "--count"), self.usual.texts(passes)
        return PipelineWorkload(geometry, steps, texts, count, self.usual.read(texts))

    def _ways(self, devices: int) -> dict[ParallelDegrees, RequestPrice]:
        """The request, divided in each way among so many cards, the fastest first."""
        device, ops = self.engine.on(self.card, devices), self.unfused if self.eager else None
        ways = self.price.divisions(self.job, devices)
        found = {each: self.price.on(device, self.job, None, each, ops) for each in ways}
        return dict(sorted(found.items(), key=lambda item: item[1].seconds.expected))

    @property
    def request(self) -> RequestPrice:
        """The request, divided in the way that is fastest."""
        return next(iter(self.ways.values()))

    @property
    def each(self) -> Estimate:
        """Seconds of a picture or a clip, of those that are asked for together."""
        return self.request.seconds * (1 / self.job.pictures)

    @property
    def parameters(self) -> Mapping[str, int]:
        """Of the parts, all denoisers together."""
        parts = self.price.parts
        networks = {"text encoders": parts.encoders, "denoisers": parts.denoisers}
        counts = {
            name: sum(op.parameter_count() for network in each for _, op in network.weighted_ops())
            for name, each in networks.items()
        }
        return counts | {"autoencoder": self.price.decoder.parameters}

    @property
    def beside_picture(self) -> ImageComparison | None:
        """A clip compared with a picture; None where a picture is asked for."""
        return ImageComparison.of(self.parameters["denoisers"], self.geometry) if self.geometry.frames > 1 else None

    @property
    def an_hour(self) -> Estimate:
        """Pictures or clips, one request after the other."""
        return self.each.per_second(_HOUR)

    @property
    def dollars(self) -> float | None:
        """For a picture or a clip at the expected rate; None where no price is known."""
        return None if self.card.price is None else self._dollars(self.each.expected, self.devices)

    def _dollars(self, seconds: float, devices: int) -> float:
        assert self.card.price is not None
        return self.card.price.dollars * devices * seconds / _HOUR

    @cached_property
    def fit(self) -> MemoryFit:
        """Whether a card's memory holds it."""
        memory, overhead = self.request.memory, self.engine.memory.overhead(self.card, self.devices)
        budget = self.card.memory * self.utilization
        return MemoryFit(memory.peak, memory.with_decode(memory.tiled), _in_turns(memory), overhead, budget)

    # -- what would change it -----------------------------------------------------------------------------------------

    @cached_property
    def fewer_steps(self) -> tuple[Variant, ...]:
        """Other numbers of steps, on one card."""
        return tuple(self._variant(f"{steps} steps", steps, self.passes) for steps in STEPS if steps != self.steps)

    @cached_property
    def guidance_off(self) -> Variant | None:
        """N passes for 2n; None where there is one pass a step already."""
        return self._variant("without guidance", self.steps, 1) if self.passes > 1 else None

    @cached_property
    def alone_request(self) -> RequestPrice:
        """The request on one card."""
        return self._alone(self.job)

    def _alone(self, job: PipelineWorkload) -> RequestPrice:
        return self.price.on(self.engine.on(self.card), job, eager=self.unfused if self.eager else None)

    @cached_property
    def otherwise(self) -> Variant | None:
        """The request with fusion where it was asked for without, else without; None where it was not recorded what a
        release runs without.
        """
        if self.unfused is None:
            return None
        ops, name = (None, "fused (compiled)") if self.eager else (self.unfused, "not fused (eager)")
        return Variant(name, self.price.on(self.engine.on(self.card), self.job, eager=ops).seconds, self.job.passes)

    @property
    def alone(self) -> Variant:
        """The request as it was asked, on one card."""
        return Variant("as asked", self.alone_request.seconds, self.job.passes)

    def _variant(self, name: str, steps: int, passes: int) -> Variant:
        job = self._job(self.geometry, steps, passes)
        return Variant(name, self._alone(job).seconds, job.passes)

    @cached_property
    def side_by_side(self) -> Mapping[int, float]:
        """Pictures in one pass, and how many times fewer seconds each then takes of the denoiser than alone."""
        device, text = self.engine.on(self.card), self.job.texts[0]
        alone = self.price.call(device, self.geometry, [text]).expected
        return {n: n * alone / self.price.call(device, self.geometry, [text] * n).expected for n in SIDE_BY_SIDE}

    @cached_property
    def cards(self) -> Mapping[int, dict[ParallelDegrees, RequestPrice]]:
        """The request on 1, 2, 4 and 8 cards, and on those asked for, in each way there is; on one where nothing joins
        them.
        """
        counts = sorted({1, 2, 4, 8, self.devices}) if self.card.link is not None else [1]
        return {count: ways for count in counts if (ways := self._ways(count))}

    def dollars_of(self, request: RequestPrice) -> float | None:
        """For a picture or a clip of a request that is divided otherwise; None where no price is known."""
        if self.card.price is None:
            return None
        return self._dollars(request.seconds.expected / self.job.pictures, request.division.cards)


def _in_turns(memory: PipelineMemory) -> float:
    """The most bytes of any stage, where only the part that runs is on the card; of two experts one at a time."""
    encoders = [nbytes for name, nbytes in memory.weights.items() if name.startswith("text encoder")]
    return max(
        max(encoders, default=0.0) + memory.encode,
        memory.weights["denoiser"] / memory.experts + memory.denoise,
        memory.weights["autoencoder"] + memory.decode,
    )


def _positive(value: int, option: str) -> int:
    """Raises ValueError."""
    if not 1 <= value <= 1000:
        raise ValueError(f"{option} is {value}; it must be from 1 to 1000")
    return value
