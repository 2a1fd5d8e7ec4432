"""The plan of a deployment: all figures that follow from a model, a device and a workload."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.core.models import Fields
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, parameter_breakdown
from ridgeline.core.models.rope_override import offer_longer_context, offered_rope
from ridgeline.price.cold_start import ColdStart, Disk, cold_start, disks
from ridgeline.price.crossovers import compute_bound_prompt, context_where_kv_outweighs_weights, critical_batch
from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval, Kind, factors_on_cost
from ridgeline.price.plan.alternatives import (
    DEVICES,
    CaseOutcome,
    Change,
    batch_lever,
    catalogue_outcomes,
    device_levers,
    levers,
    narrower_levers,
    outcome_of,
    sensitivities,
    ways_to_fit,
)
from ridgeline.price.plan.batch_job import JobRun
from ridgeline.price.plan.demand import Demand, ReplicaCount, SimulatedQueue, fleet_for, fleet_of
from ridgeline.price.plan.device_memory import DeviceMemory, WeightsRow, weights_table
from ridgeline.price.plan.engine_difference import note_without_difference
from ridgeline.price.plan.load_estimate import LoadEstimate, LoadEstimator, SweepRow, UserCapacity, batch_sweep
from ridgeline.price.plan.plan_audio import AudioWorkload, audio_workload
from ridgeline.price.plan.request_phases import (
    Estimate,
    PhasePrice,
    decode_phase,
    decoder_phases,
    price_phase,
    request_seconds,
)
from ridgeline.price.plan.scenario import AddAdapters, Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.price.plan.score_matrix import ScoresRow, score_rows
from ridgeline.util.document.humanize import gb, gib, say_gb, say_gib

_STATED_WITHIN = 0.01  # relative tolerance: norms and scales of another width account for less


@dataclass(frozen=True, slots=True)
class Crossings:
    """The points at which the model on this device changes regime; None for those that it never reaches."""

    critical_batch: float | None
    """The batch size, over all devices, from which decode at the average context length is compute-bound."""
    compute_bound_prompt: int | None
    """The prompt length from which prefill is compute-bound."""
    kv_outweighs_weights: int | None
    """The context length from which a decode step of one sequence per rank reads more KV than weights."""


class DeploymentPlan:
    """The data behind `ridgeline plan`, each part computed when it is first used.

    A short summary need not wait for the tables. All figures of a phase are those of one device.
    """

    def __init__(
        self,
        name: str,
        models: ModelCache,
        serving: LoadEstimator,
        others: Sequence[Device],
        demand: Demand,
        stated_bytes: int | None = None,
        batches: Sequence[int] = (),
        queue: SimulatedQueue | None = None,
    ) -> None:
        """Create a plan; nothing is computed yet.

        Args:
            name: The name of the model.
            models: The cache of priced models.
            serving: The estimator of the deployment under load.
            others: The devices that the plan may suggest instead, at prices of the same seller as the deployment's.
            demand: The load to serve, which may be empty.
            stated_bytes: The weight bytes that the checkpoint states; None if it does not.
            batches: The batch sizes of the sweep; empty for powers of two.
            queue: The simulated demand; None for even arrivals.
        """
        self.stated_bytes, self.batches, self.queue = stated_bytes, tuple(batches), queue
        self.name, self.models, self.serving = name, models, serving
        self.others, self.demand = tuple(others), demand
        self.case, self.workload = serving.case, serving.workload

    def with_queue(self, queue: SimulatedQueue) -> "DeploymentPlan":
        """Return the plan whose replicas are those of a simulated demand."""
        return DeploymentPlan(
            self.name, self.models, self.serving, self.others, self.demand, self.stated_bytes, self.batches, queue
        )

    @property
    def engine(self) -> str:
        """The engine's name, under which accuracy measurements are filed."""
        return self.case.setup.engine.name

    @cached_property
    def intervals(self) -> dict[Kind, ErrorInterval]:
        """The intervals of predictions by the kind of figure, for this device, engine and weight format."""
        return self.case.intervals

    @property
    def tokens_per_second(self) -> float:
        """The output tokens per second of the reported load, of all replicas together."""
        return self.capacity.load.tokens_per_second.expected if self.fleet is None else self.fleet.tokens_per_second

    @property
    def tokens_interval(self) -> tuple[float, float]:
        """The interval of `tokens_per_second`, which ends at the physical limit.

        A stated rate of requests is the upper end too: no machine emits more tokens than are asked for. It is served as
        it comes, unless the replicas are overloaded where the times are long. A whole run at a rate is simulated at
        both ends, because its drain takes longer with slow steps.
        """
        if self.queue is not None and self.queue.tokens_interval is not None:
            return self.queue.tokens_interval
        around, tokens, fleet = self.intervals["load"], self.tokens_per_second, self.fleet
        if fleet is None:
            return around.around_rate(tokens, self.reported_load.tokens_per_second.floor)
        low, high = around.around_rate(tokens, fleet.replicas * fleet.load.tokens_per_second.floor)
        if self.demand.rate is None:
            return low, high
        full = max(load.tokens_per_second.expected for load in (self.capacity.load, self.fullest))
        low = min(tokens, fleet.replicas * full / around.high)
        return low, max(tokens, min(high, self.demand.rate * self.workload.output))

    @cached_property
    def users_interval(self) -> tuple[int, int]:
        """The users within the targets if times are at the upper and at the lower end of their interval."""
        most, least = (self.serving.users_within(self.intervals["load"], end) for end in (0, 1))
        return least, most

    @property
    def cost_factors(self) -> tuple[float, float]:
        """The factors on the cost and the energy of a token between which 8 of 10 measurements lie.

        Both fall as the tokens per second rise.
        """
        if self.job is not None:
            return self.job.cost_factors(self.intervals["load"])
        return factors_on_cost(self.tokens_per_second, self.tokens_interval)

    # -- the model and its memory -------------------------------------------------------------------------------------

    @cached_property
    def whole(self) -> ParameterBreakdown:
        """The parameter breakdown of the undivided model."""
        return parameter_breakdown(self.models.whole(self.case.setup).model)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The remarks on how the model is stored and on the engine, one sentence each."""
        remarks = self._note_on_size(), note_without_difference(self.case, self.workload, self.phases)
        return (*self.case.notes, *filter(None, remarks))

    def _note_on_size(self) -> str:
        stated = self.stated_bytes
        if stated is None or self.case.setup.weights is not None:
            return ""
        counted = self.whole.nbytes
        if abs(counted / stated - 1) <= _STATED_WITHIN:
            return ""
        differ = f"{say_gb(gb(counted))} of weights, but the checkpoint's index states {say_gb(gb(stated))}"
        return f"the plan counts {differ}: config.json does not fully describe how they are stored"

    @cached_property
    def weights(self) -> tuple[WeightsRow, ...]:
        """The weights of one device by part and format."""
        return tuple(weights_table(self.case))

    @property
    def memory(self) -> DeviceMemory:
        """The memory budget of one device."""
        return self.serving.memory

    @cached_property
    def ways(self) -> tuple[Deployment, ...]:
        """The deployments on which the model would fit; empty if it already fits."""
        return () if self.memory.fits else tuple(ways_to_fit(self.models, self.case.setup, self.workload))

    # -- the workload's batch, asking at once -------------------------------------------------------------------------

    @cached_property
    def phases(self) -> tuple[PhasePrice, ...]:
        """The priced phases (prefill and decode) of the workload's batch, started at once."""
        priced = (price_phase(self.case.price, self.case.device, p) for p in decoder_phases(self.case, self.workload))
        return tuple(priced)

    @property
    def prefill(self) -> PhasePrice:
        """The price of the prefill, which emits the first token of each request."""
        return self.phase("prefill")

    @property
    def decode(self) -> PhasePrice:
        """The price of the decode steps, each of which emits one more token per request."""
        return self.phase("decode")

    def phase(self, name: str) -> PhasePrice:
        """Return the price of the request phase called `name`, such as "prefill"."""
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def request(self) -> Estimate:
        """The seconds until the workload's batch, started at once, has all its tokens."""
        return request_seconds(self.phases)

    @cached_property
    def loading(self) -> Mapping[str, ColdStart]:
        """The loading times of the checkpoint from the page cache and from each disk, by the name of the source."""
        device = self.case.setup.device
        own = 0.0 if device.kind == "cpu" else self.memory.weights
        places: dict[str, Disk | None] = {"the page cache": None} | {disk.title: disk for disk in disks()}
        return {name: cold_start(self.whole.nbytes, own, disk, device.host_link) for name, disk in places.items()}

    @cached_property
    def crossings(self) -> Crossings:
        """The points at which the model becomes compute-bound or reads more KV than weights."""
        price, device, encoded = self.case.price, self.case.device, self.workload.encoded
        batch = critical_batch(price, device, self.workload.context, encoded)
        return Crossings(
            None if batch is None else batch * self.case.ranks,
            compute_bound_prompt(price, device, self.case.prompt),
            context_where_kv_outweighs_weights(price, encoded=encoded),
        )

    @property
    def audio(self) -> AudioWorkload | None:
        """The seconds of audio per request and the tokens they yield; None if the model reads no audio."""
        return audio_workload(self.case.model, self.workload)

    @cached_property
    def scores(self) -> tuple[ScoresRow, ...]:
        """The price of attention with and without its score matrix in memory, by prompt length."""
        return tuple(score_rows(self.case))

    @cached_property
    def sweep(self) -> tuple[SweepRow, ...]:
        """The performance of decode steps by batch size."""
        return tuple(batch_sweep(self.serving, self.batches))

    # -- under load ---------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> UserCapacity:
        """The maximum number of users that memory, step size and latency targets allow."""
        return self.serving.capacity

    @cached_property
    def load(self) -> LoadEstimate:
        """The performance if the workload's batch is the number of concurrent users."""
        return self.serving.load(self.workload.batch)

    @cached_property
    def fullest(self) -> LoadEstimate:
        """The performance with as many users as memory and one step hold, regardless of targets; at least one user."""
        return self.serving.load(max(1, self.memory.users))

    @cached_property
    def fleet(self) -> ReplicaCount | None:
        """The replicas for the demand; None if there is no demand or it cannot be served.

        They are for even arrivals unless the plan has a simulated queue.
        """
        if self.queue is not None:
            return self.queue.fleet
        return fleet_for(self.serving, self.demand) if self.demand else None

    @cached_property
    def replicas_as_predicted(self) -> int | None:
        """The replicas for the demand by formula if times are as predicted; None unless the plan is pessimistic."""
        if not self.demand.pessimistic:
            return None
        found = fleet_for(self.serving, replace(self.demand, pessimistic=False))
        return None if found is None else found.replicas

    @property
    def job(self) -> JobRun | None:
        """The batch job on the replicas of the plan; None for other loads, and if it cannot be done in time."""
        return None if self.fleet is None else self.fleet.job

    @cached_property
    def reported_load(self) -> LoadEstimate:
        """The performance under load that the summary of the plan reports.

        This is that of the fullest replica if a demand was given, otherwise of the most users within the targets, or of
        one user if there is no capacity.
        """
        return self.fleet.load if self.fleet is not None else self.capacity.load

    @property
    def users_at_a_time(self) -> int:
        """The requests that run on the fullest replica on average; for a simulated rate by Little's law."""
        queue, demand = self.queue, self.demand
        if queue is None or demand.rate is None or demand.requests is not None:
            return self.reported_load.users
        seconds = queue.ttft + (self.workload.output - 1) * (queue.tpot or 0.0)
        return max(1, round(demand.rate / queue.fleet.replicas * seconds))

    @property
    def tokens_per_user(self) -> float:
        """The output tokens per second that each user of the reported load gets after the first token."""
        if self.queue is not None and self.queue.tpot:
            return 1 / self.queue.tpot
        return self.reported_load.tokens_per_user.expected

    @cached_property
    def even_tokens_per_second(self) -> float:
        """The output tokens per second of all replicas for the demand, if arrivals are evenly spaced."""
        assert self.fleet is not None, "there is no demand"
        return fleet_of(self.serving, self.demand, self.fleet.replicas).tokens_per_second

    @cached_property
    def workload_decode(self) -> PhasePrice:
        """The price of a decode step with the number of users that the summary reports."""
        own = self.case.requests_per_rank(self.users_at_a_time)
        phase = decode_phase(self.case, own, self.workload.context, encoded=self.workload.encoded)
        return price_phase(self.case.price, self.case.device, phase)

    # -- what could be different --------------------------------------------------------------------------------------

    @cached_property
    def outcome(self) -> CaseOutcome:
        """The users, latency, throughput and cost of the plan as requested, which alternatives are compared with."""
        return outcome_of(self.serving)

    @cached_property
    def batching(self) -> Change | None:
        """The effect of as many users as possible instead of the given batch; None if they are not more."""
        return batch_lever(self.serving, self.outcome)

    @cached_property
    def narrower(self) -> tuple[Change, ...]:
        """The changes to narrower weights down to 8 bits, the widest first, and to 8-bit KV."""
        return tuple(narrower_levers(self.models, self.serving, self.outcome))

    @cached_property
    def other_devices(self) -> tuple[Change, ...]:
        """The effects of switching to the fastest or the cheapest of the other devices, if that is an improvement."""
        outcomes = catalogue_outcomes(self.models, self.serving, self.others)
        return tuple(device_levers(outcomes, self.outcome))

    @cached_property
    def cheaper_device(self) -> Change | None:
        """The change to the device of the same seller with the cheapest tokens, if they are cheaper than the plan's.

        It only evaluates devices with a price, since the summary needs it and the catalogue is long.
        """
        priced = [device for device in self.others if device.price is not None]
        outcomes = catalogue_outcomes(self.models, self.serving, priced)
        changes = [change for change in device_levers(outcomes, self.outcome) if change.cost is not None]
        best = min(changes, key=lambda change: change.cost or 1.0, default=None)
        return best if best is not None and (best.cost or 1.0) < 1 else None

    @cached_property
    def levers(self) -> tuple[Change, ...]:
        """The possible changes to the deployment, including other devices. Each kind begins with the most useful."""
        own = levers(self.models, self.serving, self.outcome)
        return (*sorted(own, key=lambda change: change.benefit, reverse=True), *self.other_devices)

    @cached_property
    def sensitivities(self) -> tuple[Change, ...]:
        """The effects of doubling one resource of the device."""
        return tuple(sensitivities(self.models, self.serving, self.outcome))

    @property
    def dollars_per_million(self) -> float | None:
        """The dollars per million output tokens, for the demand if it can be served, otherwise at the most users.

        It is None without a price, or if no user can be served.
        """
        return self.outcome.dollars_per_million if self.fleet is None else self.fleet.dollars_per_million

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """The most kWh per million output tokens, under the load that `dollars_per_million` is for.

        It is None if the power limit of the device is unknown, or if no user can be served.
        """
        return self.outcome.kwh_per_million_tokens if self.fleet is None else self.fleet.kwh_per_million_tokens


