"""A traced picture for people: the request, what its stages took, every op of each, and how that was measured."""

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
    return Document(f"{ledger.denoise.model}: one picture, priced beside measured", tuple(blocks))


def _request(ledger: PictureLedger) -> Facts:
    plan = ledger.plan
    steps = f"{plan.schedule.steps} steps, {plan.passes} passes"
    guidance = "off" if plan.guidance.negative is None else f"{plan.scale:g} (w = {plan.guidance.scale:g})"
    tokens = " and ".join(str(len(text)) for text in plan.texts)
    return Facts(
        (
            ("prompt", repr(plan.request.prompt)),
            ("picture", f"{plan.geometry.size} pixels, {plan.geometry.tokens:,} tokens; seed {plan.seed}"),
            ("texts", f"{tokens} tokens"),
            ("steps", f"{steps}, guidance {guidance}; traced is step {ledger.number}"),
            ("device", machine(ledger.denoise)),
        )
    )


def _answers(ledger: PictureLedger) -> Iterator[str]:
    for stage in ledger.stages.values():
        yield from (answer(stage, step) for step in stage.steps)
    expected, measured = (sum(seconds) for seconds in zip(*map(_seconds, _times(ledger)), strict=True))
    difference = numbers.say_difference(measured / expected - 1 if expected else None)
    yield (
        f"the whole picture in {ledger.plan.schedule.steps} such steps: {numbers.say_seconds(measured)} as measured, "
        f"{numbers.say_seconds(expected)} expected ({difference})"
    )


def _times(ledger: PictureLedger) -> Iterator[tuple[StepLedger, int]]:
    """Each stage, and how often the request goes through it."""
    for name, stage in ledger.stages.items():
        yield stage, ledger.plan.schedule.steps if name == "denoise" else 1


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
        "tokens": plan.geometry.tokens,
        "text_tokens": [len(text) for text in plan.texts],
        "steps": plan.schedule.steps,
        "step": ledger.number,
        "passes": plan.passes,
        "guidance": plan.scale,
        "seed": plan.seed,
        "stages": {name: steps_json(stage) for name, stage in ledger.stages.items()},
        **looks_json(ledger),
    }
