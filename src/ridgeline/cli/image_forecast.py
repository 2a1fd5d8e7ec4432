"""The forecast of an image's or video's generation, printed before it runs, and the measured times after it."""

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.insight.trace.interference import Interference, calibration, explain_difference
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.forecast import STAGES, Forecast
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_price import PipelineMemory
from ridgeline.price.device import Device
from ridgeline.price.interval_text import describe_interval
from ridgeline.util.document.humanize import gib, say_gib, say_seconds, three_digits
from ridgeline.util.json_data import json_select

_TEXTS = ("prompt", "negative prompt")


def plan_lines(
    pipeline: Pipeline, plan: DiffusionPlan, forecast: Forecast, tiling: Tiling | None, *, apart: bool = False
) -> Iterator[str]:
    """Yield lines that describe a request: sizes, forward passes, memory and predicted seconds.

    Args:
        pipeline: The pipeline.
        plan: The planned request.
        forecast: The predicted times and memory.
        tiling: The tiling of the decoding; None for none.
        apart: Whether two processes share the passes of a step.
    """
    channels, *sides = plan.geometry.latents
    latents = " x ".join(map(str, reversed(sides)))
    texts = ", ".join(f"{what} {len(ids)}" for ids, what in zip(plan.token_ids, _TEXTS, strict=False))
    yield f"{pipeline.name}: {_images_text(plan)}"
    yield f"{latents} latents of {channels} channels, {plan.geometry.tokens:,} tokens; text tokens: {texts}"
    yield f"{_steps(plan)}{_together(plan, apart)}"
    memory = forecast.memory
    decode = f"decode {_size(memory.decode)} frame by frame" if _moves(plan) else _decode(memory, tiling)
    yield f"memory: weights {_size(memory.all_weights)}, one pass {_size(memory.denoise)}, {decode}"
    each = forecast.seconds["denoise"] / plan.steps
    if apart:
        again = _size(memory.all_weights)
        yield (
            f"a second process runs one pass of each step and loads the weights again: {again}, minus what both map "
            "from files"
        )
    if plan.request.step_cache is not None:
        kept = f"keeps {_size(pipeline.step_cache_bytes(plan))}"
        yield f"step cache {plan.request.step_cache:g}: {kept}; the prediction assumes full passes, the upper limit"
    stages = ", ".join(f"{name} {say_seconds(forecast.seconds[name])}" for name in STAGES)
    yield f"predicted: {stages} ({say_seconds(each)} per step) on {describe_device(forecast.device)}"
    yield describe_interval("all stages", forecast.interval, sum(forecast.seconds.values()))


def _moves(plan: DiffusionPlan) -> bool:
    """Return whether a plan generates videos rather than images."""
    return plan.geometry.layout.is_video


def _noun(plan: DiffusionPlan) -> str:
    """Return the noun for an output of a plan, a video or an image, as messages use it."""
    return "video" if _moves(plan) else "image"


def _decode(memory: PipelineMemory, tiling: Tiling | None) -> str:
    """Return the memory of decoding an image, and that of other tilings if it differs."""
    cut = f"in tiles of {tiling.size} latents" if tiling is not None else "whole"
    others = {"whole": memory.whole, f"in tiles of {Tiling().size}": memory.tiled}
    would = ", ".join(f"{_size(nbytes)} {how}" for how, nbytes in others.items() if nbytes != memory.decode)
    return f"decode {_size(memory.decode)} {cut}" + (f"; it would be {would}" if would else "")


def _images_text(plan: DiffusionPlan) -> str:
    """Return a text with the number, size and seeds of the images or videos."""
    images, noun = plan.request.images, _noun(plan)
    each = f"{plan.geometry.frames} frames of {plan.geometry.size}" if _moves(plan) else str(plan.geometry.size)
    if images == 1:
        return f"one {noun} of {each} pixels, seed {plan.seed}"
    return f"{images} {noun}s of {each} pixels, seeds {plan.seed} to {plan.seed + images - 1}"


def _steps(plan: DiffusionPlan) -> str:
    """Return a text with the number of denoiser passes and the guidance that determines it."""
    steps, guidance = plan.schedule.steps, plan.guidance
    if guidance.negative is not None:
        second = "" if plan.second_guidance is None else f", {plan.second_guidance.scale:g} for the second expert"
        scale = f"guidance {plan.scale:g} (w = {guidance.scale:g}{second})"
        return f"{steps} steps x 2 = {plan.passes} passes per {_noun(plan)}: {scale}"
    embedded = "" if guidance.embedded is None else f" {guidance.embedded:g}, an input of the denoiser"
    return f"{steps} steps = {plan.passes} passes per {_noun(plan)}: guidance{embedded or ' off'}"


def _together(plan: DiffusionPlan, apart: bool) -> str:
    """Return a text that says which passes share a call of the denoiser; "" if none do."""
    side_by_side = plan.batching.images
    words = [f"{side_by_side} {_noun(plan)}s in one batch"] if side_by_side > 1 else []
    words += ["both passes of a step in one call"] if plan.batching.paired and not apart else []
    return f"; {', '.join(words)}" if words else ""


def _size(nbytes: float) -> str:
    return say_gib(gib(nbytes))


def describe_device(device: Device) -> str:
    """Return the title of the device that a prediction is for, with a remark if it is not calibrated."""
    return device.title if device.calibrated else f"{device.title}; {calibration(device)}"


def measured_lines(
    predicted: Mapping[str, float], measured: Mapping[str, float], device: Device, meanwhile: Interference
) -> Iterator[str]:
    """Yield predicted and measured seconds by stage and in total, then the known reasons for a difference.

    The last column is the measured time divided by the predicted one.
    """
    rows = {name: (seconds, measured[name]) for name, seconds in predicted.items()}
    rows["all"] = sum(predicted.values()), sum(measured.values())
    width = max(10, *map(len, rows))
    yield f"{'':{width}}{'predicted':>12}{'measured':>12}{'ratio':>8}"
    for name, (expected, taken) in rows.items():
        ratio = f"x{three_digits(taken / expected)}" if expected else ""
        yield f"{name:{width}}{say_seconds(expected):>12}{say_seconds(taken):>12}{ratio:>8}"
    yield from explain_difference(device, *rows["all"], meanwhile)


def skipped_line(plan: DiffusionPlan, skipped: int) -> str:
    """Return a line that reports how many passes the step cache skipped."""
    passes = plan.passes * plan.request.images
    return f"step cache {plan.request.step_cache:g}: {skipped} of {passes} passes skipped all but their first block"


def request_json(
    pipeline: Pipeline, plan: DiffusionPlan, forecast: Forecast, measured: Mapping[str, float], skipped: int
) -> dict[str, Any]:
    """Return a request with its predicted and measured times as JSON fields."""
    memory = forecast.memory
    return {
        **pipeline.parameters(plan, 0),
        **json_select(plan, "geometry.latents", "geometry.tokens"),
        "text_tokens": [len(text) for text in plan.token_ids],
        "passes": plan.passes,
        "passes_skipped": skipped,
        **json_select(plan.batching, "side_by_side=images", "paired"),
        "memory": {
            **json_select(memory, "weights=all_weights", "denoise"),
            "step_cache": pipeline.step_cache_bytes(plan),
            **json_select(memory, "decode", "decode_whole=whole", "decode_tiled=tiled"),
        },
        "predicted": dict(forecast.seconds),
        "predicted_interval": forecast.interval.around_time(sum(forecast.seconds.values())),
        "measured": dict(measured),
    }
