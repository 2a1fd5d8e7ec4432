"""The plan of a pipeline as a document and as JSON: the summary, and the sections that support it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.media.diffusion.image_comparison import positions
from ridgeline.media.diffusion.pipeline_plan import PipelinePlan
from ridgeline.media.diffusion.pipeline_price import RequestPrice, StagePrice
from ridgeline.price.error_interval import Kind
from ridgeline.price.interval_text import (
    cost_interval,
    describe_cases,
    describe_factors,
    describe_interval,
)
from ridgeline.price.plan.plan_document import check_sections, classes_table
from ridgeline.price.plan.plan_text import rate_with, time_with
from ridgeline.price.plan.request_phases import Estimate
from ridgeline.price.trust_export import trust_json
from ridgeline.util.document.elements import (
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Paragraph,
    TableRow,
    columns,
)
from ridgeline.util.document.humanize import gb, gb_cell, gib, gib_cell, say, say_gib, say_seconds, three_digits
from ridgeline.util.json_data import json_data, json_select

_MORE = "more: --full, --section NAME; as JSON: --json"


def pipeline_document(plan: PipelinePlan, sections: Iterable[str] | None = None) -> Document:
    """Return the plan of an image or video request: its summary and stages, or the sections in `sections`.

    If all SECTIONS are requested, the summary precedes them.
    """
    names = None if sections is None else check_sections(sections, SECTIONS)
    blocks: list[DocumentBlock] = []
    if names is None or names == tuple(SECTIONS):
        blocks.append(Facts(tuple(_answer(plan))))
    for name in names or ("stages",):
        heading, table = SECTIONS[name]
        blocks += [Heading(heading), table(plan)] if names else [table(plan)]
    if names is None:
        blocks.append(Paragraph(_MORE, "dim"))
    return Document(_title(plan), tuple(blocks))


def _title(plan: PipelinePlan) -> str:
    frames = f" x {plan.geometry.frames} frames" if plan.geometry.frames > 1 else ""
    eager = ", without fusion" if plan.eager else ""
    return f"{plan.name} on {plan.devices} x {plan.device.title}: {plan.geometry.size}{frames}, {_steps(plan)}{eager}"


def _steps(plan: PipelinePlan) -> str:
    return f"{plan.steps} step{'s' * (plan.steps > 1)}"


def image_or_video(plan: PipelinePlan) -> str:
    """Return "image" or "video", the word for the plan's result in the text."""
    return "video" if plan.geometry.frames > 1 else "image"


# -- the answer -------------------------------------------------------------------------------------------------------


def _answer(plan: PipelinePlan) -> list[tuple[str, str]]:
    what, each, interval = image_or_video(plan), plan.each, plan.interval
    facts = [
        (
            what,
            f"{time_with(interval, each)} (floor {say_seconds(each.floor)}, bound {say_seconds(each.bound)}); "
            f"{rate_with(interval, plan.an_hour)} per hour"
            f"{_divided(plan)}",
        ),
        ("cost", _cost(plan)),
        ("passes", _passes(plan)),
        *([] if plan.image_comparison is None else [("video", plan.image_comparison.words)]),
        ("limit", _limit(plan)),
        ("fits", _fits(plan)),
        ("lever", _lever(plan)),
        (
            "trust",
            f"{describe_interval(what, interval, each.expected, each.floor)}; {describe_cases(interval, plan.device)}",
        ),
    ]
    return facts + [("note", note) for note in _notes(plan)]


def _divided(plan: PipelinePlan) -> str:
    if plan.devices == 1:
        return ""
    alone = plan.on_one_gpu.seconds.expected
    return (
        f" on {plan.devices} GPUs ({plan.request.division}), {three_digits(alone / plan.request.seconds.expected)} "
        "times as fast as one"
    )


def _cost(plan: PipelinePlan) -> str:
    price = plan.device.price
    if price is None or plan.dollars is None:
        return "no price is known for this GPU; give --price, or --prices FILE"
    hourly = f"${price.dollars:.2f} per GPU and hour ({price.asked_by}, {price.date})"
    around = cost_interval(plan.interval, plan.dollars, plan.least_dollars)
    return f"${three_digits(plan.dollars)} {around} per {image_or_video(plan)}; {hourly}"


