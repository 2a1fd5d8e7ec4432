"""The report of a traced image or video request: its stages, their ops, and how they were measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.insight.trace.bottleneck import slowest
from ridgeline.insight.trace.image_trace import NEGATIVE, ImageLedger
from ridgeline.insight.trace.interference import BUSY, describe_interference
from ridgeline.insight.trace.trace_ledger import StepLedger
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.patch_attention import draw_panels
from ridgeline.insight.trace.views.report import ReportOptions, describe_device, describe_step, summarise_step
from ridgeline.insight.trace.views.table import op_table
from ridgeline.insight.trace.views.trace_export import device_json, steps_json
from ridgeline.price.plan.plan_document import check_sections
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import (
    Bullets,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Paragraph,
    TableRow,
    columns,
)
from ridgeline.util.json_data import json_select

STAGES = {
    "encode": "encode: the text encoder",
    "pooled": "pooled: the encoder of the prompt's pooled vector",
    "prepare": "prepare: the denoiser's processing of texts, once per request",
    "denoise": "denoise: one step of the denoiser",
    "decode": "decode: the autoencoder",
}
"""The headings of the stages of an image or video request."""

_OPS_ONLY = (
    "expected: the ops alone; measured: with the time around them, which this device's data do not predict; diff: of "
    "the ops alone"
)


def image_report(ledger: ImageLedger, shown: ReportOptions, sections: Iterable[str] | None = None) -> Document:
    """Return the report of a traced image or video request: a summary, or selected stages op by op.

    For all stages, it has both. A layer number refers to the denoiser.

    Args:
        ledger: The ledger of the request.
        shown: What to show.
        sections: The names of stages; None for the summary.

    Raises:
        ValueError: If a stage does not exist.
    """
    stages = tuple(ledger.stages)
    if sections is None and shown.layer is not None:
        sections = stages if shown.layer == "all" else ("denoise",)
    names = None if sections is None else check_sections(sections, stages)
    blocks: list[DocumentBlock] = []
    if names is None or names == stages:
        blocks += [_request(ledger), _times_table(ledger), Facts(tuple(_answer(ledger)))]
    for name in names or ():
        blocks += _stage(name, ledger.stages[name], shown)
    if (figure := draw_panels(ledger)) is not None:
        blocks.append(figure)
    if shown.roofline:
        blocks.append(ledger_roofline(ledger.denoise))
    if broken := ledger.impossible():
        blocks.append(Bullets(tuple(f"impossible: {line}" for line in broken), "error"))
    if names is None:
        blocks.append(Paragraph(f"more: --full, --section NAME ({', '.join(stages)}); as JSON: --json", "dim"))
    return Document(f"{ledger.denoise.model}: one {_noun(ledger)}, predicted and measured", tuple(blocks))


def _stage(name: str, stage: StepLedger, shown: ReportOptions) -> list[DocumentBlock]:
    """Return the table of a stage's ops, and how it was measured."""
    every = shown.layer == "all" or name == "denoise"
    sentences = (
        sentence for step in stage.steps for sentence in (summarise_step(stage, step), *describe_step(stage, step))
    )
    return [Heading(STAGES[name]), op_table(stage, shown.layer if every else None), Bullets(tuple(sentences))]


def _noun(ledger: ImageLedger) -> str:
    return "video" if ledger.plan.geometry.layout.is_video else "image"


def _request(ledger: ImageLedger) -> Facts:
    plan = ledger.plan
    steps = f"{plan.schedule.steps} steps, {plan.passes} passes"
    second = "" if plan.second_guidance is None else f", {plan.second_guidance.scale:g} for the second expert"
    guidance = "off" if plan.guidance.negative is None else f"{plan.scale:g} (w = {plan.guidance.scale:g}{second})"
    if plan.guidance.embedded is not None:
        guidance = f"{plan.guidance.embedded:g}, an input of the denoiser"
    frames = f"{plan.geometry.frames} frames of " if _noun(ledger) == "video" else ""
    tokens = " and ".join(str(len(text)) for text in plan.token_ids)
    return Facts(
        (
            ("prompt", repr(plan.request.prompt)),
            (_noun(ledger), f"{frames}{plan.geometry.size} pixels, {plan.geometry.tokens:,} tokens; seed {plan.seed}"),
            ("texts", f"{tokens} tokens"),
            ("steps", f"{steps}, guidance {guidance}; step {ledger.number} was traced"),
            ("device", describe_device(ledger.denoise)),
        )
    )


@dataclass(frozen=True, slots=True)
class _ImageStep:
    """A step of the ledger with the number of times the request runs it, the seconds of one run and its roof."""

    name: str
    count: int
    expected: float
    measured: float
    compared: float | None
    """The measured seconds of what `expected` covers: the step or its ops. None if they were not measured."""
    roof: str

    @property
    def seconds(self) -> float:
        """The measured seconds of all runs of the step."""
        return self.count * self.measured


