"""The cost model with one-line queries: a model on a GPU, both given by name.

It returns the single figures that `ridgeline plan`, `trace` and `simulate` are based on: for the statements of `lab
numbers`, for experiments, and for the figures of the guide. The cost of a step is derived from the prices of its ops.
"""

from dataclasses import dataclass, replace

from ridgeline.core.checkpoint import open_source, read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, parameter_breakdown
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.learn.lab.load_simulation import USUAL, LoadOutcome, OneGpuReplica, RequestMix
from ridgeline.learn.lab.users_per_gpu import GpuUsers, users_on
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, build_on_meta
from ridgeline.media.diffusion.pipeline_plan import PipelineOptions, PipelinePlan
from ridgeline.media.diffusion.pipeline_price import PipelinePrice
from ridgeline.price.cold_start import ColdStart, Disk, cold_start, disks
from ridgeline.price.crossovers import (
    compute_bound_prompt,
    critical_batch,
    matrix_flops,
)
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, DeploymentPlan, PlanWorkload, make_plan
from ridgeline.price.price import Price

TEXTS_A100 = "a100"
"""The name of the A100 of textbooks, whose 80 GB have exactly 2 TB/s; the real GPU of that size has 2.039 TB/s."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of one engine step on a GPU: FLOPs, bytes, and seconds from the roofline and as expected."""

    flops: float
    """The FLOPs of the step."""
    nbytes: float
    """The bytes of weights and KV that the step reads and writes."""
    weights: float
    """The bytes of weights that the step reads."""
    kv: float
    """The bytes of KV that the step reads and writes."""
    arithmetic: float
    """The seconds of the step's matrix FLOPs at peak throughput."""
    memory: float
    """The seconds to move the step's weights and KV at full bandwidth."""
    floor: float
    """The minimum seconds of the step, which nothing can beat."""
    bound: float
    """The seconds of the step with a perfect kernel for every op: the roofline limits of all ops, summed."""
    expected: float
    """The predicted seconds of the step with the real efficiency and launches of its kernels, host included."""
    attention: float
    """The seconds of the attention ops within the step's bound."""

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOPs per byte."""
        return self.flops / self.nbytes


class CostCalculator:
    """A calculator of costs by the names of models and GPUs, which caches what it builds."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._prices: dict[str, Price] = {}
        self._gpus: dict[str, Device] = {}
        self._pipelines: dict[str, PipelinePrice] = {}
        self._served: dict[tuple[float, int, int, float], LoadOutcome] = {}

    # -- models -------------------------------------------------------------------------------------------------------

    def model(self, name: str) -> Model:
        """Return a model on the meta device."""
        if name not in self._models:
            self._models[name] = build(read_config(name))
        return self._models[name]

    def bill(self, name: str) -> ParameterBreakdown:
        """Return the parameter breakdown of a model."""
        return parameter_breakdown(self.model(name))

    def kv(self, name: str, heads: int | None = None) -> float:
        """Return the KV bytes per token over all layers; `heads` replaces the number of KV heads."""
        specs = [spec for spec in self.model(name).kv_specs if isinstance(spec, KVSpec)]
        return sum((spec if heads is None else replace(spec, heads=heads)).bytes_per_token for spec in specs)

    def kept(self, name: str, positions: int, encoded: int = 0) -> float:
        """Return the KV bytes of a request with `positions` positions and `encoded` positions in an encoder."""
        specs = [spec for spec in self.model(name).kv_specs if not spec.is_state]
        return sum(spec.slot_bytes * spec.slots(positions, encoded) for spec in specs)

    def touched(self, name: str, rows: int) -> float:
        """Return the mean number of experts per layer that `rows` tokens use if each picks at random."""
        return next(op.experts for _, op in self.model(name).ops() if op.experts is not None).expected_hits(rows)

    # -- cards --------------------------------------------------------------------------------------------------------

    def gpu(self, name: str) -> Device:
        """Return a GPU by its name; `a100` is that of textbooks."""
        if name not in self._gpus:
            is_texts = name == TEXTS_A100
            found = load_device("a100-sxm-80gb" if is_texts else name)
            self._gpus[name] = replace(found, bandwidth=2e12) if is_texts else found
        return self._gpus[name]

    # -- steps --------------------------------------------------------------------------------------------------------

    def price(self, name: str) -> Price:
        """Return a model's `Price`, the object that computes the FLOPs, bytes and seconds of any step.

        It is created at the first call and then reused.
        """
        if name not in self._prices:
            self._prices[name] = Price(self.model(name))
        return self._prices[name]

    def step(self, name: str, gpu: str, segments: list[StepSegment]) -> StepCost:
        """Return the cost of a step whose segments state each sequence's new positions and context."""
        device, price = self.gpu(gpu), self.price(name)
        found = price.price_step(device, Work.of(segments, price.reaches))
        cost = found.cost
        arithmetic = sum(flops / device.peak(number) for number, flops in matrix_flops(cost).items())
        attention = sum(row.time.bound * row.priced.count for row in found.rows if row.priced.op.kind == "attention")
        return StepCost(
            cost.total_flops, cost.memory_bytes, cost.weight_bytes, cost.kv_read_bytes + cost.kv_write_bytes,
            arithmetic, cost.memory_bytes / device.bandwidth_of(cost.memory_bytes),
            found.floor, found.bound, found.expected, attention,
        )  # fmt: skip

    def decode(self, name: str, gpu: str, users: int = 1, context: int = 1, encoded: int = 0) -> StepCost:
        """Return the cost of a decode step.

        Args:
            name: Model.
            gpu: GPU.
            users: Users in the batch.
            context: Context of each user, the new token included.
            encoded: Tokens of each user that an encoder has read.
        """
        return self.step(name, gpu, [StepSegment(1, context, encoded)] * users)

    def encode(self, name: str, gpu: str, tokens: int) -> StepCost:
        """Return the cost of encoding `tokens` tokens and running the decoder's first position."""
        return self.step(name, gpu, [StepSegment(1, 1, tokens, runs_encoder=True)])

    def verify(self, name: str, gpu: str, users: int, context: int, guesses: int) -> StepCost:
        """Return the cost of a decode step that also verifies `guesses` draft tokens of each user."""
        return self.step(name, gpu, [StepSegment(1 + guesses, context + guesses)] * users)

    def beside(self, name: str, gpu: str, users: int, context: int, tokens: int) -> StepCost:
        """Return the cost of a decode step that also runs another user's whole prompt of `tokens` tokens."""
        return self.step(name, gpu, [*[StepSegment(1, context)] * users, StepSegment(tokens, tokens)])

    def prefill(self, name: str, gpu: str, tokens: int) -> StepCost:
        """Return the cost of a whole prompt in one step."""
        return self.step(name, gpu, [StepSegment(tokens, tokens)])

    def request(self, name: str, gpu: str, tokens: int, answer: int) -> float:
        """Return the minimum seconds of a request with `answer` output tokens; the prefill gives the first of them."""
        decodes = (self.decode(name, gpu, 1, tokens + n).floor for n in range(1, answer))
        return self.prefill(name, gpu, tokens).floor + sum(decodes)

    def batching(self, name: str, gpu: str, users: int, context: int) -> float:
        """Return the throughput of `users` users in one batch relative to that of a single user."""
        return users * self.decode(name, gpu, 1, context).floor / self.decode(name, gpu, users, context).floor

    # -- where it turns -----------------------------------------------------------------------------------------------

    def critical_batch(self, name: str, gpu: str, context: int = 1) -> float | None:
        """Return the number of users at which a decode step becomes compute-bound; None if no number is enough."""
        return critical_batch(self.price(name), self.gpu(gpu), context)

    def never_from(self, name: str, gpu: str) -> int:
        """Return the shortest context in tokens at which decode stays memory-bound with any number of users.

        The model must be compute-bound with some number of users at a context of 1.
        """
        some, none = 1, 2
        while self.critical_batch(name, gpu, none) is not None:
            some, none = none, 2 * none
        while none - some > 1:
            between = (some + none) // 2
            some, none = (some, between) if self.critical_batch(name, gpu, between) is None else (between, none)
        return none

    def endless_batch(self, name: str, gpu: str, context: int) -> float:
        """Return the FLOPs per byte that decode approaches as the batch grows.

        It is each user's own FLOPs divided by its own KV bytes.
        """
        one = self.decode(name, gpu, 1, context)
        return one.flops / one.kv

    def compute_bound_prompt(self, name: str, gpu: str) -> int | None:
        """Return the prompt length from which on a prefill is compute-bound; None if there is none."""
        return compute_bound_prompt(self.price(name), self.gpu(gpu))

    # -- plans --------------------------------------------------------------------------------------------------------

    def users(self, name: str, gpu: str, context: int) -> GpuUsers:
        """Return the number of users with a given context on one GPU, with every subtraction from its memory."""
        return users_on(name, self.gpu(gpu), 1, context)

    def plan(
        self, name: str, gpu: str, tokens: int = 1024, answer: int = 256, gpus: int = 1, weights: str | None = None
    ) -> DeploymentPlan:
        """Return the plan of `ridgeline plan` for requests with `tokens` input and `answer` output tokens."""
        source = open_source(name)
        setup = Deployment(self.gpu(gpu), gpus, weights=weights)
        return make_plan(source.title, source.config, setup, PlanWorkload(input=tokens, output=answer), ())

    def cold(self, name: str, gpu: str, disk: str = "", gpus: int = 1) -> ColdStart:
        """Return the time to load a model onto each of `gpus` GPUs, from a disk or from the page cache.

        `disk` is the name of a disk in the catalogue; "" is the page cache.
        """
        nbytes = self.bill(name).nbytes
        return cold_start(nbytes, nbytes / gpus, self.disk(disk) if disk else None, self.gpu(gpu).host_link)

    def disk(self, name: str) -> Disk:
        """Return a disk of the catalogue by its name."""
        return next(each for each in disks() if each.name == name)

    def served(
        self, rate: float, budget: int = 2048, count: int = USUAL.count, burstiness: float = USUAL.burstiness
    ) -> LoadOutcome:
        """Return the simulated outcome of requests to an 8B model on an H100, as used by the experiments on load."""
        load = (rate, budget, count, burstiness)
        if load not in self._served:
            self._served[load] = OneGpuReplica(budget=budget).serve(
                rate, RequestMix(count=count, burstiness=burstiness)
            )
        return self._served[load]

    def image_plan(self, name: str, gpu: str = "h100-sxm", steps: int | None = None) -> PipelinePlan:
        """Return the plan of `ridgeline plan` for a diffusion pipeline, in its release's size.

        The steps are those of the release unless `steps` is given.
        """
        source = open_source(name)
        if name not in self._pipelines:
            self._pipelines[name] = PipelinePrice(build_on_meta(source))
        return PipelinePlan(
            name, self._pipelines[name], PipelineDefaults.of(source), self.gpu(gpu), PipelineOptions(steps=steps)
        )

    def attention_of_a_pass(self, name: str) -> float:
        """Return the share of attention in the FLOPs of a denoiser pass."""
        return self.image_plan(name).alone_request.denoise.attention