def _passes(plan: PipelinePlan) -> str:
    geometry, denoise = plan.geometry, plan.alone_request.denoise
    _, *latents = geometry.latents
    pixels = geometry.size.width * geometry.size.height * geometry.frames / positions(geometry)
    guided = "two passes each with guidance" if plan.passes > 1 else "one pass each"
    flops = denoise.flops / denoise.runs
    return (
        f"{' x '.join(map(str, latents))} latents, {pixels:.3g} times fewer than pixels, which are {geometry.tokens:,} "
        f"tokens; {_steps(plan)}, {guided}: {plan.job.passes} passes of {say(flops, 'FLOP')}, {denoise.attention:.0%} "
        "of that in attention"
    )


def _limit(plan: PipelinePlan) -> str:
    request = plan.request
    shares = (
        f"{stage.name} {stage.seconds.expected / request.seconds.expected:.0%} ({stage.limit})"
        for stage in request.stages
    )
    return "share of the time: " + ", ".join(shares)


def _fits(plan: PipelinePlan) -> str:
    fit = plan.fit
    most, budget = (say_gib(gib(nbytes)) for nbytes in (fit.resident + fit.overhead, fit.budget))
    line = f"{most} of {budget} available per GPU, including {say_gib(gib(plan.request.memory.all_weights))} of weights"
    turns = say_gib(gib(fit.taking_turns + fit.overhead))
    match fit.verdict:
        case "yes":
            return f"yes: {line}"
        case "tiled":
            return f"only if decoded in tiles: {line}"
        case "in turns":
            return f"only if text encoder, denoiser and VAE take turns on the GPU ({turns}): together they need {line}"
        case _:
            return f"NO: {line}; {turns} if its parts take turns"


def _lever(plan: PipelinePlan) -> str:
    """Return the time saved without guidance, with the fewest steps, and with several images per pass, as text."""
    parts = []
    if plan.guidance_off is not None:
        saved = 1 - plan.guidance_off.seconds.expected / plan.on_one_gpu.seconds.expected
        parts.append(f"without guidance n passes instead of 2n: {saved:.0%} less time")
    fewer = [each for each in plan.fewer_steps if each.passes < plan.job.passes]
    if fewer:
        saved = 1 - fewer[0].seconds.expected / plan.on_one_gpu.seconds.expected
        parts.append(f"{fewer[0].name} {saved:.0%} less time (for a model distilled to so few steps)")
    count, gain = max(plan.side_by_side.items(), key=lambda item: item[1])
    if gain < 1.05:
        parts.append(f"several {image_or_video(plan)}s per pass save no time: one pass alone is already compute-bound")
    else:
        parts.append(f"{count} {image_or_video(plan)}s per pass take {gain:.2f} times less time each")
    return "; ".join(parts)


def _notes(plan: PipelinePlan) -> list[str]:
    usual, notes = plan.usual, list[str]()
    if plan.other_fusion is not None and not plan.eager:
        notes.append(
            f"norms, gates and rotary embeddings are fused (torch.compile); without fusion (--eager) {_eager(plan)}"
        )
    if not usual.tokens:
        notes.append(f"assumes a prompt of {usual.texts(1)[0]} tokens; the text encoder does not pad texts")
    return notes + refusals(plan)


def refusals(plan: PipelinePlan) -> list[str]:
    """Return a line if `ridgeline image` or `video` does not support the scheduler of the planned folder, else none."""
    refused, command = plan.usual.refused, "video" if plan.geometry.frames > 1 else "image"
    return [f"`ridgeline {command}` does not support this folder's scheduler: {refused}"] if refused else []


def _eager(plan: PipelinePlan) -> str:
    """Return a clause on the time of a plan on one GPU without fusion, and the bytes that the unfused ops move."""
    assert plan.other_fusion is not None
    assert plan.unfused is not None
    moved = say(plan.unfused.nbytes(plan.geometry.tokens), "B")
    seconds = time_with(plan.interval, plan.other_fusion.seconds)
    return f"{seconds} on one GPU, because the unfused ops move {moved} per pass"


# -- the sections -----------------------------------------------------------------------------------------------------


