"""The memory budget of a device: the bytes remaining for keys and values, and the number of requests they hold."""

import math
from collections import Counter
from dataclasses import dataclass, replace

from ridgeline.backends import priced_backend
from ridgeline.core.models.common.parameter_breakdown import part_of
from ridgeline.core.ops.kv_layout import KVLayout, group_layers
from ridgeline.core.ops.number_formats import format_of
from ridgeline.price.activations import LOGIT_ROWS, ActivationPeak, replayed_bytes
from ridgeline.price.crossovers import first_between
from ridgeline.price.engine_profile import OWN_ENGINE
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.price import Price
from ridgeline.util.json_data import json_shape


@dataclass(frozen=True, slots=True)
class WeightsRow:
    """The weights on one device of one part of the model in one format."""

    part: str
    format: str
    parameters: int
    nbytes: float
    """The bytes of the weights, including scales."""


@json_shape(..., omit=("layout",))
@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device in bytes, and the KV capacity that results from it."""

    total: float
    """The bytes of memory that the driver reports for the device."""
    budget: float
    """The bytes of the device's memory that may be used."""
    weights: float
    """The bytes of the model's weights on the device."""
    activations: float
    """The peak activations of a step, or of the sampler if that is larger."""
    overhead: float
    """The bytes for driver, libraries, CUDA graphs, communication and recorded decode steps."""
    left: float
    """The bytes of a device's memory budget that remain for KV; negative if the rest already exceeds the budget."""
    kv_bytes_per_token: float
    """The KV bytes that one more token of a request takes in all layers, without page padding."""
    layout: KVLayout
    """The KV pages that fit in `left`, and the groups of layers that share them (`group_layers`)."""
    request_tokens: int
    """The number of positions that a request has at its end."""
    admitted_tokens: int
    """The positions that the engine's admission rule counts per request.

    An engine with the admission "full" counts the final length. One with "running" counts the average length of
    requests in progress, since these are of all ages.
    """
    step_tokens: int
    """The maximum number of positions per step, which also limits the requests that get a token in a step."""
    logit_rows: int = LOGIT_ROWS
    """The number of requests whose logits memory is reserved for, at least as many as one rank's users."""
    sampler: float = 0.0
    """The peak bytes that the sampler holds over the logits of `logit_rows` requests."""
    encoded: int = 0
    """The number of encoder positions of a request."""
    ranks: int = 1
    """The number of data-parallel ranks with their own requests.

    `kv_capacity_requests`, `at_end`, `max_simultaneous` and `users` cover all ranks.
    """
    recorded: float = 0.0
    """The bytes, part of `overhead`, of decode steps that are captured as CUDA graphs or recorded."""

    @property
    def page_size(self) -> int:
        """The number of positions per KV page."""
        return self.layout.page_size

    @property
    def pages(self) -> int:
        """The number of KV pages that fit."""
        return self.layout.pages

    @property
    def page_bytes(self) -> int:
        """The bytes of one KV page."""
        return self.layout.page_bytes

    @property
    def state_bytes(self) -> float:
        """The bytes of a request's recurrent states, which do not depend on its length."""
        return self.layout.state_bytes

    @property
    def kv_tokens(self) -> int:
        """The positions that the pages hold if every layer stores all of them."""
        return self.layout.tokens

    @property
    def request_bytes(self) -> int:
        """The KV bytes of one request at its end, in whole pages."""
        return self.layout.kept(self.request_tokens, 1, self.encoded) * self.page_bytes

    @property
    def kv_capacity_requests(self) -> int:
        """The number of requests whose KV fits under the engine's admission rule.

        A request counts with its final length or with its average length, depending on the engine.
        """
        if not self.fits:
            return 0
        return self.ranks * self.layout.max_sequences(self.admitted_tokens, self.step_tokens, self.encoded)

    @property
    def at_end(self) -> int:
        """The number of requests whose KV fits if all reach their end at once, as requests that start together do."""
        return self.ranks * self.layout.max_sequences(self.request_tokens, self.step_tokens, self.encoded)

    @property
    def max_simultaneous(self) -> int:
        """The number of requests that may start at once: their KV fits to the end, and one step gives each a token."""
        return min(self.at_end, self.ranks * self.step_tokens)

    @property
    def users(self) -> int:
        """The number of concurrent requests whose KV fits and that one step can give a token each."""
        return min(self.kv_capacity_requests, self.ranks * self.step_tokens)

    @property
    def on_each(self) -> int:
        """The number of concurrent requests per rank."""
        return self.users // self.ranks

    @property
    def limit(self) -> str:
        """The resource that prevents one more user: "memory", or "step" if a step has no more positions."""
        return "memory" if self.kv_capacity_requests <= self.ranks * self.step_tokens else "step"

    @property
    def concurrency(self) -> float:
        """The number of requests that one rank's KV cache holds, computed as vLLM's "maximum concurrency".

        The last page of a request counts by its used positions. If the model has recurrent states, whole pages count.
        """
        if self.state_bytes:
            return self.layout.nbytes / self.request_bytes
        whole = math.ceil(self.request_tokens / self.page_size) * self.page_size
        return self.layout.nbytes / self.request_bytes * whole / self.request_tokens

    @property
    def fits(self) -> bool:
        """Whether the weights and the KV of one request, to its end, fit into a device's memory."""
        return self.at_end >= 1

    @property
    def missing(self) -> float:
        """The bytes that a device lacks for the weights and one request; 0 if they fit."""
        return 0.0 if self.fits else self.request_bytes - self.left


