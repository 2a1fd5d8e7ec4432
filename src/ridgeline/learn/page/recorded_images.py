"""Recorded images: the generation of a pipeline as events of `/v1/images/generations`.

Unlike in those of a server, every step but the last has a preview.
"""

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.forecast import Forecaster
from ridgeline.media.diffusion.image_file import encode_image
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.work_units import count_by_stage, run_work_units, seconds_per_unit
from ridgeline.price.device import Device

IMAGES = "pictures.json"
MODEL = "digits"
USUAL = ("a handwritten seven", "a handwritten four")
_SEED, _STEPS = 3, 12
_FORMAT = "png"


def record_images(device: Device, prompts: Sequence[str] = USUAL) -> list[dict[str, Any]]:
    """Return the block `pictures.json` of a single-file page: each prompt as the built-in pipeline generates it now.

    `device` is the one for which the prices are computed.
    """
    pipeline = load_pipeline(MODEL)
    found = []
    for prompt in prompts:
        plan = pipeline.plan(DiffusionRequest(prompt, steps=_STEPS, seed=_SEED))
        list(run_work_units(pipeline, plan))  # warm-up: the first image of a size takes longer
        events = list(_events(pipeline, plan, device))
        found.append({"model": MODEL, "prompt": prompt, "events": events})
    return found


def _events(pipeline: Pipeline, plan: DiffusionPlan, device: Device) -> Iterator[dict[str, Any]]:
    forecaster = Forecaster(pipeline, device)
    each = seconds_per_unit(plan, forecaster.seconds(plan, None))
    each["encode"] = 0.0  # the warm-up has cached the texts
    ahead, schedule = count_by_stage(plan), plan.schedule
    steps, measured, predicted = 0, 0.0, 0.0
    started = time.perf_counter()
    for stride in run_work_units(pipeline, plan):
        measured += time.perf_counter() - started
        predicted += each[stride.stage]
        ahead[stride.stage] -= 1
        steps += stride.stage == "denoise"
        around = forecaster.interval.around_time(predicted)
        times = {"inference_time_s": measured, "predicted_time_s": predicted, "predicted_interval_s": around}
        events = {
            "type": "image_generation.progress",
            "stage": stride.stage,
            "step": steps,
            "steps": schedule.steps,
            **times,
            "predicted_time_left_s": sum(each[stage] * many for stage, many in ahead.items()),
        }
        yield events | ({"noise": [schedule.time(step) for step in range(schedule.steps)]} if not steps else {})
        if stride.step is not None and not stride.step.last:
            pixels = pipeline.decode(stride.step.predicted_latents)[0]
            yield {"type": "image_generation.partial_image", **_file(pipeline, plan, pixels)}
        if stride.pixels is not None:
            file = _file(pipeline, plan, stride.pixels)
            yield {"type": "image_generation.completed", "seed": plan.seed, **file, **times}
        started = time.perf_counter()


def _file(pipeline: Pipeline, plan: DiffusionPlan, pixels: Tensor) -> dict[str, Any]:
    data = encode_image(pixels, _FORMAT.upper(), pipeline.parameters(plan, 0))
    return {
        "b64_json": base64.b64encode(data).decode(),
        "output_format": _FORMAT,
        "size": str(plan.geometry.size),
    }