def _stages(plan: PipelinePlan) -> DocumentTable:
    rows = [_stage(stage, stage.name, stage.count) for stage in plan.request.stages]
    request = plan.request
    denoise = request.denoise
    one = denoise.once.seconds * (1 / denoise.once.steps)
    flops, nbytes = denoise.flops / denoise.runs, denoise.nbytes / denoise.runs
    cells = ("per pass", "", *_figures(flops, nbytes, one), f"{denoise.attention:.0%}", denoise.limit)
    rows.insert(2, TableRow(cells, "dim"))
    flops, nbytes = (sum(getattr(stage, name) for stage in request.stages) for name in ("flops", "nbytes"))
    rows.append(TableRow(("all", "", *_figures(flops, nbytes, request.seconds), "", ""), "strong"))
    heads = ("", "runs", "FLOP", "moved", "floor", "bound", "expected", "attention", "roof")
    notes = ("FLOPs, bytes and seconds are per GPU; the seconds include communication between GPUs",)
    notes = (*(notes if plan.devices > 1 else ()), _factors_note(plan))
    return DocumentTable(columns(*heads, words=(0, 8)), tuple(rows), notes)


def _factors_note(plan: PipelinePlan) -> str:
    """Return a note on the interval of all expected times of a table, in which costs vary likewise."""
    return describe_factors("8 of 10 measurements:", plan.interval)


def _stage(stage: StagePrice, name: str, count: int) -> TableRow:
    cells = (name, f"{stage.runs:,}", *_figures(stage.flops, stage.nbytes, stage.seconds))
    return TableRow((*cells, f"{stage.attention:.0%}", stage.limit))


def _figures(flops: float, nbytes: float, seconds: Estimate) -> tuple[str, ...]:
    return (
        say(flops, "FLOP"),
        say(nbytes, "B"),
        *(say_seconds(value) for value in dataclasses.astuple(seconds)),
    )


def _memory(plan: PipelinePlan) -> DocumentTable:
    memory, fit = plan.request.memory, plan.fit
    rows = [(f"weights: {name}", nbytes) for name, nbytes in memory.weights.items()]
    rows += [
        ("activations: text encoder", memory.encode),
        ("activations: denoiser pass", memory.denoise),
        ("activations: VAE decode", memory.whole),
        ("activations: VAE decode in tiles", memory.tiled),
        ("overhead", fit.overhead),
        ("total, all parts loaded", fit.resident + fit.overhead),
        ("total, decoded in tiles", fit.tiled + fit.overhead),
        ("total, parts taking turns", fit.taking_turns + fit.overhead),
        ("available", fit.budget),
    ]
    cells = (TableRow((name, gib_cell(gib(nbytes)), gb_cell(gb(nbytes)))) for name, nbytes in rows)
    return DocumentTable(columns("per GPU", "GiB", "GB"), tuple(cells))


def _changes(plan: PipelinePlan) -> DocumentTable:
    """Return the table of the planned request with other fusion, guidance, steps and images per pass, on one GPU."""
    base_seconds = plan.on_one_gpu.seconds.expected
    variants = [plan.on_one_gpu, *(each for each in (plan.other_fusion, plan.guidance_off) if each), *plan.fewer_steps]
    rows = [
        TableRow((
            each.name, f"{each.passes:,}", say_seconds(each.seconds.expected),
            "" if not number else f"{each.seconds.expected / base_seconds - 1:+.0%}",
            "" if not number else f"{each.passes / plan.job.passes - 1:+.0%}",
        ))
        for number, each in enumerate(variants)
    ]  # fmt: skip
    for count, gain in plan.side_by_side.items():
        name = f"{count} {image_or_video(plan)}s in one pass"
        rows.append(
            TableRow((name, f"{plan.job.passes:,}", "", f"{1 / gain - 1:+.0%} per pass and {image_or_video(plan)}", ""))
        )
    heads = ("on one GPU", "total passes", "expected", "time", "passes")
    return DocumentTable(columns(*heads, words=(0,)), tuple(rows), (_factors_note(plan),))


