"""The page of `lab phases`."""

import math
from dataclasses import asdict

from ridgeline.figures import percent, say, say_seconds
from ridgeline.lab import phases
from ridgeline.lab.page import Page, Table
from ridgeline.lab.phases import Phase, Phases
from ridgeline.trace.picture import Picture, Point, roofline

_HEAD = ("step", "FLOP/byte", "floor", "idle", "limit tok/s", "expected", "measured")


def page(found: Phases, model: str) -> Page:
    """The two phases side by side, batches of decode, and where they lie under the roofs."""
    steps = (found.prefill, *found.decodes)
    return Page(
        f"Prefill against decode: {model} on {found.device.title}",
        f"Why does a prompt of {found.context:,} tokens run so fast, and the answer so slowly?",
        (Table(_HEAD, tuple(_row(step) for step in steps)),),
        _picture(found, model),
        _words(found),
        phases.__file__,
        {
            "model": model,
            "device": found.device.name,
            "calibrated": found.device.calibrated,
            "context": found.context,
            "ridge": found.ridge,
            "critical_batch": found.batch,
            "intensity_of_endless_batch": found.intensity,
            "compute_bound_prompt": found.prompt,
            "steps": [_data(step) for step in steps],
        },
    )


def _row(step: Phase) -> tuple[str, ...]:
    return (
        step.name,
        f"{step.intensity:.1f}",
        say_seconds(step.floor),
        percent(max(0.0, step.idle)),
        f"{step.speed_limit:,.0f}",
        say_seconds(step.expected),
        "" if step.measured is None else say_seconds(step.measured),
    )


def _picture(found: Phases, model: str) -> Picture:
    """The roofline with a point a step: at its measured speed where there is one, else at the expected."""
    points = []
    for step in (found.prefill, *found.decodes):
        rate, roof = step.flops / (step.measured or step.expected), step.flops / step.floor
        points.append(Point(step.name, "steps", step.intensity, rate, roof, step.measured is not None))
    return roofline(model, found.device, [found.number], points)


def _words(found: Phases) -> tuple[str, ...]:
    prefill, decode = found.prefill, found.decodes[0]
    device, ridge = found.device, found.ridge
    bandwidth = device.peak(found.number) / ridge  # of the memory that the lone decode step reads
    turns = f"from {found.prompt:,} tokens on" if found.prompt else "at no length"
    words = [
        f"The ridge: {say(device.peak(found.number), 'FLOP/s')} in {found.number} over {say(bandwidth, 'B/s')} is "
        f"{ridge:.1f} FLOP a byte. A step with less waits for memory, one with more for arithmetic.",
        f"The prefill of {prefill.positions:,} positions has {prefill.intensity:.1f} FLOP a byte, the decode step of "
        f"one user {decode.intensity:.2f}: both read the weights once, but the prefill has {prefill.positions:,} uses "
        f"for them. In that step the arithmetic units are idle {percent(max(0.0, decode.idle))} of the time.",
        f"The speed limit of one user is the bytes a token over the bandwidth: {say(decode.nbytes, 'B')}, "
        f"{say_seconds(decode.floor)}, {decode.speed_limit:,.0f} tok/s. No kernel beats it; fewer bytes do.",
        f"A prefill is compute-bound {turns}.",
        _batch_words(found),
    ]
    if decode.measured is not None and prefill.measured is not None:
        words.append(
            f"This machine took {say_seconds(prefill.measured)} for the prefill, "
            f"{prefill.measured / prefill.floor:.1f} times its floor, and {say_seconds(decode.measured)} for the "
            f"decode step, {decode.measured / decode.floor:.1f} times. In a small model it is the calls that cost."
        )
    return tuple(words)


def _batch_words(found: Phases) -> str:
    if found.batch is None:
        return (
            f"No batch makes decode compute-bound at {found.context:,} tokens of context: users share the weights, but "
            f"each brings its own keys and values, and alone those have {found.intensity:.1f} FLOP a byte, under the "
            f"ridge of {found.ridge:.1f}. However many users, it gets no higher."
        )
    return (
        f"Decode reaches the ridge with {math.ceil(found.batch):,} users at {found.context:,} tokens of context. The "
        f"texts leave keys and values out and say {found.ridge * _width(found) / 2:,.0f}: every user has 2 FLOPs for "
        "each weight that is read."
    )


def _width(found: Phases) -> float:
    return {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}.get(found.number, 1.0)


def _data(step: Phase) -> dict[str, object]:
    return asdict(step) | {"intensity": step.intensity, "speed_limit": step.speed_limit}
