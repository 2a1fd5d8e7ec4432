"""The ledger asked in one line: a model on a card, from their names.

What `ridgeline plan` and `trace` rest on, for those who want a single figure of it: the statements of `lab numbers`,
and every figure of the guide. All of it is the price of the ops that run; nothing here knows a formula.
"""

from dataclasses import dataclass, replace

from ridgeline.core.checkpoint import open_source, read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, bill
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.learn.lab.load_simulation import USUAL, LoadOutcome, OneGpuReplica, RequestMix
from ridgeline.learn.lab.users_per_gpu import GpuUsers, users_on
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults, outline
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
"""The A100 of the texts, whose 80 GB come at 2 TB/s even. The card of that size has 2.039 TB/s."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step. flops; nbytes: read and written of weights and KV, of which weights, kv (both directions). arithmetic,
    memory: seconds of the matrices' FLOPs at the peak and of those bytes at the bandwidth. floor, bound, expected: as
    the plan has them. attention: seconds of the attention ops in `bound`.
    """

    flops: float
    nbytes: float
    weights: float
    kv: float
    arithmetic: float
    memory: float
    floor: float
    bound: float
    expected: float
    attention: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes


class CostCalculator:
    """Answers by name; what was built for one is kept for the next."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._prices: dict[str, Price] = {}
        self._cards: dict[str, Device] = {}
        self._pictures: dict[str, PipelinePrice] = {}
        self._served: dict[tuple[float, int, int, float], LoadOutcome] = {}

    # -- models -------------------------------------------------------------------------------------------------------

    def model(self, name: str) -> Model:
        """On meta."""
        if name not in self._models:
            self._models[name] = build(read_config(name))
        return self._models[name]

    def bill(self, name: str) -> ParameterBreakdown:
        """Its parameters."""
        return bill(self.model(name))

    def kv(self, name: str, heads: int | None = None) -> float:
        """Bytes that a token keeps in all layers; heads: with so many heads of keys and values instead."""
        specs = [spec for spec in self.model(name).kv_specs if isinstance(spec, KVSpec)]
        return sum((spec if heads is None else replace(spec, heads=heads)).bytes_per_token for spec in specs)

    def kept(self, name: str, positions: int, encoded: int = 0) -> float:
        """Bytes that a request keeps which has so many positions, and so many that an encoder has read for it."""
        specs = [spec for spec in self.model(name).kv_specs if not spec.is_state]
        return sum(spec.slot_bytes * spec.slots(positions, encoded) for spec in specs)

    def touched(self, name: str, rows: int) -> float:
        """Experts of a layer that so many tokens hit on average, if each picks at random."""
        return next(op.experts for _, op in self.model(name).ops() if op.experts is not None).of(rows)

    # -- cards --------------------------------------------------------------------------------------------------------

    def card(self, name: str) -> Device:
        """By its name; `a100` is the texts' own."""
        if name not in self._cards:
            is_texts = name == TEXTS_A100
            found = load_device("a100-sxm-80gb" if is_texts else name)
            self._cards[name] = replace(found, bandwidth=2e12) if is_texts else found
        return self._cards[name]

    # -- steps --------------------------------------------------------------------------------------------------------

    def price(self, name: str) -> Price:
        """What its steps cost."""
        if name not in self._prices:
            self._prices[name] = Price(self.model(name))
        return self._prices[name]

    def step(self, name: str, card: str, segments: list[StepSegment]) -> StepCost:
        """A step of sequences, each of so many new positions at so much context."""
        device, price = self.card(card), self.price(name)
        found = price.on(device, Work.of(segments, price.reaches))
        cost = found.cost
        arithmetic = sum(flops / device.peak(number) for number, flops in matrix_flops(cost).items())
        attention = sum(row.time.bound * row.priced.count for row in found.rows if row.priced.op.kind == "attention")
        return StepCost(
            cost.total_flops, cost.memory_bytes, cost.weight_bytes, cost.kv_read_bytes + cost.kv_write_bytes,
            arithmetic, cost.memory_bytes / device.bandwidth_of(cost.memory_bytes),
            found.floor, found.bound, found.expected, attention,
        )  # fmt: skip

    def decode(self, name: str, card: str, users: int = 1, context: int = 1, encoded: int = 0) -> StepCost:
        """A token for each of so many users, of that much context with the new token in it. encoded: tokens that an
        encoder has read of each.
        """
        return self.step(name, card, [StepSegment(1, context, encoded)] * users)

    def encode(self, name: str, card: str, tokens: int) -> StepCost:
        """An encoder reads so many tokens, and the decoder beside it begins."""
        return self.step(name, card, [StepSegment(1, 1, tokens, encodes=True)])

    def verify(self, name: str, card: str, users: int, context: int, guesses: int) -> StepCost:
        """A decode step that checks so many guesses of each user too."""
        return self.step(name, card, [StepSegment(1 + guesses, context + guesses)] * users)

    def beside(self, name: str, card: str, users: int, context: int, tokens: int) -> StepCost:
        """A decode step in which a whole prompt of somebody else's runs."""
        return self.step(name, card, [*[StepSegment(1, context)] * users, StepSegment(tokens, tokens)])

    def prefill(self, name: str, card: str, tokens: int) -> StepCost:
        """A whole prompt in one step."""
        return self.step(name, card, [StepSegment(tokens, tokens)])

    def request(self, name: str, card: str, tokens: int, answer: int) -> float:
        """Seconds at best from a prompt to its last of `answer` tokens, of which the prefill gives the first."""
        decodes = (self.decode(name, card, 1, tokens + n).floor for n in range(1, answer))
        return self.prefill(name, card, tokens).floor + sum(decodes)

    def batching(self, name: str, card: str, users: int, context: int) -> float:
        """How many times the tokens a second of one user so many make together."""
        return users * self.decode(name, card, 1, context).floor / self.decode(name, card, users, context).floor

    # -- where it turns -----------------------------------------------------------------------------------------------

    def critical_batch(self, name: str, card: str, context: int = 1) -> float | None:
        """Users from whom on a decode step is compute-bound; None where no number of them is."""
        return critical_batch(self.price(name), self.card(card), context)

    def never_from(self, name: str, card: str) -> int:
        """The context from which on no batch makes decode compute-bound."""
        some, none = 1, 2
        while self.critical_batch(name, card, none) is not None:
            some, none = none, 2 * none
        while none - some > 1:
            between = (some + none) // 2
            some, none = (some, between) if self.critical_batch(name, card, between) is None else (between, none)
        return none

    def endless_batch(self, name: str, card: str, context: int) -> float:
        """FLOPs a byte that decode tends to as the batch grows: each user's own arithmetic over its own bytes."""
        one = self.decode(name, card, 1, context)
        return one.flops / one.kv

    def compute_bound_prompt(self, name: str, card: str) -> int | None:
        """Prompt tokens from which on a prefill is compute-bound."""
        return compute_bound_prompt(self.price(name), self.card(card))

    # -- plans --------------------------------------------------------------------------------------------------------

    def users(self, name: str, card: str, context: int) -> GpuUsers:
        """How many of that much context fit on one card, subtraction by subtraction."""
        return users_on(name, self.card(card), 1, context)

    def plan(
        self, name: str, card: str, tokens: int = 1024, answer: int = 256, cards: int = 1, weights: str | None = None
    ) -> DeploymentPlan:
        """What `ridgeline plan` gives for requests of so many tokens in and out."""
        source = open_source(name)
        setup = Deployment(self.card(card), cards, weights=weights)
        return make_plan(source.title, source.config, setup, PlanWorkload(input=tokens, output=answer), ())

    def cold(self, name: str, card: str, disk: str = "", cards: int = 1) -> ColdStart:
        """Loading from a disk of the catalogue, by default from the page cache, onto each of so many cards."""
        nbytes = self.bill(name).nbytes
        return cold_start(nbytes, nbytes / cards, self.disk(disk) if disk else None, self.card(card).host_link)

    def disk(self, name: str) -> Disk:
        """By its name."""
        return next(each for each in disks() if each.name == name)

    def served(
        self, rate: float, budget: int = 2048, count: int = USUAL.count, burstiness: float = USUAL.burstiness
    ) -> LoadOutcome:
        """What becomes of requests to an 8B on an H100, as the experiments on load ask for them."""
        asked = (rate, budget, count, burstiness)
        if asked not in self._served:
            self._served[asked] = OneGpuReplica(budget=budget).serve(
                rate, RequestMix(count=count, burstiness=burstiness)
            )
        return self._served[asked]

    def picture(self, name: str, card: str = "h100-sxm", steps: int | None = None) -> PipelinePlan:
        """What `ridgeline plan` gives of a pipeline that draws, at the size and steps of its release."""
        source = open_source(name)
        if name not in self._pictures:
            self._pictures[name] = PipelinePrice(outline(source))
        return PipelinePlan(
            name, self._pictures[name], PipelineDefaults.of(source), self.card(card), PipelineOptions(steps=steps)
        )

    def attention_of_a_pass(self, name: str) -> float:
        """Attention's share of the FLOPs of a pass of a pipeline's denoiser."""
        return self.picture(name).alone_request.denoise.attention