def _devices_table(plan: PipelinePlan) -> DocumentTable:
    one, rows = plan.on_one_gpu.seconds.expected, []
    for count, ways in plan.by_gpu_count.items():
        for division, request in ways.items():
            seconds, dollars = request.seconds.expected, plan.dollars_of(request)
            rows.append(TableRow((
                f"{count}", str(division), say_seconds(seconds), f"x {three_digits(one / seconds)}",
                say(request.denoise.message_bytes, "B") if request.denoise.message_bytes else "",
                say_seconds(request.denoise.communication.expected) if request.denoise.message_bytes else "",
                "" if dollars is None else f"${three_digits(dollars)}",
            )))  # fmt: skip
    heads = (
        "GPUs",
        "divided by",
        "expected",
        "speedup",
        "exchanged per step",
        "exchange time",
        f"$/{image_or_video(plan)}",
    )
    notes = (
        "guidance: each half of the GPUs runs one of the two passes; sequence: rows are divided, and heads in "
        "attention (Ulysses)",
        _factors_note(plan),
    )
    return DocumentTable(columns(*heads, words=(1,)), tuple(rows), notes)


SECTIONS: Mapping[str, tuple[str, Callable[[PipelinePlan], DocumentTable]]] = MappingProxyType(
    {
        "stages": ("Stage by stage", _stages),
        "memory": ("Memory", _memory),
        "changes": ("Effect of changes", _changes),
        "cards": ("One request on several GPUs", _devices_table),
        "classes": (
            "Time by class of operation, and its limit",
            lambda plan: classes_table([stage.once for stage in plan.request.stages], _factors_note(plan)),
        ),
    }
)
"""The sections of a pipeline plan that can be requested by name, in the order of --full."""


# -- JSON -------------------------------------------------------------------------------------------------------------

_KIND_OF: Mapping[str, Kind] = MappingProxyType({"seconds": "image", "an_hour": "image", "dollars": "image"})


def pipeline_json(plan: PipelinePlan) -> dict[str, Any]:
    """Return all figures of a pipeline's plan as JSON data, in SI units, bytes and seconds."""
    return {
        "pipeline": json_select(plan, "name", "parameters"),
        "device": json_select(plan, "device.name", "count=devices", "dollars_per_hour=device.price.dollars"),
        "request": json_select(
            plan, "geometry.size", "geometry.frames", "geometry.latents", "geometry.grid", "geometry.tokens", "steps",
            "guidance=scale", "job.passes", "job.texts", "count=job.images",
        ),
        "answer": answer_json(plan),
        "trust": trust_json(plan.device, plan.engine, {"image": plan.interval}, _KIND_OF),
        "stages": [_stage_json(stage) for stage in plan.request.stages],
        "memory": json_select(plan, "*request.memory", "*fit"),
        "changes": {
            "steps": json_data(plan.fewer_steps),
            "fused" if plan.eager else "eager": json_data(plan.other_fusion),
            "without_guidance": json_data(plan.guidance_off),
            "side_by_side": {str(count): gain for count, gain in plan.side_by_side.items()},
        },
        "cards": [_way_json(plan, way) for ways in plan.by_gpu_count.values() for way in ways.values()],
        "beside_picture": json_data(plan.image_comparison),
        "notes": _notes(plan),
    }  # fmt: skip


def answer_json(plan: PipelinePlan) -> dict[str, Any]:
    """Return a plan's seconds and dollars per image or video, hourly rate, memory fit and GPU division as JSON data.

    `intervals` holds the interval of each figure that has one, and `interval` the factors and what they come from.
    """
    around, dollars, each, an_hour = plan.interval, plan.dollars, plan.each, plan.an_hour
    return {
        **json_select(plan, "seconds=each", "an_hour", "dollars", "fits=fit.verdict", "request.division", "interval"),
        "intervals": {
            "seconds": around.around_time(each.expected, each.floor),
            "an_hour": around.around_rate(an_hour.expected, an_hour.floor),
            "dollars": None if dollars is None else around.around_time(dollars, plan.least_dollars),
        },
    }


def _stage_json(stage: StagePrice) -> dict[str, Any]:
    return {
        **json_select(stage, "name", "runs", "flops", "bytes=nbytes", "seconds", "limit", "attention"),
        "exchanged": json_select(stage, "bytes=message_bytes", "seconds=communication"),
        **json_select(stage, "once.classes"),
    }


def _way_json(plan: PipelinePlan, request: RequestPrice) -> dict[str, Any]:
    own = json_select(request, "cards=division.gpus", "division", "seconds")
    return own | {"dollars": plan.dollars_of(request), "exchanged_bytes_a_step": request.denoise.message_bytes}