def memory_of(case: Scenario, workload: PlanWorkload, requests: float = math.inf) -> DeviceMemory:
    """Return the memory budget of one device in a scenario.

    Args:
        case: The scenario.
        workload: The requests.
        requests: The maximum number of requests per rank that run at the same time, whose logits a step computes; by
            default as many as fit.
    """
    dealt = group_layers(case.model.kv_specs, workload.page_size, case.model.context)
    # A step may need only part of the image at either end, but each image is encoded whole.
    images = (workload.step_tokens + 2 * case.image_rows) if workload.images else 0
    peak = ActivationPeak(case.price, workload.step_tokens, max(workload.encoder_step, images))
    own = case.device.native and case.setup.engine.name == OWN_ENGINE
    # This traces the model, so it runs once and not per number of logit rows. The CPU backend is used for GPUs too,
    # because the memory of captured GPU steps is not modelled yet.
    steps = priced_backend("cpu").replayed_steps(case.model) if own else None
    recorded = replayed_bytes(steps, case.model, case.price, workload.step_tokens)
    least = case.setup.engine.memory.logit_rows(case.device)
    memory = _with_logits(case, workload, dealt, peak, recorded, least)
    most = min(memory.on_each, requests)
    if most <= least:
        return memory

    # Each further request needs a further row of logits, which leaves less memory for KV. Find the fewest rows that
    # suffice for all requests that still fit.
    def suffices(rows: int) -> bool:
        return min(_with_logits(case, workload, dealt, peak, recorded, rows).on_each, requests) <= rows

    enough = first_between(least + 1, int(most), suffices)
    return _with_logits(case, workload, dealt, peak, recorded, enough)


def _with_logits(
    case: Scenario, workload: PlanWorkload, dealt: KVLayout, peak: ActivationPeak, recorded: float, rows: int
) -> DeviceMemory:
    """Return the memory budget if a step computes the logits of `rows` requests.

    Args:
        case: The scenario.
        workload: The requests.
        dealt: The KV layout of the layers, without pages.
        peak: The activation memory of a step.
        recorded: The bytes that recorded steps hold.
        rows: The number of requests with logits.
    """
    device, model, rule = case.device, case.model, case.setup.engine.memory
    weights = case.price.weights_on(device)
    sampler = sampler_peak(case.price, rows, rule.copies)
    activations = max(peak.of(rows), sampler)
    overhead = rule.overhead(device, case.setup.devices) + recorded
    taken = weights + activations + overhead
    budget = rule.budget(device.memory, taken, case.setup.utilization)
    left = budget - taken
    per_token = sum(spec.bytes_per_token for spec in model.kv_specs)
    layout = replace(dealt, pages=max(0, int(left // dealt.page_bytes)))
    return DeviceMemory(
        device.memory, budget, weights, activations, overhead, left, per_token, layout, workload.tokens,
        workload.tokens if case.setup.engine.admission == "full" else workload.context,
        workload.step_tokens, rows, sampler, workload.encoded, case.ranks, recorded,
    )  # fmt: skip


def weights_table(case: Scenario) -> list[WeightsRow]:
    """Return the weights of one device by part and format. A tied LM head counts as the embedding."""
    parameters: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    model = case.model
    for path, op in model.weighted_ops():
        for share in op.storage_shares():
            dtype = format_of(model.storage.dtype).name
            key = part_of(model, path, op), dtype if share.stored is None else share.stored.name
            parameters[key] += share.parameters
            nbytes[key] += share.nbytes  # type: ignore[assignment]
    return [WeightsRow(*key, parameters[key], nbytes[key]) for key in parameters]


def sampler_peak(price: Price, rows: int, copies: float) -> float:
    """Return the peak bytes of a sampler over the fp32 logits of `rows` requests.

    Every device holds the logits of the whole vocabulary: vLLM's profile takes as much on two devices as on one
    (vllm-project/vllm#10511).
    """
    places = (place for priced in price.ops for place in priced.op.weight_slots().values())
    return copies * rows * 4 * max((place.outputs for place in places if place.kind == "head"), default=0)