def _runs(ledger: ImageLedger) -> list[_ImageStep]:
    """Return every step of an image request with its number of runs, as if all denoising steps were alike."""
    counts = {"denoise": ledger.plan.schedule.steps, "decode": ledger.plan.geometry.frames}
    runs = []
    for name, stage in ledger.stages.items():
        for step in stage.steps:
            ops = stage.ops(step.name)
            roof = f"{humanize.percent(ops.bound / ops.measured)} of {step.limit}" if ops.measured else step.limit
            whole = stage.whole(step.name)
            covered = whole if stage.predicts_whole else ops.measured
            runs.append(_ImageStep(step.name, counts.get(name, 1), step.expected, whole, covered, roof))
    if (decode := ledger.borrowed) is not None:
        compared = decode.measured if ledger.denoise.predicts_whole else None
        roof = "diffusers' VAE, measured as a whole"
        runs.append(_ImageStep("decode", 1, decode.expected, decode.measured, compared, roof))
    return runs


def _times_table(ledger: ImageLedger) -> DocumentTable:
    """Return the table of all stages with expected and measured times, and the share of their roof."""
    runs = _runs(ledger)
    rows = [
        TableRow((run.name, f"{run.count:,}", humanize.say_seconds(run.measured), *_beside(run), run.roof))
        for run in runs
    ]
    expected, measured = sum(run.count * run.expected for run in runs), sum(run.seconds for run in runs)
    parts = [None if run.compared is None else run.count * run.compared for run in runs]
    compared = None if None in parts else sum(part or 0.0 for part in parts)
    rows.append(TableRow(("all", "", "", *_cells(expected, measured, compared), ""), "strong"))
    notes = [f"all {ledger.plan.schedule.steps} steps are assumed to be like the traced one"]
    if not ledger.denoise.predicts_whole:
        notes.append(_OPS_ONLY)
    return DocumentTable(
        columns("", "runs", "one", "expected", "measured", "diff", "share of roof", words=(0, 6)),
        tuple(rows),
        tuple(notes),
    )


def _beside(run: _ImageStep) -> tuple[str, str, str]:
    compared = None if run.compared is None else run.count * run.compared
    return _cells(run.count * run.expected, run.seconds, compared)


def _cells(expected: float, measured: float, compared: float | None) -> tuple[str, str, str]:
    """Return the expected and the measured time as text, with the difference of what was `compared`."""
    difference = humanize.say_difference(compared / expected - 1 if expected and compared is not None else None)
    return humanize.say_seconds(expected), humanize.say_seconds(measured), difference


def _answer(ledger: ImageLedger) -> Iterator[tuple[str, str]]:
    """Yield what takes longest and why, what would reduce it, and what makes the figures doubtful."""
    runs, denoise, count = _runs(ledger), ledger.denoise, ledger.plan.schedule.steps
    owned = {step.name: stage for stage in ledger.stages.values() for step in stage.steps}
    longest = max((run for run in runs if run.name in owned), key=lambda run: run.seconds)
    yield "limit", slowest(owned[longest.name], longest.name)
    whole, step = sum(run.seconds for run in runs), sum(denoise.whole(one.name) for one in denoise.steps)
    bound = sum(denoise.ops(one.name).bound for one in denoise.steps)
    levers = [f"one step fewer saves {humanize.say_seconds(step)}, {humanize.percent(step / whole)} of the total"]
    if (negative := [one.name for one in denoise.steps if one.name.endswith(NEGATIVE)]) and len(denoise.steps) > 1:
        saved = count * denoise.whole(negative[0])
        levers.append(f"no guidance saves {humanize.say_seconds(saved)}, {humanize.percent(saved / whole)}")
    levers.append(
        f"ops at their roofs would take {humanize.say_seconds(bound)} of a step's {humanize.say_seconds(step)}"
    )
    yield "lever", "; ".join(levers)
    held = owned[longest.name].step(longest.name).interruptions
    if held > BUSY * longest.measured:
        yield "note", f"{describe_interference(f'every repeat of {longest.name}', held)} at the median"


def image_json(ledger: ImageLedger) -> dict[str, Any]:
    """Return the ledger of an image or video request as JSON data; decoded images are left out."""
    plan = ledger.plan
    return {
        "model": ledger.denoise.model,
        "device": device_json(ledger.denoise),
        **json_select(plan, "request.prompt", "guidance.negative"),
        "size": str(plan.geometry.size),
        **json_select(plan, "geometry.frames", "geometry.tokens"),
        "text_tokens": [len(text) for text in plan.token_ids],
        **json_select(plan, "schedule.steps"),
        "step": ledger.number,
        **json_select(plan, "passes", "guidance=scale", "seed"),
        "stages": {name: steps_json(stage) for name, stage in ledger.stages.items()},
        **json_select(ledger, "borrowed", "?pull=guidance_delta", "?attention=words"),
    }
