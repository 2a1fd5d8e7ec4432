"""A plan for a model that embeds: does it fit, how many texts of a length a second, how long one takes, what it costs.

Nothing of a text outlasts its last step: memory holds weights, the activations of a step, and of a decoder that embeds
the keys and values of the texts that are under way.
"""

from dataclasses import dataclass, replace

from ridgeline.core.ops.kv_layout import deal_layers
from ridgeline.price.activations import activation_peak
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.request_phases import Estimate, PhasePrice, prefill_phase, price_phase
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario

_MILLION = 1e6
_SHORTEST = 32  # tokens of the shortest text of `lengths`


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """What a setup does with texts of one length.

    workload: texts of `input` tokens, as many as fit in a full step, or one that takes several. one, full: a text
    alone, and a full step. weights, activations, overhead, kv: bytes of a card's memory. budget: what of it may be
    used.
    """

    name: str
    case: Scenario
    workload: PlanWorkload
    one: PhasePrice
    full: PhasePrice
    weights: float
    activations: float
    overhead: float
    kv: float
    budget: float

    @property
    def length(self) -> int:
        """Tokens of a text."""
        return self.workload.input

    @property
    def texts(self) -> int:
        """Texts that a full step runs."""
        return self.workload.batch

    @property
    def fits(self) -> bool:
        """Whether weights and a full step fit."""
        return self.taken <= self.budget

    @property
    def taken(self) -> float:
        """Bytes of a card's memory that it takes."""
        return self.weights + self.activations + self.overhead + self.kv

    @property
    def texts_per_second(self) -> Estimate:
        """Of full steps, one after the other."""
        return self.full.seconds.per_second(self.texts)

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars for a million tokens at the expected rate; None where no price is known."""
        hourly = self.case.setup.hourly
        if hourly is None or not self.fits:
            return None
        return hourly / 3600 / (self.texts_per_second.expected * self.length) * _MILLION


def embedding_plan(name: str, models: ModelCache, setup: Deployment, workload: PlanWorkload) -> EmbeddingPlan:
    """Plan a model without a head for texts of `workload.input` tokens. Raises ModelRefused, and ValueError for texts
    that are longer than the model takes.
    """
    check_devices(setup)
    return _planned(name, models.case(setup), workload)


def lengths(plan: EmbeddingPlan) -> list[EmbeddingPlan]:
    """The same for texts of 32, 128, 512, ... tokens, up to what the model takes."""
    found, most = [min(_SHORTEST, plan.case.model.context)], plan.case.model.context
    while found[-1] < most:
        found.append(min(4 * found[-1], most))
    return [_planned(plan.name, plan.case, replace(plan.workload, input=length)) for length in found]


def _planned(name: str, case: Scenario, workload: PlanWorkload) -> EmbeddingPlan:
    setup, length = case.setup, workload.input
    if length > case.model.context:
        raise ValueError(
            f"texts of {length:,} tokens are longer than the {case.model.context:,} that the model takes; "
            "give a shorter --input"
        )
    workload = _filled(case, workload)
    rule, step = setup.engine.memory, workload.step_tokens
    weights, activations = case.price.weights_on(setup.device), activation_peak(case.price, step, workload.batch)
    overhead, share, kv = rule.overhead(setup.device, setup.devices), setup.utilization, _kept(case, workload)
    taken = weights + activations + overhead
    total = setup.device.memory
    budget = total * share if rule.of == "total" else taken + (total - taken) * share
    one, full = _step(case, replace(workload, batch=1), "one text"), _step(case, workload, "full step")
    return EmbeddingPlan(
        name, case, workload, one, full, weights, activations, overhead, kv, budget if taken <= total else total
    )


def _filled(case: Scenario, workload: PlanWorkload) -> PlanWorkload:
    """As many texts as a step has room for; one that has to run whole makes the step as long as it is."""
    step = max(workload.step_tokens, workload.input) if case.model.whole else workload.step_tokens
    return replace(workload, batch=max(1, step // workload.input), step_tokens=step)


def _kept(case: Scenario, workload: PlanWorkload) -> float:
    """Bytes of keys and values of the texts of a step; none where nothing is kept of a text."""
    if not case.model.kv_specs:
        return 0.0
    layout = deal_layers(case.model.kv_specs, workload.page_size, case.model.context)
    pages = layout.kept(workload.input, min(workload.input, workload.step_tokens))
    return float(workload.batch * pages * layout.page_bytes)


def _step(case: Scenario, workload: PlanWorkload, name: str) -> PhasePrice:
    """A text's way through the model is a decoder's prefill, with pooling where the head would be."""
    return price_phase(case.price, case.device, replace(prefill_phase(case, workload), name=name))
