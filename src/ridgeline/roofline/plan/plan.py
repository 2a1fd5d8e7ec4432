"""The plan: a model, a card and a workload become every figure that one decides by."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.document.numbers import gib, say_gib
from ridgeline.models import Fields
from ridgeline.models.bill import Bill, bill
from ridgeline.roofline.critical import compute_bound_prompt, context_where_kv_outweighs_weights, critical_batch
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.alternatives import (
    DEVICES,
    CaseOutcome,
    Change,
    batch_lever,
    catalogue_outcomes,
    compare,
    levers,
    outcome_of,
    sensitivities,
    ways_to_fit,
)
from ridgeline.roofline.plan.case import Case, ModelCache, Setup, Workload
from ridgeline.roofline.plan.memory import Memory, WeightsRow, weights_table
from ridgeline.roofline.plan.phases import Estimate, PhasePrice, decoder_phases, price_phase, request_seconds
from ridgeline.roofline.plan.serving import Capacity, Load, Serving, SweepRow, batch_sweep


@dataclass(frozen=True, slots=True)
class Crossings:
    """Where the model on this card turns; None where it never does.

    critical_batch: from which decode at the running context is compute-bound. compute_bound_prompt: from which prefill
    is. kv_outweighs_weights: context from which a lone decode step reads more KV than weights.
    """

    critical_batch: float | None
    compute_bound_prompt: int | None
    kv_outweighs_weights: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `ridgeline plan` says. All figures of a phase are those of one card.

    whole: the parameter bill of the undivided model. ways: what would make it fit, where it does not. phases: the parts
    of a request. load: the workload's batch under load; capacity: the most users. cards: the catalogue, where it was
    to be compared.
    """

    name: str
    case: Case
    workload: Workload
    whole: Bill
    weights: tuple[WeightsRow, ...]
    memory: Memory
    ways: tuple[Setup, ...]
    phases: tuple[PhasePrice, ...]
    crossings: Crossings
    sweep: tuple[SweepRow, ...]
    load: Load
    capacity: Capacity
    outcome: CaseOutcome
    batching: Change | None
    levers: tuple[Change, ...]
    sensitivities: tuple[Change, ...]
    cards: tuple[CaseOutcome, ...] | None

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

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars for a million tokens of output at the most users."""
        return self.outcome.dollars_per_million


def make_plan(
    name: str,
    fields: Fields,
    setup: Setup,
    workload: Workload,
    catalogue: Sequence[Device],
    *,
    compared: bool = False,
) -> Plan:
    """Plan a model, called `name`, on a setup.

    catalogue: the cards that levers may name, and that `compared` lists. Raises ModelRefused for a model that cannot be
    built or divided so, ValueError for a workload that the model or the memory cannot take.
    """
    check_devices(setup)
    models = ModelCache(fields)
    case = models.case(setup)
    _check_context(case, workload)
    serving = Serving(case, workload)
    _check_batch(serving)
    price, device = case.price, case.device
    base = outcome_of(serving)
    others = catalogue_outcomes(models, serving, catalogue)
    return Plan(
        name=name,
        case=case,
        workload=workload,
        whole=bill(models.whole(setup).model),
        weights=tuple(weights_table(case)),
        memory=serving.memory,
        ways=() if serving.memory.fits else tuple(ways_to_fit(models, setup, workload)),
        phases=tuple(price_phase(price, device, phase) for phase in decoder_phases(case, workload)),
        crossings=Crossings(
            critical_batch(price, device, workload.context),
            compute_bound_prompt(price, device),
            context_where_kv_outweighs_weights(price),
        ),
        sweep=tuple(batch_sweep(serving)),
        load=serving.load(workload.batch),
        capacity=serving.capacity,
        outcome=base,
        batching=batch_lever(serving, base),
        levers=tuple(levers(models, serving, base, others)),
        sensitivities=tuple(sensitivities(models, serving, base)),
        cards=tuple(compare(models, serving, catalogue)) if compared else None,
    )


def check_devices(setup: Setup) -> None:
    """Raises ValueError for more cards than one machine has, or cards that nothing joins."""
    if setup.devices > max(DEVICES):
        raise ValueError(f"devices is {setup.devices}; one machine's are priced, up to {max(DEVICES)}")
    if setup.devices > 1 and setup.device.link is None:
        raise ValueError(
            f"the catalogue knows no link of {setup.device.name}; give a card file with `link`, or one card"
        )


def _check_context(case: Case, workload: Workload) -> None:
    if workload.tokens > case.model.context:
        raise ValueError(
            f"{workload.input:,} tokens of input and {workload.output:,} of output are {workload.tokens:,}; "
            f"the model's context is {case.model.context:,}; give a shorter --input or --output"
        )


def _check_batch(serving: Serving) -> None:
    """A batch beyond a step, or the memory of a card on which the model itself fits, is a mistake in the question."""
    memory, batch, step = serving.memory, serving.workload.batch, serving.workload.step_tokens
    if not memory.fits or serving.batch_fits:
        return
    if batch <= memory.held:
        raise ValueError(f"a batch of {batch:,} is more than a step of {step:,} positions; raise --max-batch-tokens")
    wanted, held = batch * memory.request_bytes, memory.pages * memory.page_bytes
    raise ValueError(
        f"a batch of {batch:,} does not fit: {serving.workload.tokens:,} tokens each are {say_gib(gib(wanted))} of KV "
        f"a card, {say_gib(gib(held))} is left: {say_gib(gib(wanted - held))} too much; {memory.held:,} fit"
    )
