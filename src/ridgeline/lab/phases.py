"""Prefill against decode.

Prefill runs many positions of a prompt in one step, decode one position of each user. Both read all weights once a
step. So a position of a prefill shares that reading with all the others of its prompt, and a lone decoding user pays it
whole: decode waits for memory, prefill for arithmetic. Where one turns into the other is the ridge.
"""

import time
from dataclasses import dataclass

from ridgeline.engine.bare import drive
from ridgeline.models.model import Model
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.critical import compute_bound_prompt, critical_batch
from ridgeline.roofline.device import Device
from ridgeline.roofline.price import Price
from ridgeline.roofline.time import compute_seconds

BATCHES = (1, 4, 16, 64, 256, 1024)
ANSWER = 8  # tokens after the prompt of a measured request


@dataclass(frozen=True, slots=True)
class Phase:
    """A step. flops, nbytes: what it must do, and read and write of weights and KV. floor: seconds that nothing can
    beat; expected: on this card. idle: the share of the floor in which the arithmetic units wait. measured: seconds,
    where the machine at hand ran it."""

    name: str
    positions: int
    flops: float
    nbytes: float
    floor: float
    expected: float
    idle: float
    measured: float | None = None

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.nbytes

    @property
    def speed_limit(self) -> float:
        """Tokens a second at the floor."""
        return self.positions / self.floor


@dataclass(frozen=True, slots=True)
class Phases:
    """ridge: FLOPs a byte at which the card turns. batch: from which decode at this context is compute-bound, None if
    no batch is; intensity: what decode tends to as the batch grows. prompt: from which length on prefill is
    compute-bound."""

    device: Device
    context: int
    number: str
    ridge: float
    prefill: Phase
    decodes: tuple[Phase, ...]
    batch: float | None
    intensity: float
    prompt: int | None


def phases(model: Model, device: Device, prompt: int, measured: tuple[float, float] | None = None) -> Phases:
    """The experiment: a prefill of `prompt` positions, and decode at that context in growing batches. measured: seconds
    of that prefill and of the decode step of one user."""
    price = Price(model)
    took = measured or (None, None)
    prefill = _phase("prefill", price, device, [Segment(prompt, prompt)], took[0])
    decodes = [
        _phase(f"decode x {batch:,}", price, device, [Segment(1, prompt)] * batch, took[1] if batch == 1 else None)
        for batch in BATCHES
    ]
    cost = price.step(_work(price, [Segment(1, prompt)]))
    number = max(cost.flops, key=lambda name: cost.flops[name])
    # What every user brings: its own arithmetic and its own KV. The weights are divided by ever more of them.
    limit = cost.flops[number] / (cost.kv_read_bytes + cost.kv_write_bytes)
    bandwidth = device.bandwidth_of(cost.memory_bytes)
    return Phases(
        device,
        prompt,
        number,
        device.peak(number) / bandwidth,
        prefill,
        tuple(decodes),
        critical_batch(price, device, prompt),
        limit,
        compute_bound_prompt(price, device),
    )


def _work(price: Price, segments: list[Segment]) -> Work:
    return Work.of(segments, price.windows)


def _phase(name: str, price: Price, device: Device, segments: list[Segment], measured: float | None) -> Phase:
    work = _work(price, segments)
    step = price.on(device, work)
    idle = 1 - compute_seconds(step.cost, device) / step.floor
    return Phase(
        name, work.tokens, step.cost.total_flops, step.cost.memory_bytes, step.floor, step.expected, idle, measured
    )


def measure(model: Model, prompt: int, repeats: int = 5) -> tuple[float, float]:
    """Median seconds of a prefill of so many positions, and of a decode step after it, on the machine at hand."""
    prefills, decodes = [], []
    for _ in range(repeats + 1):
        (_, first), *others = drive(model, [prompt], ANSWER, time.perf_counter)
        prefills.append(first)
        decodes += [seconds for _, seconds in others]
    return sorted(prefills[1:])[repeats // 2], sorted(decodes)[len(decodes) // 2]
