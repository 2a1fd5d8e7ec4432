"""A card's memory, subtraction by subtraction: what is left for keys and values, and how many requests that holds."""

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace

from ridgeline.backends import priced_backend
from ridgeline.core.models.common.parameter_breakdown import part_of
from ridgeline.core.ops.kv_layout import KVLayout, deal_layers
from ridgeline.core.ops.number_formats import format_of
from ridgeline.price.activations import LOGIT_ROWS, ActivationPeak, replayed_bytes
from ridgeline.price.engine_profile import OWN_ENGINE
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.price import Price


@dataclass(frozen=True, slots=True)
class WeightsRow:
    """Weights of one part of the model in one format, on one card: parameters, and bytes with scales."""

    part: str
    format: str
    parameters: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One card's memory in bytes.

    total: as the driver shows it. budget: what of it may be used. left: of the budget after weights, activations and
    overhead, for KV; negative where not even the weights fit. layout: the pages that fit in it, divided as the engine
    does. request_tokens: the positions that a request has at its end; admitted_tokens: those that it counts with where
    requests of all ages are held. step_tokens: positions that a step may run, so the most requests that it can give a
    token each. logit_rows: requests whose logits there is room for, as many as `users` or more; sampler: the most bytes
    of a sampler over them. activations: the most of a step, or of its sampler. encoded: positions of its encoder that a
    request looks at. recorded: what of `overhead` recorded decode steps hold on to. ranks: cards that have requests of
    their own; `held`, `at_end` and `users` are of all of them.
    """

    total: float
    budget: float
    weights: float
    activations: float
    overhead: float
    left: float
    kv_bytes_per_token: float
    layout: KVLayout
    request_tokens: int
    admitted_tokens: int
    step_tokens: int
    logit_rows: int = LOGIT_ROWS
    sampler: float = 0.0
    encoded: int = 0
    ranks: int = 1
    recorded: float = 0.0

    @property
    def page_size(self) -> int:
        """Positions a KV page."""
        return self.layout.page_size

    @property
    def pages(self) -> int:
        """KV pages that fit."""
        return self.layout.pages

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page."""
        return self.layout.page_bytes

    @property
    def state_bytes(self) -> float:
        """Bytes of the states of a request, however long it is."""
        return self.layout.state_bytes

    @property
    def kv_tokens(self) -> int:
        """Positions that the pages hold where every layer keeps them."""
        return self.layout.tokens

    @property
    def request_bytes(self) -> int:
        """KV of one request at its end, in whole pages."""
        return self.layout.kept(self.request_tokens, 1, self.encoded) * self.page_bytes

    @property
    def held(self) -> int:
        """Requests whose KV fits, as the engine admits them: at their end, or on average over their lives."""
        if not self.fits:
            return 0
        return self.ranks * self.layout.users(self.admitted_tokens, self.step_tokens, self.encoded)

    @property
    def at_end(self) -> int:
        """Requests whose KV fits where all are at their end at once, as those that ask at once are."""
        return self.ranks * self.layout.users(self.request_tokens, self.step_tokens, self.encoded)

    @property
    def together(self) -> int:
        """Requests that may ask at once: those whose KV fits to their end, and which one step can give a token each."""
        return min(self.at_end, self.ranks * self.step_tokens)

    @property
    def users(self) -> int:
        """Requests whose KV fits, and which one step can give a token each."""
        return min(self.held, self.ranks * self.step_tokens)

    @property
    def on_each(self) -> int:
        """Those of one rank."""
        return self.users // self.ranks

    @property
    def limit(self) -> str:
        """What stops one more of them: memory, or the positions of a step."""
        return "memory" if self.held <= self.ranks * self.step_tokens else "step"

    @property
    def concurrency(self) -> float:
        """VLLM's "maximum concurrency for M tokens": all pages over what M tokens take, on one rank. A state is whole
        however many they are.
        """
        if self.state_bytes:
            return self.layout.nbytes / self.request_bytes
        whole = math.ceil(self.request_tokens / self.page_size) * self.page_size
        return self.layout.nbytes / self.request_bytes * whole / self.request_tokens

    @property
    def fits(self) -> bool:
        """Whether the weights and one request, to its end, fit."""
        return self.at_end >= 1

    @property
    def missing(self) -> float:
        """Bytes that a card lacks for the weights and one request; 0 where they fit."""
        return 0.0 if self.fits else self.request_bytes - self.left


