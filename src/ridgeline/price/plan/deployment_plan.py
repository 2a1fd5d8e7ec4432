"""The plan: a model, a card and a workload become every figure that one decides by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ridgeline.core.models import Fields
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, bill
from ridgeline.price.cold_start import ColdStart, Disk, cold_start, disks
from ridgeline.price.crossovers import compute_bound_prompt, context_where_kv_outweighs_weights, critical_batch
from ridgeline.price.device import Device
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
from ridgeline.price.plan.demand import Demand, ReplicaCount, fleet_for
from ridgeline.price.plan.device_memory import DeviceMemory, WeightsRow, weights_table
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
from ridgeline.price.plan.scenario import Beside, Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.price.plan.score_matrix import ScoresRow, score_rows
from ridgeline.price.plan.trust import Trust, classes_of
from ridgeline.util.document.humanize import gb, gib, say_gb, say_gib

_STATED_WITHIN = 0.01  # of what a checkpoint's index states: norms and scales of another width take less


@dataclass(frozen=True, slots=True)
class Crossings:
    """Where the model on this card turns; None where it never does.

    critical_batch: from which decode at the running context is compute-bound, on all cards. compute_bound_prompt: from
    which prefill is. kv_outweighs_weights: context from which a decode step of one sequence, of one a rank where ranks
    have requests of their own, reads more KV than weights.
    """

    critical_batch: float | None
    compute_bound_prompt: int | None
    kv_outweighs_weights: int | None


class DeploymentPlan:
    """Everything that `ridgeline plan` says, each part priced when it is first asked for: an answer of fifteen lines
    need not wait for the tables. All figures of a phase are those of one card.
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
    ) -> None:
        """others: cards that levers may name, at prices of the one seller whose price the setup has. stated_bytes: what
        the checkpoint says that its weights take, None where it does not. batches: those whose decode steps are asked
        for beside the workload's; none for a sweep of powers of two.
        """
        self.stated_bytes, self.batches = stated_bytes, tuple(batches)
        self.name, self.models, self.serving = name, models, serving
        self.others, self.demand = tuple(others), demand
        self.case, self.workload = serving.case, serving.workload

    @property
    def engine(self) -> str:
        """The engine's name, by which its measurements go."""
        return self.case.setup.engine.name

    @cached_property
    def trust(self) -> tuple[Trust, ...]:
        """What is known of the card under that engine, class by class."""
        return tuple(classes_of(self.case.setup.device.name, self.engine, self.case.setup.devices))

    # -- the model and its memory -------------------------------------------------------------------------------------

    @cached_property
    def whole(self) -> ParameterBreakdown:
        """The parameter bill of the undivided model."""
        return bill(self.models.whole(self.case.setup).model)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of how the model is stored, a sentence each."""
        stated = self.stated_bytes
        if stated is None or self.case.setup.weights is not None:
            return self.case.notes
        counted = self.whole.nbytes
        if abs(counted / stated - 1) <= _STATED_WITHIN:
            return self.case.notes
        differ = f"{say_gb(gb(counted))} of weights where the checkpoint's index states {say_gb(gb(stated))}"
        return (*self.case.notes, f"the plan prices {differ}: config.json does not say all of how they are stored")

    @cached_property
    def weights(self) -> tuple[WeightsRow, ...]:
        """Where the weights of one card are."""
        return tuple(weights_table(self.case))

    @property
    def memory(self) -> DeviceMemory:
        """Subtraction by subtraction."""
        return self.serving.memory

    @cached_property
    def ways(self) -> tuple[Deployment, ...]:
        """What would make it fit, where it does not."""
        return () if self.memory.fits else tuple(ways_to_fit(self.models, self.case.setup, self.workload))

    # -- the workload's batch, asking at once -------------------------------------------------------------------------

    @cached_property
    def phases(self) -> tuple[PhasePrice, ...]:
        """The parts of a request."""
        priced = (price_phase(self.case.price, self.case.device, p) for p in decoder_phases(self.case, self.workload))
        return tuple(priced)

    @property
    def prefill(self) -> PhasePrice:
        """The phase that emits the first token."""
        return self.phase("prefill")

    @property
    def decode(self) -> PhasePrice:
        """A step that emits another one."""
        return self.phase("decode")

    def phase(self, name: str) -> PhasePrice:
        """The phase called `name`."""
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def request(self) -> Estimate:
        """Seconds until the workload's batch, asking at once, has all its tokens."""
        return request_seconds(self.phases)

    @cached_property
    def loading(self) -> Mapping[str, ColdStart]:
        """Loading the checkpoint from the page cache and from each disk, by what it is called."""
        device = self.case.setup.device
        own = 0.0 if device.kind == "cpu" else self.memory.weights
        places: dict[str, Disk | None] = {"the page cache": None} | {disk.title: disk for disk in disks()}
        return {name: cold_start(self.whole.nbytes, own, disk, device.host_link) for name, disk in places.items()}

    @cached_property
    def crossings(self) -> Crossings:
        """Where it turns."""
        price, device, encoded = self.case.price, self.case.device, self.workload.encoded
        batch = critical_batch(price, device, self.workload.context, encoded)
        return Crossings(
            None if batch is None else batch * self.case.ranks,
            compute_bound_prompt(price, device, self.case.prompt),
            context_where_kv_outweighs_weights(price, encoded=encoded),
        )

    @property
    def sound(self) -> AudioWorkload | None:
        """The windows of sound that requests are; None where the model reads none."""
        return audio_workload(self.case.model, self.workload)

    @cached_property
    def scores(self) -> tuple[ScoresRow, ...]:
        """Attention with its score matrix and without, by length of the prompt."""
        return tuple(score_rows(self.case))

    @cached_property
    def sweep(self) -> tuple[SweepRow, ...]:
        """Decode by batch."""
        return tuple(batch_sweep(self.serving, self.batches))

    # -- under load ---------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> UserCapacity:
        """The most users within the targets."""
        return self.serving.capacity

    @cached_property
    def load(self) -> LoadEstimate:
        """The workload's batch as users under way."""
        return self.serving.load(self.workload.batch)

    @cached_property
    def fullest(self) -> LoadEstimate:
        """As many users as memory and a step hold, whatever they wait; of one where there is room for none."""
        return self.serving.load(max(1, self.memory.users))

    @cached_property
    def fleet(self) -> ReplicaCount | None:
        """The replicas for the demand; None where there is none, or none that can be served."""
        return fleet_for(self.serving, self.demand) if self.demand else None

    @cached_property
    def asked(self) -> LoadEstimate:
        """The users that the answer is about: those of the fullest replica where a demand was given, else the most
        within the targets; one where there is not one.
        """
        return self.fleet.load if self.fleet is not None else self.capacity.load

    @cached_property
    def asked_decode(self) -> PhasePrice:
        """A decode step of those users."""
        own = self.case.on_each(self.asked.users)
        phase = decode_phase(self.case, own, self.workload.context, encoded=self.workload.encoded)
        return price_phase(self.case.price, self.case.device, phase)

    # -- what could be different --------------------------------------------------------------------------------------

    @cached_property
    def outcome(self) -> CaseOutcome:
        """The plan as asked, in the figures that alternatives are compared by."""
        return outcome_of(self.serving)

    @cached_property
    def batching(self) -> Change | None:
        """From the workload's batch to the most users."""
        return batch_lever(self.serving, self.outcome)

    @cached_property
    def narrower(self) -> tuple[Change, ...]:
        """Weights and KV in fewer bits, the widest of them first."""
        return tuple(narrower_levers(self.models, self.serving, self.outcome))

    @cached_property
    def other_cards(self) -> tuple[Change, ...]:
        """The fastest and the cheapest of the other cards."""
        outcomes = catalogue_outcomes(self.models, self.serving, self.others)
        return tuple(device_levers(outcomes, self.outcome))

    @cached_property
    def cheaper_card(self) -> Change | None:
        """The card of the same seller with the cheapest tokens, if they are cheaper than the plan's. Asks about cards
        that have a price alone: it is a part of the answer, and the catalogue is long.
        """
        priced = [device for device in self.others if device.price is not None]
        outcomes = catalogue_outcomes(self.models, self.serving, priced)
        changes = [change for change in device_levers(outcomes, self.outcome) if change.cost is not None]
        best = min(changes, key=lambda change: change.cost or 1.0, default=None)
        return best if best is not None and (best.cost or 1.0) < 1 else None

    @cached_property
    def levers(self) -> tuple[Change, ...]:
        """Everything that could be different about the setup."""
        return (*levers(self.models, self.serving, self.outcome), *self.other_cards)

    @cached_property
    def sensitivities(self) -> tuple[Change, ...]:
        """The same card with twice of one thing."""
        return tuple(sensitivities(self.models, self.serving, self.outcome))

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars for a million tokens of output: of the demand where one was given, else at the most users."""
        return self.outcome.dollars_per_million if self.fleet is None else self.fleet.dollars_per_million


def make_plan(
    name: str,
    fields: Fields,
    setup: Deployment,
    workload: PlanWorkload,
    others: Sequence[Device],
    demand: Demand | None = None,
    stated_bytes: int | None = None,
    batches: Sequence[int] = (),
    beside: Beside | None = None,
) -> DeploymentPlan:
    """Plan a model, called `name`, on a setup.

    others, stated_bytes, batches: as of `DeploymentPlan`. beside: as of ModelCache. Raises ModelRefused for a model
    that cannot be built or divided so, ValueError for a workload that the model or the memory cannot take.
    """
    check_devices(setup)
    models = ModelCache(fields, beside)
    case = models.case(setup)
    workload = workload.of(case.model)
    check_context(case, workload)
    serving = LoadEstimator(case, workload)
    _check_batch(serving)
    return DeploymentPlan(name, models, serving, others, demand or Demand(), stated_bytes, batches)


def check_devices(setup: Deployment) -> None:
    """Raises ValueError for more cards than are priced, or more than nothing known joins."""
    if setup.devices > max(DEVICES):
        raise ValueError(f"devices is {setup.devices}; one machine's are priced, up to {max(DEVICES)}")
    if setup.devices > 1 and setup.device.link is None:
        raise ValueError(
            f"the catalogue knows no link of {setup.device.name}; give a card file with `link`, or one card"
        )


def check_context(case: Scenario, workload: PlanWorkload) -> None:
    """Raises ValueError for requests that are longer than the model's context."""
    if workload.encoded > case.model.encoder_context:
        raise ValueError(
            f"{workload.encoded:,} tokens of input; the model's encoder takes {case.model.encoder_context:,}; give a "
            "shorter --input"
        )
    if workload.images and not case.image_rows:
        raise ValueError("the model reads no images; leave --images out")
    if workload.images * case.image_rows > workload.input:
        places = workload.images * case.image_rows
        raise ValueError(
            f"{workload.images:,} images are {places:,} tokens of input, of {workload.input:,}; give --input {places} "
            "or more, or fewer --images"
        )
    if workload.tokens > case.model.context:
        raise ValueError(
            f"{workload.input:,} tokens of input and {workload.output:,} of output are {workload.tokens:,}; "
            f"the model's context is {case.model.context:,}; give a shorter --input or --output"
        )


def _check_batch(serving: LoadEstimator) -> None:
    """A batch beyond a step, or the memory of a card on which the model itself fits, is a mistake in the question."""
    memory, batch, step = serving.memory, serving.workload.batch, serving.workload.step_tokens
    if not memory.fits or serving.batch_fits:
        return
    own = serving.case.on_each(batch)
    if batch <= memory.at_end:
        each = f", {own:,} a card," if own < batch else ""
        raise ValueError(
            f"a batch of {batch:,}{each} is more than a step of {step:,} positions; raise --max-batch-tokens"
        )
    wanted, held = own * memory.request_bytes, memory.pages * memory.page_bytes
    raise ValueError(
        f"a batch of {batch:,} does not fit: {serving.workload.tokens:,} tokens each are {say_gib(gib(wanted))} of KV "
        f"a card, {say_gib(gib(held))} is left: {say_gib(gib(wanted - held))} too much; {memory.at_end:,} fit"
    )
