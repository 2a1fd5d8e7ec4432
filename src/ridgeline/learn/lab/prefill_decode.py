"""Prefill and decode compared: why one is limited by arithmetic and the other by memory.

Prefill runs many positions of a prompt in one step, decode one position of each user. Both read all weights once per
step. The positions of a prefill share that read, while a single decoding user pays for the whole read: decode is
memory-bound, prefill compute-bound. The point where one turns into the other is the ridge.
"""

import math
import time
from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine_builder import run_requests
from ridgeline.learn.lab.textbook_step import TextbookStep, round_figure
from ridgeline.learn.lab.users_per_gpu import nominal_parameters
from ridgeline.price.crossovers import compute_bound_prompt, critical_batch
from ridgeline.price.device import Device
from ridgeline.price.device_roofline import roofline
from ridgeline.price.op_time import compute_seconds
from ridgeline.price.price import Price
from ridgeline.util.document.elements import Bullets, Document, DocumentTable, Paragraph, TableRow, columns
from ridgeline.util.document.humanize import percent, say, say_seconds
from ridgeline.util.document.roofline_chart import Point, Roofline
from ridgeline.util.json_data import json_data, json_select, json_shape

BATCHES = (1, 4, 16, 64, 256, 1024)
ANSWER = 8  # output tokens of a measured request