def make_plan(
    name: str,
    fields: Fields,
    setup: Deployment,
    workload: PlanWorkload,
    others: Sequence[Device],
    demand: Demand | None = None,
    stated_bytes: int | None = None,
    batches: Sequence[int] = (),
    add_adapters: AddAdapters | None = None,
) -> DeploymentPlan:
    """Plan the deployment of a model.

    Args:
        name: The name of the model.
        fields: The model's config.
        setup: The deployment.
        workload: The requests.
        others: The devices that the plan may suggest instead.
        demand: The load to serve; None for none.
        stated_bytes: The weight bytes that the checkpoint states; None if it does not.
        batches: The batch sizes of the sweep; empty for powers of two.
        add_adapters: Adds LoRA adapters to the model.

    Raises:
        ModelRefused: If the model cannot be built or split in this way.
        ValueError: If this number of devices is not supported, if the model cannot read the workload's images, or if
            the model's context, a step or the memory cannot hold the workload.
    """
    check_devices(setup)
    models = ModelCache(fields, add_adapters)
    case = models.scenario(setup)
    workload = workload.of(case.model)
    check_context(case, workload, fields)
    serving = LoadEstimator(case, workload)
    _check_batch(serving)
    return DeploymentPlan(name, models, serving, others, demand or Demand(), stated_bytes, batches)