def memory_of(case: Scenario, workload: PlanWorkload) -> DeviceMemory:
    """What a card holds in this case."""
    dealt = deal_layers(case.model.kv_specs, workload.page_size, case.model.context)
    # At either end of a step's tokens an image may be of which it needs a part.
    images = (workload.step_tokens + 2 * case.image_rows) if workload.images else 0
    peak = ActivationPeak(case.price, workload.step_tokens, max(workload.encoder_step, images))
    own = case.device.native and case.setup.engine.name == OWN_ENGINE
    # Traces the model: not for each count of logits. Of a GPU too: what its captured steps hold is not counted yet.
    steps = priced_backend("cpu").replayed_steps(case.model) if own else None
    recorded = replayed_bytes(steps, case.model, case.price, workload.step_tokens)
    least = case.setup.engine.memory.logit_rows(case.device)
    memory = _with_logits(case, workload, dealt, peak, recorded, least)
    if memory.on_each <= least:
        return memory
    # Each request more wants a row of logits more: the fewest rows that are enough for all requests held beside them.
    fewer = range(least + 1, memory.on_each)  # than are surely enough
    enough = bisect_left(
        fewer, True, key=lambda rows: _with_logits(case, workload, dealt, peak, recorded, rows).on_each <= rows
    )
    return _with_logits(case, workload, dealt, peak, recorded, fewer.start + enough)


def _with_logits(
    case: Scenario, workload: PlanWorkload, dealt: KVLayout, peak: ActivationPeak, recorded: float, rows: int
) -> DeviceMemory:
    """What a card holds where a step has the logits of so many requests. dealt: the layers, without pages. peak: of a
    step's activations. recorded: what recorded steps hold on to.
    """
    device, model, rule = case.device, case.model, case.setup.engine.memory
    weights = case.price.weights_on(device)
    sampler = sampler_peak(case.price, rows, rule.copies)
    activations = max(peak.of(rows), sampler)
    overhead = rule.overhead(device, case.setup.devices) + recorded
    taken = weights + activations + overhead
    share = case.setup.utilization
    budget = device.memory * share if rule.of == "total" else taken + (device.memory - taken) * share
    left = budget - taken
    per_token = sum(spec.bytes_per_token for spec in model.kv_specs)
    layout = replace(dealt, pages=max(0, int(left // dealt.page_bytes)))
    return DeviceMemory(
        device.memory, budget, weights, activations, overhead, left, per_token, layout, workload.tokens,
        workload.tokens if case.setup.engine.admission == "full" else workload.context,
        workload.step_tokens, rows, sampler, workload.encoded, case.ranks, recorded,
    )  # fmt: skip


def weights_table(case: Scenario) -> list[WeightsRow]:
    """The weights of one card by part and format; a tied head is the embedding's."""
    parameters: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    model = case.model
    for path, op in model.weighted_ops():
        for share in op.shares():
            dtype = format_of(model.storage.dtype).name
            key = part_of(model, path, op), dtype if share.stored is None else share.stored.name
            parameters[key] += share.parameters
            nbytes[key] += share.nbytes  # type: ignore[assignment]
    return [WeightsRow(*key, parameters[key], nbytes[key]) for key in parameters]


def sampler_peak(price: Price, rows: int, copies: float) -> float:
    """Most bytes that a sampler has alive over the logits of so many requests: fp32, of the whole vocabulary on every
    card (vLLM's profile takes as much on two cards as on one: vllm-project/vllm#10511).
    """
    places = (place for priced in price.ops for place in priced.op.places().values())
    return copies * rows * 4 * max((place.outputs for place in places if place.kind == "head"), default=0)
