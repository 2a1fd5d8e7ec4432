"""The plan of an embedding model: whether it fits, its texts per second, the latency of one text and the cost.

Nothing of a text outlives its last step. Memory holds the weights, the activations of a step and, if a decoder computes
the embeddings, the KV of the texts in progress.
"""

from dataclasses import dataclass, replace

from ridgeline.core.ops.kv_layout import group_layers
from ridgeline.price.activations import activation_peak
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.energy import kwh_per_million
from ridgeline.price.plan.request_phases import Estimate, PhasePrice, prefill_phase, price_phase
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario

_MILLION = 1e6
_SHORTEST = 32  # tokens of the shortest text of `lengths`


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """The performance of a deployment on texts of one length."""

    name: str
    case: Scenario
    workload: PlanWorkload
    """The texts of a full step: as many of `input` tokens as fit, or one that takes several steps."""
    one: PhasePrice
    """The cost and the seconds of embedding one text alone."""
    full: PhasePrice
    """The cost and the seconds of a step that is full of texts.

    A text longer than a step is priced alone, with all of its steps, unless the model must run it whole.
    """
    weights: float
    """The bytes of the weights on one device."""
    activations: float
    """The peak bytes of activations on one device."""
    overhead: float
    """The bytes for driver, libraries and graphs on one device."""
    kv: float
    """The bytes of the KV of a step's texts on one device."""
    budget: float
    """The bytes of a device's memory that may be used."""

    @property
    def length(self) -> int:
        """The number of tokens per text to embed."""
        return self.workload.input

    @property
    def texts(self) -> int:
        """The number of texts that a full step embeds; 1 if a text takes several steps."""
        return self.workload.batch

    @property
    def fits(self) -> bool:
        """Whether the weights and a full step of texts fit in a device's memory."""
        return self.taken <= self.budget

    @property
    def taken(self) -> float:
        """The bytes of a device's memory that the model and a full step use."""
        return self.weights + self.activations + self.overhead + self.kv

    @property
    def texts_per_second(self) -> Estimate:
        """The number of texts embedded per second if full steps, as in `full`, follow each other."""
        return self.full.seconds.per_second(self.texts)

    @property
    def cost_factors(self) -> tuple[float, float]:
        """The factors on the cost and the energy of a token between which 8 of 10 measurements lie."""
        rate = self.texts_per_second
        return self.case.intervals["load"].around_time(1.0, rate.expected / rate.floor)

    @property
    def dollars_per_million(self) -> float | None:
        """The dollars per million tokens at the expected rate; None without a price or if the model does not fit."""
        hourly = self.case.setup.hourly
        if hourly is None or not self.fits:
            return None
        return hourly / 3600 / (self.texts_per_second.expected * self.length) * _MILLION

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """The most kWh per million tokens; None if the power limit is unknown or the model does not fit."""
        rate = self.texts_per_second.expected * self.length
        return kwh_per_million(self.case.setup.watts, rate) if self.fits else None


def embedding_plan(name: str, models: ModelCache, setup: Deployment, workload: PlanWorkload) -> EmbeddingPlan:
    """Plan a model without an LM head for texts of `workload.input` tokens.

    Raises:
        ModelRefused: If the model cannot be built or split in this way.
        ValueError: If the texts exceed the model's context.
    """
    check_devices(setup)
    return _planned(name, models.scenario(setup), workload)


def lengths(plan: EmbeddingPlan) -> list[EmbeddingPlan]:
    """Return the plans for texts of 32, 128, 512, ... tokens, up to the model's context."""
    found, most = [min(_SHORTEST, plan.case.model.context)], plan.case.model.context
    while found[-1] < most:
        found.append(min(4 * found[-1], most))
    return [_planned(plan.name, plan.case, replace(plan.workload, input=length)) for length in found]


def _planned(name: str, case: Scenario, workload: PlanWorkload) -> EmbeddingPlan:
    setup, length = case.setup, workload.input
    if length > case.model.context:
        raise ValueError(
            f"texts of {length:,} tokens are longer than the model's context of {case.model.context:,}; give a shorter "
            "--input"
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
    """Return the workload with as many texts as fit in a step.

    If the model must run a text whole, the step becomes at least as long as the text.
    """
    step = max(workload.step_tokens, workload.input) if case.model.needs_whole_prompt else workload.step_tokens
    return replace(workload, batch=max(1, step // workload.input), step_tokens=step)


def _kept(case: Scenario, workload: PlanWorkload) -> float:
    """Return the KV bytes of a step's texts; 0 if the model has no KV cache."""
    if not case.model.kv_specs:
        return 0.0
    layout = group_layers(case.model.kv_specs, workload.page_size, case.model.context)
    pages = layout.kept(workload.input, min(workload.input, workload.step_tokens))
    return float(workload.batch * pages * layout.page_bytes)


def _step(case: Scenario, workload: PlanWorkload, name: str) -> PhasePrice:
    """Return the price of a step. A text runs like a decoder's prefill, with pooling in place of the LM head."""
    return price_phase(case.price, case.device, replace(prefill_phase(case, workload), name=name))
