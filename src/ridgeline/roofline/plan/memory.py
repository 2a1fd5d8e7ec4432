"""A card's memory, subtraction by subtraction: what is left for keys and values, and how many requests that holds."""

import math
from collections import Counter
from dataclasses import dataclass, replace

from ridgeline.models.bill import part_of
from ridgeline.ops.formats import format_of
from ridgeline.ops.kv import KVLayout, deal_layers
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import Case, Workload
from ridgeline.roofline.price import Price

# The one rule for what is neither weights nor KV nor activations; vLLM's logs leave 0.3 to 3 GiB for it.
OVERHEAD_RULE = "driver, libraries, sampler: 1 GiB + 1 % of the card (+ 0.25 GiB between cards)"
_OVERHEAD, _OVERHEAD_SHARE, _OVERHEAD_LINKED = 2.0**30, 0.01, 2.0**28
# Requests whose logits a step has room for, where fewer are held: as many as the engine takes by default.
_LEAST_LOGIT_ROWS = 256


@dataclass(frozen=True, slots=True)
class WeightsRow:
    """Weights of one part of the model in one format, on one card: parameters, and bytes with scales."""

    part: str
    format: str
    parameters: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """One card's memory in bytes.

    total: as the driver shows it. budget: the share of it that may be used. left: of the budget after weights,
    activations and overhead, for KV; negative where not even the weights fit. layout: the pages that fit in it, divided
    as the engine does. request_tokens: the positions that a request has at its end. step_tokens: positions that a step
    may run, so the most requests that it can give a token each. activations: with the logits of as many requests as
    `users`. encoded: positions of its encoder that a request looks at.
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
    step_tokens: int
    encoded: int = 0

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
    def kv_tokens(self) -> int:
        """Positions that the pages hold where every layer keeps them."""
        return self.layout.tokens

    @property
    def request_bytes(self) -> int:
        """KV of one request at its end, in whole pages."""
        return self.layout.kept(self.request_tokens, 1, self.encoded) * self.page_bytes

    @property
    def held(self) -> int:
        """Requests whose KV fits at their end."""
        return self.layout.users(self.request_tokens, self.step_tokens, self.encoded)

    @property
    def users(self) -> int:
        """Requests whose KV fits at their end, and which one step can give a token each."""
        return min(self.held, self.step_tokens)

    @property
    def limit(self) -> str:
        """What stops one more of them: memory, or the positions of a step."""
        return "memory" if self.held <= self.step_tokens else "step"

    @property
    def concurrency(self) -> float:
        """vLLM's "maximum concurrency for M tokens": all pages over what M tokens take."""
        whole = math.ceil(self.request_tokens / self.page_size) * self.page_size
        return self.layout.nbytes / self.request_bytes * whole / self.request_tokens

    @property
    def fits(self) -> bool:
        """Whether the weights and one request fit."""
        return self.users >= 1

    @property
    def missing(self) -> float:
        """Bytes that a card lacks for the weights and one request; 0 where they fit."""
        return 0.0 if self.fits else self.request_bytes - self.left


def memory_of(case: Case, workload: Workload) -> Memory:
    """What a card holds in this case."""
    dealt = deal_layers(case.model.kv_specs, workload.page_size, case.model.context)
    memory = _with_logits(case, workload, dealt, _LEAST_LOGIT_ROWS)
    # Each request more wants a row of logits more: the fewest rows that are enough for all requests held beside them.
    few, enough = _LEAST_LOGIT_ROWS, memory.users
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _with_logits(case, workload, dealt, middle).users <= middle else (middle, enough)
    return memory if memory.users <= _LEAST_LOGIT_ROWS else _with_logits(case, workload, dealt, enough)


def _with_logits(case: Case, workload: Workload, dealt: KVLayout, rows: int) -> Memory:
    """What a card holds where a step has the logits of so many requests. dealt: the layers, without pages."""
    device, model = case.device, case.model
    budget = device.memory * case.setup.utilization
    weights = case.price.weight_bytes
    activations = activation_peak(case.price, workload.step_tokens, rows, workload.encoded)
    overhead = overhead_of(device, case.setup.devices)
    left = budget - weights - activations - overhead
    per_token = sum(spec.bytes_per_token for spec in model.kv_specs)
    layout = replace(dealt, pages=max(0, int(left // dealt.page_bytes)))
    return Memory(
        device.memory, budget, weights, activations, overhead, left, per_token, layout, workload.tokens,
        workload.step_tokens, workload.encoded,
    )  # fmt: skip


def weights_table(case: Case) -> list[WeightsRow]:
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


def activation_peak(price: Price, tokens: int, logit_rows: int = _LEAST_LOGIT_ROWS, encoded: int = 0) -> float:
    """Most bytes of activations alive at once in a step of so many tokens, with the logits of so many requests, and so
    many positions of an encoder.

    The widest op's inputs and outputs, beside three rows of the residual stream: what came into the block, what the
    block has made of it, and what went into its norm. For a gated MLP 2 x tokens x (3 x width + 3 x hidden) bytes in
    bf16, the figure of vLLM's memory profiler.
    """
    work = Work.of([Segment(tokens, tokens, encoded, encodes=encoded > 0)], price.reaches, min(tokens, logit_rows))
    kernels = [kernel for priced in price.ops for kernel in priced.kernels(work)]
    widest = max(kernel.cost.activation_bytes for kernel in kernels)
    sums = (k.cost.activation_bytes for k in kernels if k.name == "elementwise.add")  # two in, one out
    residual = max(sums, default=0.0)
    return widest + residual


def overhead_of(device: Device, devices: int) -> float:
    """Bytes by OVERHEAD_RULE."""
    return _OVERHEAD + _OVERHEAD_SHARE * device.memory + (_OVERHEAD_LINKED if devices > 1 else 0.0)