def check_devices(setup: Deployment) -> None:
    """Raise ValueError for more devices than are priced, or for several devices without a known link."""
    if setup.devices > max(DEVICES):
        raise ValueError(
            f"the number of devices is {setup.devices}; a plan covers one machine, with up to {max(DEVICES)}"
        )
    if setup.devices > 1 and setup.device.link is None:
        raise ValueError(
            f"the catalogue has no link of {setup.device.name}; give a device file with `link`, or one device"
        )


def check_context(case: Scenario, workload: PlanWorkload, fields: Fields) -> None:
    """Raise ValueError for requests that exceed the model's context, or whose images do not fit the model or input.

    Args:
        case: The deployment.
        workload: The requests.
        fields: The model's config, which says whether --rope can extend the context.
    """
    if workload.encoded > case.model.encoder_context:
        raise ValueError(
            f"the input has {workload.encoded:,} tokens, but the model's encoder accepts "
            f"{case.model.encoder_context:,}; give --input {case.model.encoder_context} or less"
        )
    if workload.images and not case.image_rows:
        raise ValueError("the model reads no images; leave out --images")
    if workload.images * case.image_rows > workload.input:
        places = workload.images * case.image_rows
        raise ValueError(
            f"{workload.images:,} images are {places:,} tokens of input, but --input is {workload.input:,}; give "
            f"--input {places} or more, or fewer --images"
        )
    if workload.tokens > (context := case.model.context):
        output = max(1, context * workload.output // workload.tokens)
        fitting = f", for example, --input {context - output} --output {output}"
        if workload.encoded or workload.images:  # --input has a length of its own then
            fitting = " a shorter --input or --output"
        raise ValueError(
            f"{workload.input:,} tokens of input and {workload.output:,} of output are {workload.tokens:,}, but the "
            f"model's context is {context:,}; give{fitting}{_longer_context(fields, workload)}"
        )


def _longer_context(fields: Fields, workload: PlanWorkload) -> str:
    """Return a suggestion of a scaled context that holds the requests; "" if the model's context cannot be scaled."""
    offered = offered_rope(fields, workload.tokens)
    if offered is None:
        return ""
    override, original = offered
    how = offer_longer_context(fields, workload.tokens)
    whole = math.floor(override.factor)
    left = whole * original - workload.output
    # A prompt of 128k and its output exceed 4 x 32k by the output only.
    if whole > 1 and whole < override.factor and 0 < workload.input - left <= workload.output:
        how += f", or with --rope yarn:{whole} and --input {left}"
    return how


def _check_batch(serving: LoadEstimator) -> None:
    """Raise ValueError if the batch exceeds a step or the memory of a device that the model itself fits on."""
    memory, batch, step = serving.memory, serving.workload.batch, serving.workload.step_tokens
    if not memory.fits or serving.batch_fits:
        return
    own = serving.case.requests_per_rank(batch)
    if batch <= memory.at_end:
        each = f", {own:,} per device," if own < batch else ""
        raise ValueError(f"a batch of {batch:,}{each} exceeds a step of {step:,} tokens; raise --max-batch-tokens")
    wanted, held = own * memory.request_bytes, memory.pages * memory.page_bytes
    raise ValueError(
        f"a batch of {batch:,} does not fit: with {serving.workload.tokens:,} tokens each it needs "
        f"{say_gib(gib(wanted))} of KV per device, {say_gib(gib(wanted - held))} more than the {say_gib(gib(held))} "
        f"that are left; at most {memory.at_end:,} fit"
    )
