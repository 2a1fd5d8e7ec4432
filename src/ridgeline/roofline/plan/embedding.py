"""A plan for a model that embeds: does it fit, how many texts of a length a second, how long one takes, what it costs.

Nothing is kept of a text, so that memory holds weights and the activations of a step, and users are texts in it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ridgeline.document.numbers import gib, say_gib, say_seconds, three
from ridgeline.document.page import Document, Facts, Row, Table, columns
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.activations import activation_peak
from ridgeline.roofline.plan.case import Case, ModelCache, Setup, Workload
from ridgeline.roofline.plan.phases import Estimate, Phase, PhasePrice, price_phase
from ridgeline.roofline.plan.plan import check_devices

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """What a setup does with texts of one length.

    length: tokens of a text. texts: how many a full step runs. one, full: a step of one text, and a full one. weights,
    activations, overhead: bytes of a card's memory; budget: what of it may be used.
    """

    name: str
    case: Case
    length: int
    texts: int
    one: PhasePrice
    full: PhasePrice
    weights: float
    activations: float
    overhead: float
    budget: float

    @property
    def fits(self) -> bool:
        """Whether weights and a full step fit."""
        return self.taken <= self.budget

    @property
    def taken(self) -> float:
        """Bytes of a card's memory that it takes."""
        return self.weights + self.activations + self.overhead

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


def embedding_plan(name: str, models: ModelCache, setup: Setup, workload: Workload) -> EmbeddingPlan:
    """Plan a model without a head for texts of `workload.input` tokens. Raises ModelRefused, and ValueError for texts
    that are longer than the model takes."""
    check_devices(setup)
    case, length = models.case(setup), workload.input
    if length > case.model.context:
        raise ValueError(
            f"texts of {length:,} tokens are longer than the {case.model.context:,} that the model takes; "
            "give a shorter --input"
        )
    step = max(workload.step_tokens, length)
    texts = step // length
    rule = setup.engine.memory
    weights, activations = case.price.weight_bytes, activation_peak(case.price, step, texts)
    overhead, share = rule.overhead(setup.device, setup.devices), setup.utilization
    taken = weights + activations + overhead
    total = setup.device.memory
    budget = total * share if rule.of == "total" else taken + (total - taken) * share
    return EmbeddingPlan(
        name, case, length, texts, _step(case, length, 1), _step(case, length, texts), weights, activations, overhead,
        budget if taken <= total else total,
    )  # fmt: skip


def _step(case: Case, length: int, texts: int) -> PhasePrice:
    work = Work.of([Segment(length, length)] * texts, case.price.reaches, texts)
    about = f"{texts:,} x {length:,} tokens"
    return price_phase(case.price, case.device, Phase("embed", (work,), about=about, context=length))


def embedding_document(plan: EmbeddingPlan) -> Document:
    """The answer, and a step of one text beside a full one."""
    case, card = plan.case, plan.case.device.title
    cards = f"{case.setup.devices} x {card}" if case.setup.devices > 1 else card
    held = f"{say_gib(gib(plan.taken))} of {say_gib(gib(plan.budget))} that may be used"
    parts = (
        f"weights {say_gib(gib(plan.weights))}, activations of a step {say_gib(gib(plan.activations))}, "
        f"overhead {say_gib(gib(plan.overhead))}; no KV: a text runs in one step"
    )
    rate, one = plan.texts_per_second, plan.one.seconds
    facts = [
        ("fits", f"{'yes' if plan.fits else 'no'}: {held} ({parts})"),
        (
            "texts",
            f"{three(rate.expected)} a second of {plan.length:,} tokens, {plan.texts:,} a step; {_limit(plan.full)}",
        ),
        ("one text", f"{say_seconds(one.expected)} alone; {_limit(plan.one)}"),
    ]
    if plan.dollars_per_million is not None:
        facts.append(("cost", f"${three(plan.dollars_per_million)} for a million tokens"))
    facts += [("note", note) for note in case.notes]
    rows = tuple(
        Row(
            (
                phase.about,
                *(say_seconds(s) for s in dataclasses.astuple(phase.seconds)),
                _rates(phase, texts),
                phase.limit,
            )
        )
        for phase, texts in ((plan.one, 1), (plan.full, plan.texts))
    )
    table = Table(columns("step", "floor", "bound", "expected", "texts/s", "limit"), rows)
    return Document(f"{plan.name} on {cards}: vectors of texts of {plan.length:,} tokens", (Facts(tuple(facts)), table))


def _limit(phase: PhasePrice) -> str:
    times, side = (phase.balance, "over") if phase.balance >= 1 else (1 / phase.balance, "under")
    return f"{phase.limit}-bound, {three(times)} times {side} the ridge"


def _rates(phase: PhasePrice, texts: int) -> str:
    return three(phase.seconds.per_second(texts).expected)


def embedding_json(plan: EmbeddingPlan) -> dict[str, Any]:
    """All figures, in SI units, bytes and seconds."""
    return {
        "model": {
            "name": plan.name,
            "context": plan.case.model.context,
            "weights": plan.case.recipe.name or "as stored",
        },
        "device": plan.case.device.name,
        "devices": plan.case.setup.devices,
        "workload": {"input": plan.length, "texts": plan.texts},
        "memory": {
            "weights": plan.weights,
            "activations": plan.activations,
            "overhead": plan.overhead,
            "budget": plan.budget,
            "fits": plan.fits,
        },
        "texts_per_second": dataclasses.asdict(plan.texts_per_second),
        "one": dataclasses.asdict(plan.one.seconds),
        "full": dataclasses.asdict(plan.full.seconds),
        "limit": plan.full.limit,
        "dollars_per_million_tokens": plan.dollars_per_million,
        "notes": list(plan.case.notes),
    }
