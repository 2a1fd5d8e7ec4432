"""The plan of a pipeline: the time, memory and cost of an image or a video on one or several GPUs, and alternatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ridgeline.media.diffusion.diffusion_parallel import ParallelDegrees
from ridgeline.media.diffusion.eager import unfused
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.guidance import make_guidance
from ridgeline.media.diffusion.image_comparison import ImageComparison
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults
from ridgeline.media.diffusion.pipeline_price import PipelineMemory, PipelinePrice, PipelineWorkload, RequestPrice
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import OWN_ENGINE, load_engine
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.plan.request_phases import Estimate

STEPS = (4, 8, 20, 28, 50)
"""The numbers of denoising steps to compare a plan with, typical of distilled and of other models."""
SIDE_BY_SIDE = (2, 4, 8)
"""The numbers of images per denoiser pass to compare a single image with."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The options of a pipeline's plan; None means the release's default."""

    size: Size | None = None
    """The requested width and height in pixels."""
    steps: int | None = None
    """The number of denoising steps."""
    guidance: float | None = None
    """The guidance scale, in the convention of the release."""
    frames: int | None = None
    """The number of frames of a video."""
    count: int = 1
    """The number of images or videos to plan."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of a request on one GPU in bytes, compared with the available memory."""

    resident: float
    """The peak bytes of a request if all parts stay in GPU memory."""
    tiled: float
    """The peak bytes of a request with a tiled decode (of an image) if all parts stay in GPU memory."""
    taking_turns: float
    """The peak bytes over the stages if each stage has only its own part in GPU memory."""
    overhead: float
    """The bytes of GPU memory used by the driver and libraries."""
    budget: float
    """The bytes of GPU memory that may be used."""

    @property
    def least(self) -> float:
        """The minimum bytes of GPU memory for the request, with the parts taking turns."""
        return self.overhead + self.taking_turns

    @property
    def verdict(self) -> str:
        """The way in which the request fits into GPU memory: yes, tiled (decode), in turns (one part), or no."""
        choices = {"yes": self.resident, "tiled": self.tiled, "in turns": self.taking_turns}
        return next((how for how, nbytes in choices.items() if nbytes + self.overhead <= self.budget), "no")


@dataclass(frozen=True, slots=True)
class Variant:
    """The planned request with one change: its name, seconds and passes."""

    name: str
    seconds: Estimate
    passes: int