@json_shape(..., "intensity", "speed_limit")
@dataclass(frozen=True, slots=True)
class StepTiming:
    """The cost of a prefill or decode step and its seconds in theory and measurement."""

    name: str
    """The name of the step in the table."""
    positions: int
    """The number of positions that the step computes."""
    flops: float
    """The FLOPs of the step."""
    nbytes: float
    """The bytes of weights and KV that the step reads and writes."""
    floor: float
    """The minimum seconds of the step, which no kernel can beat."""
    expected: float
    """The expected seconds of the step on the device."""
    idle: float
    """The share of the step's minimum time in which the arithmetic units wait."""
    measured: float | None = None
    """The measured seconds of the step, if this machine ran it."""

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOPs per byte."""
        return self.flops / self.nbytes

    @property
    def speed_limit(self) -> float:
        """The tokens per second at the floor."""
        return self.positions / self.floor


@dataclass(frozen=True, slots=True)
class PhaseComparison:
    """A comparison of a prefill with decode steps of growing batches on one device."""

    device: Device
    """The device on which prefill and decode are compared."""
    context: int
    """The length of the prompt and of the decode context."""
    number_format: str
    """The number format in which the decode step has the most FLOPs."""
    ridge: float
    """The FLOPs per byte at which the device turns from memory-bound to compute-bound."""
    prefill: StepTiming
    """The step that prefills the prompt."""
    decodes: tuple[StepTiming, ...]
    """The decode steps, with growing batches."""
    batch: float | None
    """The batch from which on decode at this context is compute-bound; None if there is none."""
    intensity: float
    """The FLOPs per byte that decode approaches as the batch grows."""
    prompt: int | None
    """The prompt length from which on prefill is compute-bound; None if there is none."""
    texts: TextbookStep
    """The decode step of one user as textbooks compute it."""
    room: int | None = None
    """The number of users whose KV fits; None if it was not computed."""


def compare(
    model: Model, device: Device, prompt: int, measured: tuple[float, float] | None = None, room: int | None = None
) -> PhaseComparison:
    """Run the experiment: a prefill of `prompt` positions, and decode at that context in growing batches.

    Args:
        model: Model.
        device: Device.
        prompt: Positions of the prompt.
        measured: Measured seconds of that prefill and of one user's decode step.
        room: Users whose keys and values fit into the device's memory.
    """
    price = Price(model)
    took = measured or (None, None)
    prefill = _phase("prefill", price, device, [StepSegment(prompt, prompt)], took[0])
    decodes = [
        _phase(f"decode x {batch:,}", price, device, [StepSegment(1, prompt)] * batch, took[1] if batch == 1 else None)
        for batch in BATCHES
    ]
    cost = price.step(_work(price, [StepSegment(1, prompt)]))
    number_format = max(cost.flops, key=lambda name: cost.flops[name])
    # Each user adds its own FLOPs and its own KV, while ever more users share the weights.
    limit = cost.flops[number_format] / (cost.kv_read_bytes + cost.kv_write_bytes)
    bandwidth = device.bandwidth_of(cost.memory_bytes)
    texts = TextbookStep(
        2 * nominal_parameters(parameter_breakdown(model).total), round_figure(bandwidth), device.peak("bf16")
    )
    return PhaseComparison(
        device, prompt, number_format, device.peak(number_format) / bandwidth, prefill, tuple(decodes),
        critical_batch(price, device, prompt), limit, compute_bound_prompt(price, device), texts, room,
    )  # fmt: skip


def _work(price: Price, segments: list[StepSegment]) -> Work:
    return Work.of(segments, price.reaches)


def _phase(name: str, price: Price, device: Device, segments: list[StepSegment], measured: float | None) -> StepTiming:
    work = _work(price, segments)
    step = price.price_step(device, work)
    idle = 1 - compute_seconds(step.cost, device) / step.floor
    return StepTiming(
        name, work.tokens, step.cost.total_flops, step.cost.memory_bytes, step.floor, step.expected, idle, measured
    )


def measure(model: Model, prompt: int, repeats: int = 5) -> tuple[float, float]:
    """Return the median seconds of a prefill of `prompt` positions and of a decode step after it, on this machine."""
    prefills, decodes = [], []
    for _ in range(repeats + 1):
        (_, first), *others = run_requests(model, [prompt], ANSWER, time.perf_counter)
        prefills.append(first)
        decodes += [seconds for _, seconds in others]
    return sorted(prefills[1:])[repeats // 2], sorted(decodes)[len(decodes) // 2]


# -- the report -------------------------------------------------------------------------------------------------------

_HEAD = ("step", "FLOP/byte", "floor", "idle", "limit tok/s", "expected", "measured", "fits")


def document(both: PhaseComparison, model: str) -> Document:
    """Return the document that compares prefill with decode: a table of steps and their points in the roofline."""
    return Document(
        f"Prefill compared with decode: {model} on {both.device.title}",
        (
            Bullets(_words(both)),
            both.texts.beside(
                both.decodes[0].floor, 1 - both.decodes[0].idle, both.decodes[0].nbytes, both.ridge, both.batch
            ),
            DocumentTable(columns(*_HEAD), tuple(_row(step, both.room) for step in (both.prefill, *both.decodes))),
            _figure(both, model),
            Paragraph(f"source code of the experiment: {__file__}", "dim"),
        ),
        f"Why is a prompt of {both.context:,} tokens processed so fast, and the response generated so slowly?",
    )


def as_json(both: PhaseComparison, model: str) -> dict[str, object]:
    """Return the comparison of prefill and decode steps as JSON data, with the points where each is compute-bound."""
    return {
        "model": model,
        "device": both.device.name,
        **json_select(both, "device.calibrated", "context", "ridge", "critical_batch=batch"),
        **json_select(both, "intensity_of_endless_batch=intensity", "compute_bound_prompt=prompt", "room", "texts"),
        "steps": json_data([both.prefill, *both.decodes]),
    }


def _row(step: StepTiming, room: int | None) -> TableRow:
    users = 1 if step.positions == 0 or step.name == "prefill" else step.positions
    cells = (
        step.name,
        f"{step.intensity:.1f}",
        say_seconds(step.floor),
        percent(max(0.0, step.idle)),
        f"{step.speed_limit:,.0f}",
        say_seconds(step.expected),
        "" if step.measured is None else say_seconds(step.measured),
        "" if room is None else "yes" if users <= room else f"only {room:,}",
    )
    return TableRow(cells)


def _figure(both: PhaseComparison, model: str) -> Roofline:
    """Return the roofline with a point for each step, at its measured speed or else at the expected one."""
    points = []
    for step in (both.prefill, *both.decodes):
        rate, roof = step.flops / (step.measured or step.expected), step.flops / step.floor
        points.append(Point(step.name, "steps", step.intensity, rate, roof, step.measured is not None))
    return roofline(model, both.device, [both.number_format], points)


def _words(both: PhaseComparison) -> tuple[str, ...]:
    prefill, decode = both.prefill, both.decodes[0]
    device, ridge = both.device, both.ridge
    peak = device.peak(both.number_format)
    bandwidth = peak / ridge  # bandwidth of the memory that the single user's decode step reads
    turns = f"from {both.prompt:,} prompt tokens on" if both.prompt else "at no prompt length"
    words = [
        f"The ridge is {say(peak, 'FLOP/s')} in {both.number_format} divided by {say(bandwidth, 'B/s')}, which is "
        f"{ridge:.1f} FLOP/byte. A step with a lower intensity waits for memory, one with a higher intensity for "
        "arithmetic.",
        f"The prefill of {prefill.positions:,} positions has {prefill.intensity:.1f} FLOP/byte, the decode step of one "
        f"user {decode.intensity:.2f}. Both read the weights once, but the prefill uses them for {prefill.positions:,} "
        f"positions. In the decode step the arithmetic units are idle {percent(max(0.0, decode.idle))} of the time.",
        f"The speed limit of one user is the bandwidth divided by the bytes per token: {say(decode.nbytes, 'B')} take "
        f"{say_seconds(decode.floor)}, so at most {decode.speed_limit:,.0f} tok/s. No kernel can exceed this limit; "
        "only fewer bytes raise it.",
        f"A prefill is compute-bound {turns}.",
        _batch_words(both),
    ]
    if decode.measured is not None and prefill.measured is not None:
        words.append(
            f"This machine took {say_seconds(prefill.measured)} for the prefill, "
            f"{prefill.measured / prefill.floor:.1f} times its floor, and {say_seconds(decode.measured)} for the "
            f"decode step, {decode.measured / decode.floor:.1f} times. In a small model the overhead of the kernel "
            "calls dominates."
        )
    return tuple(words)


def _batch_words(both: PhaseComparison) -> str:
    if both.batch is None:
        return (
            f"No batch makes decode compute-bound at {both.context:,} tokens of context: users share the weights, but "
            f"each has its own keys and values. Attention to these has only {both.intensity:.1f} FLOP/byte, below the "
            f"ridge of {both.ridge:.1f}, whatever the number of users."
        )
    return (
        f"Decode reaches the ridge with {math.ceil(both.batch):,} users at {both.context:,} tokens of context. "
        f"Textbooks ignore keys and values and say {both.texts.ridge:,.0f} users: each user does 2 FLOPs per weight of "
        "two bytes."
    )
