"""A traced picture for people: the request, what its stages took, every op of each, and how that was measured."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ridgeline.document import numbers
from ridgeline.document.page import Block, Bullets, Document, Facts, Heading
from ridgeline.trace.ledger import StepLedger
from ridgeline.trace.picture import PictureLedger
from ridgeline.trace.views.export import device_json, steps_json
from ridgeline.trace.views.looks import looks, looks_json
from ridgeline.trace.views.roofline import ledger_roofline
from ridgeline.trace.views.story import Shown, about, answer, machine
from ridgeline.trace.views.table import op_table

_STAGES = {
    "encode": "encode: the text encoder",
    "pooled": "pooled: the encoder of the prompt's one vector",
    "prepare": "prepare: what the denoiser makes of texts, once a request",
    "denoise": "denoise: one step of the denoiser",
    "decode": "decode: the autoencoder",
}


def picture_story(ledger: PictureLedger, shown: Shown) -> Document:
    """The document. A number of a layer is that of the denoiser's."""
    blocks: list[Block] = [_request(ledger), Bullets(tuple(_answers(ledger)))]
    for name, stage in ledger.stages.items():
        every = shown.layer == "all" or name == "denoise"
        blocks += [Heading(_STAGES[name]), op_table(stage, shown.layer if every else None)]
        blocks.append(Bullets(tuple(sentence for step in stage.steps for sentence in about(stage, step))))
    if (figure := looks(ledger)) is not None:
        blocks.append(figure)
    if shown.roofline:
        blocks.append(ledger_roofline(ledger.denoise))
    if broken := ledger.impossible():
        blocks.append(Bullets(tuple(f"impossible: {line}" for line in broken), "error"))
    return Document(f"{ledger.denoise.model}: one {_noun(ledger)}, priced beside measured", tuple(blocks))


def _noun(ledger: PictureLedger) -> str:
    return "clip" if ledger.plan.geometry.layout.clips else "picture"


def _request(ledger: PictureLedger) -> Facts:
    plan = ledger.plan
    steps = f"{plan.schedule.steps} steps, {plan.passes} passes"
    second = "" if plan.second is None else f", {plan.second.scale:g} of the second expert"
    guidance = "off" if plan.guidance.negative is None else f"{plan.scale:g} (w = {plan.guidance.scale:g}{second})"
    if plan.guidance.embedded is not None:
        guidance = f"{plan.guidance.embedded:g}, an input of the denoiser"
    frames = f"{plan.geometry.frames} frames of " if _noun(ledger) == "clip" else ""
    tokens = " and ".join(str(len(text)) for text in plan.texts)
    return Facts(
        (
            ("prompt", repr(plan.request.prompt)),
            (_noun(ledger), f"{frames}{plan.geometry.size} pixels, {plan.geometry.tokens:,} tokens; seed {plan.seed}"),
            ("texts", f"{tokens} tokens"),
            ("steps", f"{steps}, guidance {guidance}; traced is step {ledger.number}"),
            ("device", machine(ledger.denoise)),
        )
    )


def _answers(ledger: PictureLedger) -> Iterator[str]:
    for stage in ledger.stages.values():
        yield from (answer(stage, step) for step in stage.steps)
    parts = [*map(_seconds, _times(ledger))]
    if (decode := ledger.borrowed) is not None:
        parts.append((decode.expected, decode.measured))
        said = numbers.say_difference(decode.measured / decode.expected - 1)
        yield (
            f"decode took {numbers.say_seconds(decode.measured)}, {numbers.say_seconds(decode.expected)} expected "
            f"({said}): diffusers' VAE, once, of which no op is one of this package's"
        )
    expected, measured = (sum(seconds) for seconds in zip(*parts, strict=True))
    difference = numbers.say_difference(measured / expected - 1 if expected else None)
    yield (
        f"the whole {_noun(ledger)} in {ledger.plan.schedule.steps} such steps: {numbers.say_seconds(measured)} as "
        f"measured, {numbers.say_seconds(expected)} expected ({difference})"
    )


def _times(ledger: PictureLedger) -> Iterator[tuple[StepLedger, int]]:
    """Each stage, and how often the request goes through it."""
    counts = {"denoise": ledger.plan.schedule.steps, "decode": ledger.plan.geometry.frames}
    for name, stage in ledger.stages.items():
        yield stage, counts.get(name, 1)


def _seconds(times: tuple[StepLedger, int]) -> tuple[float, float]:
    """Expected and measured, of all of a stage."""
    stage, count = times
    return count * sum(step.expected for step in stage.steps), count * sum(stage.whole(s.name) for s in stage.steps)


def picture_json(ledger: PictureLedger) -> dict[str, Any]:
    """The ledger for programs."""
    plan = ledger.plan
    return {
        "model": ledger.denoise.model,
        "device": device_json(ledger.denoise),
        "prompt": plan.request.prompt,
        "negative": plan.guidance.negative,
        "size": str(plan.geometry.size),
        "frames": plan.geometry.frames,
        "tokens": plan.geometry.tokens,
        "text_tokens": [len(text) for text in plan.texts],
        "steps": plan.schedule.steps,
        "step": ledger.number,
        "passes": plan.passes,
        "guidance": plan.scale,
        "seed": plan.seed,
        "stages": {name: steps_json(stage) for name, stage in ledger.stages.items()},
        "borrowed": None if ledger.borrowed is None else dataclasses.asdict(ledger.borrowed),
        **looks_json(ledger),
    }