class PipelinePlan:
    """The content of `ridgeline plan` for a pipeline.

    Figures of stages are per GPU; the request runs on `devices` GPUs.
    """

    def __init__(
        self,
        name: str,
        price: PipelinePrice,
        usual: PipelineDefaults,
        device: Device,
        options: PipelineOptions,
        devices: int = 1,
        utilization: float = 0.9,
        *,
        eager: bool = False,
    ) -> None:
        """Price a request to a pipeline.

        Args:
            name: Name of a release in the catalogue, or title of a folder.
            price: Price of the pipeline's parts.
            usual: Defaults of the pipeline.
            device: GPU to plan for.
            options: Options of the request.
            devices: Number of GPUs.
            utilization: Fraction of a GPU's memory that may be used.
            eager: Whether nothing is fused, as diffusers runs without torch.compile.

        Raises:
            ValueError: If an option is out of range or not supported.
        """
        if devices < 1:
            raise ValueError(f"devices is {devices}; it must be at least 1")
        if not 0 < utilization <= 1:
            raise ValueError(f"memory_utilization is {utilization}; it must be above 0 and at most 1")
        self.name, self.price, self.usual, self.options = name, price, usual, options
        self.engine = load_engine(OWN_ENGINE)
        self.device, self.devices, self.utilization, self.eager = device, devices, utilization, eager
        self.unfused = unfused(name)
        if eager and self.unfused is None:
            raise ValueError(f"the ops that {name} runs without fusion are not recorded: leave --eager out")
        self.steps = _positive(usual.steps if options.steps is None else options.steps, "--steps")
        self.scale = usual.guidance if options.guidance is None else options.guidance
        self.passes = make_guidance(usual.convention, self.scale, None).passes(1)
        frames = usual.frames if options.frames is None else options.frames
        self.geometry = usual.layout.geometry(options.size or usual.size, frames)
        self.job = self._job(self.geometry, self.steps, self.passes)
        self.ways = self._ways(devices)
        if not self.ways:
            raise ValueError(
                f"{devices} GPUs are more than the attention heads of {name} can be divided among: lower --devices"
            )

    def _job(self, geometry: Geometry, steps: int, passes: int) -> PipelineWorkload:
        count, texts = _positive(self.options.count, "--count"), self.usual.texts(passes)
        return PipelineWorkload(geometry, steps, texts, count, self.usual.read(texts))

    def _ways(self, devices: int) -> dict[ParallelDegrees, RequestPrice]:
        """Return the prices of the request divided among `devices` GPUs in each possible way, the fastest first."""
        device, ops = self.engine.on(self.device, devices), self.unfused if self.eager else None
        ways = self.price.divisions(self.job, devices)
        found = {each: self.price.on(device, self.job, None, each, ops) for each in ways}
        return dict(sorted(found.items(), key=lambda item: item[1].seconds.expected))

    @property
    def request(self) -> RequestPrice:
        """The price of the request, divided in the fastest way."""
        return next(iter(self.ways.values()))

    @property
    def each(self) -> Estimate:
        """The seconds per image or video: the time of the whole request divided by its number of images or videos."""
        return self.request.seconds * (1 / self.job.images)

    @cached_property
    def interval(self) -> ErrorInterval:
        """The interval in which 8 of 10 measured times of images or videos lie, for this device."""
        return self.price.interval(self.device)

    @property
    def parameters(self) -> Mapping[str, int]:
        """The parameter counts by part, with all denoisers together."""
        parts = self.price.parts
        networks = {"text encoders": parts.encoders, "denoisers": parts.denoisers}
        counts = {
            name: sum(op.parameter_count() for network in each for _, op in network.weighted_ops())
            for name, each in networks.items()
        }
        return counts | {"autoencoder": self.price.decoder.parameters}

    @property
    def image_comparison(self) -> ImageComparison | None:
        """The comparison of a video with an image; None for an image request."""
        return ImageComparison.of(self.parameters["denoisers"], self.geometry) if self.geometry.frames > 1 else None

    @property
    def an_hour(self) -> Estimate:
        """The images or videos per hour, with one request after the other."""
        return self.each.per_second(_HOUR)

    @property
    def dollars(self) -> float | None:
        """The dollars per image or video for its expected seconds; None if the GPU's price is unknown."""
        return None if self.device.price is None else self._dollars(self.each.expected, self.devices)

    @property
    def least_dollars(self) -> float:
        """The dollars per image or video at the physical limit; 0 if the GPU's price is unknown."""
        return 0.0 if self.device.price is None else self._dollars(self.each.floor, self.devices)

    def _dollars(self, seconds: float, devices: int) -> float:
        assert self.device.price is not None
        return self.device.price.dollars * devices * seconds / _HOUR

    @cached_property
    def fit(self) -> MemoryFit:
        """The memory of the request compared with the GPU's memory."""
        memory, overhead = self.request.memory, self.engine.memory.overhead(self.device, self.devices)
        budget = self.device.memory * self.utilization
        return MemoryFit(memory.peak, memory.with_decode(memory.tiled), _in_turns(memory), overhead, budget)

    # -- what would change it -----------------------------------------------------------------------------------------

    @cached_property
    def fewer_steps(self) -> tuple[Variant, ...]:
        """The planned request with other numbers of steps, on one GPU."""
        return tuple(self._variant(f"{steps} steps", steps, self.passes) for steps in STEPS if steps != self.steps)

    @cached_property
    def guidance_off(self) -> Variant | None:
        """The request without guidance, n passes instead of 2n; None if it already has one pass per step."""
        return self._variant("without guidance", self.steps, 1) if self.passes > 1 else None

    @cached_property
    def alone_request(self) -> RequestPrice:
        """The price of the request on one GPU."""
        return self._alone(self.job)

    def _alone(self, job: PipelineWorkload) -> RequestPrice:
        return self.price.on(self.engine.on(self.device), job, eager=self.unfused if self.eager else None)

    @cached_property
    def other_fusion(self) -> Variant | None:
        """The same request with fused ops if the plan has none, or the reverse; None without recorded ops."""
        if self.unfused is None:
            return None
        ops, name = (None, "fused (compiled)") if self.eager else (self.unfused, "not fused (eager)")
        return Variant(name, self.price.on(self.engine.on(self.device), self.job, eager=ops).seconds, self.job.passes)

    @property
    def on_one_gpu(self) -> Variant:
        """The planned request without changes on one GPU, as a baseline for changed ones."""
        return Variant("as requested", self.alone_request.seconds, self.job.passes)

    def _variant(self, name: str, steps: int, passes: int) -> Variant:
        job = self._job(self.geometry, steps, passes)
        return Variant(name, self._alone(job).seconds, job.passes)

    @cached_property
    def side_by_side(self) -> Mapping[int, float]:
        """The number of images per pass, with the factor by which each takes less denoiser time than alone."""
        device, text = self.engine.on(self.device), self.job.texts[0]
        alone = self.price.call(device, self.geometry, [text]).expected
        return {n: n * alone / self.price.call(device, self.geometry, [text] * n).expected for n in SIDE_BY_SIDE}

    @cached_property
    def by_gpu_count(self) -> Mapping[int, dict[ParallelDegrees, RequestPrice]]:
        """The request on 1, 2, 4, 8 and the requested number of GPUs, divided in each possible way.

        Without a link between the GPUs it has only one GPU.
        """
        counts = sorted({1, 2, 4, 8, self.devices}) if self.device.link is not None else [1]
        return {count: ways for count in counts if (ways := self._ways(count))}

    def dollars_of(self, request: RequestPrice) -> float | None:
        """Return the dollars per image or video for another division of the request; None without a GPU price."""
        if self.device.price is None:
            return None
        return self._dollars(request.seconds.expected / self.job.images, request.division.gpus)


def _in_turns(memory: PipelineMemory) -> float:
    """Return the peak bytes over the stages if only the running part is in GPU memory, and of two experts only one."""
    encoders = [nbytes for name, nbytes in memory.weights.items() if name.startswith("text encoder")]
    return max(
        max(encoders, default=0.0) + memory.encode,
        memory.weights["denoiser"] / memory.experts + memory.denoise,
        memory.weights["autoencoder"] + memory.decode,
    )


def _positive(value: int, option: str) -> int:
    """Return the value of a command-line option.

    Raises:
        ValueError: If it is not from 1 to 1000.
    """
    if not 1 <= value <= 1000:
        raise ValueError(f"{option} is {value}; it must be from 1 to 1000")
    return value
